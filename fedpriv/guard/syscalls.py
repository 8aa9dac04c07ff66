"""Which system calls a foreign app may make: a list of what is allowed, as a seccomp filter. All others fail.

An app computes: it reads files, writes to its own /tmp, maps memory, starts threads and waits. It starts no process and
no program, opens no socket and no pipe, and sees no other process. Left out too is what two apps could talk through,
since both see the same library files and count with the same kernel: locks and leases on files, shared futexes, watches
(inotify), what the page cache holds (mincore, preadv2, getrusage's count of pages that were read), free memory and disk
(sysinfo, statfs), and whatever shows numbers of inodes that the whole kernel counts (pipes, sockets, memfds, pidfds) or
what all processes of one user share (pending signals of timers).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import NamedTuple

from fedpriv.guard.kernel import KernelRefused, prctl

#: name=number on x86_64/number on aarch64, - where the architecture has none (asm/unistd_64.h, asm-generic/unistd.h).
_ALLOWED = """
read=0/63 write=1/64 open=2/- close=3/57 stat=4/- fstat=5/80 lstat=6/- newfstatat=262/79 poll=7/-
ppoll=271/73 select=23/- pselect6=270/72 lseek=8/62 mprotect=10/226 munmap=11/215 brk=12/214 mremap=25/216
msync=26/227 rt_sigaction=13/134 rt_sigprocmask=14/135 rt_sigreturn=15/139 rt_sigpending=127/136
rt_sigtimedwait=128/137 rt_sigsuspend=130/133 sigaltstack=131/132 pread64=17/67 pwrite64=18/68 readv=19/65
writev=20/66 preadv=295/69 pwritev=296/70 access=21/- faccessat=269/48 faccessat2=439/439 sched_yield=24/124
dup=32/23 dup2=33/- dup3=292/24 nanosleep=35/101 clock_nanosleep=230/115 getitimer=36/102 setitimer=38/103
alarm=37/- pause=34/- getpid=39/172 gettid=186/178 getppid=110/173 getpgrp=111/- getpgid=121/155 getsid=124/156
exit=60/93 exit_group=231/94 wait4=61/260 waitid=247/95 kill=62/129 tgkill=234/131 uname=63/160 fsync=74/82
fdatasync=75/83 ftruncate=77/46 truncate=76/45 fallocate=285/47 getdents64=217/61 getcwd=79/17 chdir=80/49
fchdir=81/50 rename=82/- renameat=264/38 renameat2=316/276 mkdir=83/- mkdirat=258/34 rmdir=84/- creat=85/- link=86/-
linkat=265/37 unlink=87/- unlinkat=263/35 symlink=88/- symlinkat=266/36 readlink=89/- readlinkat=267/78 chmod=90/-
fchmodat=268/53 umask=95/166 openat=257/56 gettimeofday=96/169 time=201/- clock_gettime=228/113
clock_getres=229/114 times=100/153 getrlimit=97/163 getuid=102/174 geteuid=107/175 getgid=104/176
getegid=108/177 getgroups=115/158 getresuid=118/148 getresgid=120/150 capget=125/90 arch_prctl=158/-
set_tid_address=218/96 set_robust_list=273/99 get_robust_list=274/100 sched_getaffinity=204/123
sched_getparam=143/121 sched_getscheduler=145/120 sched_get_priority_max=146/125 sched_get_priority_min=147/126
getpriority=140/141 getcpu=309/168 rseq=334/293 membarrier=324/283 getrandom=318/278 timerfd_create=283/85
timerfd_settime=286/86 timerfd_gettime=287/87 eventfd=284/- eventfd2=290/19 epoll_create=213/- epoll_create1=291/20
epoll_ctl=233/21 epoll_wait=232/- epoll_pwait=281/22 utime=132/- utimes=235/-
copy_file_range=326/285 restart_syscall=219/128 mlock=149/228 munlock=150/229
"""
#: Allowed with some of their arguments: see `_rules`.
_PARTLY = """
clone=56/220 futex=202/98 prctl=157/167 prlimit64=302/261 fcntl=72/25 ioctl=16/29 madvise=28/233 mmap=9/222
fchmod=91/52 utimensat=280/88
"""
#: Does nothing and says that it has: locks of files, advice on the page cache.
_PRETENDED = """
flock=73/32 fadvise64=221/223
"""
#: The library does without where a kernel has none.
_ABSENT = """
statx=332/291
clone3=435/435 futex_waitv=449/449 sysinfo=99/179 get_mempolicy=239/236 set_mempolicy=238/237 mbind=237/235
preadv2=327/286 pwritev2=328/287 epoll_pwait2=441/441 statfs=137/43 fstatfs=138/44 sched_setaffinity=203/122
openat2=437/437 close_range=436/436 mlock2=325/284 getrusage=98/165
sendfile=40/71 futimesat=261/-
"""
_NO_ATTRIBUTES = """
getxattr=191/8 lgetxattr=192/9 fgetxattr=193/10 listxattr=194/11 llistxattr=195/12 flistxattr=196/13 setxattr=188/5
lsetxattr=189/6 fsetxattr=190/7
"""


class Machine(NamedTuple):
    """AUDIT_ARCH, and the numbers of the calls that the sandbox itself makes."""

    architecture: int
    seccomp: int
    capset: int
    pivot_root: int
    clone: int


ARCHITECTURES = {
    "x86_64": Machine(0xC000003E, 317, 126, 155, 56),
    "aarch64": Machine(0xC00000B7, 277, 91, 41, 220),
}
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4  # struct seccomp_data
_FILTER_MODE = 1

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


class UnknownMachine(RuntimeError):
    """No list of system calls for this machine."""


def machine() -> Machine:
    """Of this computer. Raises `UnknownMachine`."""
    if (name := platform.machine()) not in ARCHITECTURES or struct.calcsize("P") != 8:
        raise UnknownMachine(f"{name}: the sandbox knows the system calls of {' and '.join(ARCHITECTURES)} alone")
    return ARCHITECTURES[name]


def numbers(table: str) -> dict[str, int]:
    """name -> number on this machine."""
    column = list(ARCHITECTURES).index(platform.machine())
    pairs = (entry.split("=") for entry in table.split())
    return {name: int(both.split("/")[column]) for name, both in pairs if both.split("/")[column] != "-"}


def all_numbers() -> dict[str, int]:
    """name -> number on this machine, of all calls that the lists name."""
    tables = (_ALLOWED, _PARTLY, _PRETENDED, _ABSENT, _NO_ATTRIBUTES)
    return {name: number for table in tables for name, number in numbers(table).items()}


def _argument(place: int) -> Instruction:
    return _LOAD, 0, 0, 16 + 8 * place  # its low half: both architectures are little-endian


def _error(number: int) -> Instruction:
    return _RETURN, 0, 0, _ERROR | number


_PASS: Instruction = (_RETURN, 0, 0, _ALLOW)


def _one_of(
    place: int, values: list[int], otherwise: Instruction, first: list[Instruction] | None = None
) -> list[Instruction]:
    """Allowed if an argument is one of ``values``; ``first`` changes it before."""
    tests = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [_argument(place), *(first or []), *tests, otherwise, _PASS]


def _rules() -> dict[str, list[Instruction]]:
    # CLONE_VM | CLONE_THREAD, and neither a namespace (CLONE_NEW...) nor CLONE_PIDFD, PTRACE, VFORK, PARENT.
    thread, refused = 0x10100, 0x7E020000 | 0x1000 | 0x2000 | 0x4000 | 0x8000 | 0x80
    flags = [_argument(0), (_ANY_BIT, 2, 0, refused), (_AND, 0, 0, thread), (_EQUAL, 1, 0, thread)]
    clone = [*flags, _error(errno.EPERM), _PASS]
    # A futex that is not private is found through the file that its page is of. A thread's end is waited for with one:
    # EAGAIN makes that wait look again.
    futex = [
        _argument(1),
        (_ANY_BIT, 6, 0, 128),
        (_AND, 0, 0, 127),
        (_EQUAL, 5, 0, 0),  # FUTEX_WAIT
        (_EQUAL, 4, 0, 9),  # FUTEX_WAIT_BITSET
        (_EQUAL, 4, 0, 1),  # FUTEX_WAKE
        (_EQUAL, 3, 0, 10),  # FUTEX_WAKE_BITSET
        _error(errno.ENOSYS),
        _PASS,
        _error(errno.EAGAIN),
        _error(0),
    ]
    # Locks of files: pretended (F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW).
    kept = [0, 1, 2, 3, 4, 1030]  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
    locks = [6, 7, 37, 38]
    tests = [(_EQUAL, len(kept) + len(locks) - at, 0, value) for at, value in enumerate(kept)]
    tests += [(_EQUAL, len(locks) - at + 1, 0, value) for at, value in enumerate(locks)]
    # An eventfd, a timerfd and an epoll are one file of the whole kernel, in no file system that is read-only: what has
    # no name keeps its times and rights (sendfile, which sets one of its times, is absent). The name: both halves of
    # its address.
    times = [
        _argument(1),
        (_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, 16 + 8 + 4),
        (_EQUAL, 3, 0, 0),
        _argument(3),
        (_ANY_BIT, 1, 0, 0x1000),  # AT_EMPTY_PATH
        _PASS,
        _error(errno.EPERM),
    ]
    return {
        "fchmod": [_error(errno.EPERM)],
        "utimensat": times,
        "clone": clone,
        "futex": futex,
        "fcntl": [_argument(1), *tests, _error(errno.EINVAL), _PASS, _error(0)],
        "prctl": _one_of(0, [15, 16, 3, 0x53564D41], _error(errno.EPERM)),  # names of threads and of memory, dumpable
        "prlimit64": _one_of(0, [0], _error(errno.EPERM)),  # its own
        "ioctl": _one_of(1, [0x5401, 0x5413, 0x5421, 0x5450, 0x5451], _error(errno.ENOTTY)),
        # Neither pages shared with others (MADV_MERGEABLE) nor pages out (MADV_COLD, MADV_PAGEOUT).
        "madvise": _one_of(2, [0, 1, 2, 3, 4, 8, 10, 11, 13, 14, 15, 16, 17, 18, 19], _error(errno.EINVAL)),
        "mmap": [_argument(3), (_ANY_BIT, 0, 1, 0x40000), _error(errno.ENOMEM), _PASS],  # MAP_HUGETLB: one pool for all
    }


def program() -> bytes:
    """The filter, as struct sock_filter."""
    architecture = machine().architecture
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000),  # x32 calls have the same AUDIT_ARCH
        (_RETURN, 0, 0, _KILL),
    ]
    rules = _rules()
    answers: list[tuple[str, Instruction]] = [
        (_ALLOWED, _PASS),
        (_PRETENDED, _error(0)),
        (_ABSENT, _error(errno.ENOSYS)),
        (_NO_ATTRIBUTES, _error(errno.EOPNOTSUPP)),
    ]
    for name, number in numbers(_PARTLY).items():
        code += [(_EQUAL, 0, len(rules[name]), number), *rules[name]]
    for table, answer in answers:
        for number in numbers(table).values():
            code += [(_EQUAL, 0, 1, number), answer]
    code.append(_error(errno.EPERM))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def confine(code: bytes) -> None:
    """From now on this process and its threads make no call but those of a `program`. Needs no_new_privs. Raises
    `KernelRefused`.
    """
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    given = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    done = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(machine().seccomp), ctypes.c_long(_FILTER_MODE), ctypes.c_long(0), ctypes.byref(given)
    )
    if done != 0:
        raise KernelRefused(ctypes.get_errno(), "seccomp(SECCOMP_SET_MODE_FILTER): the kernel has no filters")
    prctl(3, what="prctl")  # the filter is in force and lets through what it should
