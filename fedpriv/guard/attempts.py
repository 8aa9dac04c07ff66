"""What an app may ask of the kernel, tried in a shard: `fedpriv.guard.probe` compares what came of it.

A machine whose sandbox has a hole is not harmed: times, rights and lengths are set to what they are, names are made and
not replaced, and signals to others are such as nobody minds. What time tells is not looked for
(docs/guard_sandbox.md): of clocks it is noted that they answer. Nor is the number that the kernel gives to a file
system in memory: it tells of mounts, and no app can mount.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import stat
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from fedpriv.guard import syscalls

#: name:arguments of a call, | other arguments; letters stand for values (`_Shard.values`). These change no file.
READING = """
fstat:f,b stat:p,b|n,b lstat:p,b|n,b newfstatat:D,p,b,0|D,n,b,0|f,e,b,0x1000 statx:D,p,0,0x7ff,b|f,e,0x1000,0x7ff,b
access:p,M faccessat:D,p,M faccessat2:D,p,M,0x200 readlink:p,b,64 readlinkat:D,p,b,64|f,e,b,64 getdents64:f,b,4096
lseek:f,0,w read:f,b,64 pread64:f,b,64,0 readv:f,v,1 preadv:f,v,1,0,0 preadv2:f,v,1,0,0,R poll:P,1,0 ppoll:P,1,z,0,0
select:256,A,0,0,z pselect6:256,A,0,0,z,0 open:p,o,0 openat:D,p,o,0 openat2:D,p,b,24 fcntl:f,c,0x2800 ioctl:f,I,b
statfs:p,b fstatfs:f,b getxattr:p,x,b,64 lgetxattr:p,x,b,64 fgetxattr:f,x,b,64 listxattr:p,b,64 llistxattr:p,b,64
flistxattr:f,b,64 epoll_ctl:E,N,f,b epoll_wait:E,b,8,0 epoll_pwait:E,b,8,0,0,8 epoll_pwait2:E,b,8,z,0,8 flock:f,M
timerfd_gettime:f,b timerfd_settime:f,0,z,b fadvise64:f,0,0,w mmap:0,4096,m,F,f,0 madvise:a,4096,K mprotect:a,4096,m
mremap:a,4096,8192,1 msync:a,4096,w munmap:a,4096 mlock:a,4096 munlock:a,4096 mlock2:a,4096,0 mbind:a,4096,0,0,0,0
futex:a,u,0,z,0,0 futex_waitv:b,0,0,0,0 getcwd:b,4096 chdir:p fchdir:f umask:63 dup:f dup2:f,250 dup3:f,251,0 close:252
close_range:253,255,0 getpid: gettid: getppid: getpgrp: getpgid:i getsid:i getuid: geteuid: getgid: getegid:
getgroups:64,b getresuid:b,b,b getresgid:b,b,b capget:h,b uname:b getrlimit:r,b prlimit64:i,r,0,b getrusage:w,b
getpriority:w,i getitimer:w,b setitimer:w,z,b alarm:0 sysinfo:b sched_getaffinity:i,128,b sched_setaffinity:0,128,b
sched_getparam:i,b sched_getscheduler:i sched_get_priority_max:w sched_get_priority_min:w sched_yield: getcpu:b,b,0
get_mempolicy:b,0,0,0,0 set_mempolicy:0,0,0 get_robust_list:i,b,b set_robust_list:b,24 set_tid_address:b rseq:b,32,0,0
rt_sigaction:s,0,b,8 rt_sigprocmask:0,0,b,8 rt_sigpending:b,8 sigaltstack:0,b rt_sigtimedwait:z,b,z,8 rt_sigsuspend:z,8
pause: kill:i,g tgkill:1,1,s wait4:i,b,1,0 waitid:w,0,b,5,0 clock_gettime:k,b clock_getres:k,b clock_nanosleep:k,0,z,b
nanosleep:z,b gettimeofday:b,0 time:0 times:b getrandom:b,64,0 prctl:y,b,0,0,0 arch_prctl:Y,b membarrier:B,0,0 brk:0
restart_syscall: eventfd:1 eventfd2:1,w epoll_create:1 epoll_create1:0 timerfd_create:k,0 clone:j,0,0,0,0 clone3:b,0
"""
CHANGING = """
openat:D,n,O,0o600 open:n,O,0o600 creat:n,0o600 mkdir:n,0o700 mkdirat:D,n,0o700 symlink:p,q symlinkat:p,D,q link:p,q
linkat:D,p,D,q,0|f,e,D,q,0x1000 rename:p,= renameat:D,p,D,= renameat2:D,p,D,=,w rmdir:n unlink:n unlinkat:D,n,0
truncate:p,S ftruncate:f,S fallocate:f,1,0,1|f,0x40,0,1 chmod:p,X fchmod:f,X fchmodat:D,p,X utime:p,0 utimes:p,0|p,t
futimesat:D,p,t|f,0,t utimensat:D,p,t,0|D,p,0,0x100|f,0,t,0|f,0,0,0|f,e,t,0x1000 setxattr:p,x,b,0,0 lsetxattr:p,x,b,0,0
fsetxattr:f,x,b,0,0 write:f,b,W pwrite64:f,b,W,0 writev:f,V,1 pwritev:f,V,1,0,0 pwritev2:f,V,1,0,0,R sendfile:T,f,0,64
copy_file_range:f,0,T,0,64,0|T,0,f,0,0,0 fsync:f fdatasync:f
"""
#: Letter: what stands for it, one after another.
NUMBERS = """
B 0 1 2 4 8 16 32 64 128 256 512; D -100; F 1 2 3 0x21 0x22 0x40022; K 0..25; M 0..7; N 1..3; O 0x42 0xc1; R 0 1 8;
I 0x5401 0x5413 0x541b 0x5421 0x5450..0x5452 0x80045200 0x80086601 0x80087601; Y 0x1003 0x1004; g 0 18 23 28; i -1..2;
c 0..16 36..38 1024..1040; k 0..11; m 1 3; r 0..15; s 1..64; u 0..13 128..141 256..269 384..397; w 0..4; y 0..79;
j 0x11 0x91 0x411 0x811 0x1011 0x2011 0x4011 0x8011 0x20011 0x2000011 0x4000011 0x8000011 0x10000011 0x20000011
"""
if hasattr(os, "O_DIRECTORY"):  # of Windows, which has none, no app is confined
    HOW = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_PATH, os.O_DIRECTORY, os.O_TMPFILE | os.O_RDWR)
    FLAGS = (0, os.O_APPEND, os.O_NOFOLLOW, os.O_NOATIME, os.O_DIRECT, os.O_ASYNC)
    #: The devices that give random numbers.
    CHANCE = (os.makedev(1, 8), os.makedev(1, 9))
#: Not tried: they end the shard, as every shard ends, or need a frame that the kernel made.
ENDING = frozenset({"exit", "exit_group", "rt_sigreturn"})
OPENING = ("open", "creat", "dup", "eventfd", "epoll_create", "timerfd_create")
#: What they say is time, or chance, or an address of this process: it is noted whether they say it.
CLOCKS = """
clock_gettime gettimeofday time times getcpu getrandom timerfd_gettime timerfd_settime getitimer setitimer mmap mremap
brk arch_prctl get_robust_list sigaltstack rt_sigaction set_tid_address
""".split()  # noqa: SIM905
#: Made in folders; seconds after which what waits for a signal gets one.
NEW, TICK = "fedpriv-probe", 0.002
UNTOUCHED = b"\1" * 4096
#: What a shard notes of time, in milliseconds; seconds that another one lasts.
CLOCK, LAST = "time gap", 1.0
#: Waiting signals at most, more than a user may have; threads at most.
SIGNALS, THREADS = 200_000, 24
Values = list[tuple[str, Any]]


class _Shard:
    """A shard's attempts, and what they need. data: the place of its data; mark: in the names of what it makes."""

    def __init__(self, data: str, mark: str) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.syscall.restype = ctypes.c_long
        self.numbers, self.buffer = syscalls.all_numbers(), ctypes.create_string_buffer(4096)
        self.born = min(os.stat(path).st_ctime_ns for path in ("/tmp", data))
        self.mark, self.paths = mark, list(_paths())
        held = {number: "held" for number in range(256) if _is_open(number)}
        self.own = os.open(f"/tmp/{NEW}-own", os.O_CREAT | os.O_RDWR, 0o600)
        self.epoll = self.raw("epoll_create1", 0)[0]
        made = self.raw("eventfd2", 0, os.O_NONBLOCK)[0], self.raw("timerfd_create", 1, os.O_NONBLOCK)[0]
        held |= dict(zip((self.own, self.epoll, *made), ("own", "epoll", "eventfd", "timerfd"), strict=True))
        for how, path in itertools.product((os.O_RDONLY, os.O_RDWR, os.O_PATH), self.paths):
            if len(held) < 240 and (how != os.O_RDWR or path.startswith("/dev/")):
                with suppress(OSError):
                    held[os.open(path, how | os.O_NONBLOCK | os.O_NOFOLLOW)] = f"{path} {how:#x}"
        self.held: Values = [(f"{number} ({name})", number) for number, name in held.items()] + [("-1", -1)]
        self.values = self._values()

    def raw(self, name: str, *given: Any) -> tuple[int, int]:
        """A system call's result, and its error."""
        ctypes.set_errno(0)
        values = [ctypes.c_long(value) if isinstance(value, int) else value for value in given]
        return int(self.libc.syscall(ctypes.c_long(self.numbers[name]), *values)), ctypes.get_errno()

    def _values(self) -> dict[str, Values]:
        """Letter -> what stands for it in `READING` and `CHANGING`; what depends on the call's file is a function."""
        folders = [path for path in self.paths if os.path.isdir(path) and not os.path.islink(path)]
        one_of_each = {os.stat(folder).st_dev: folder for folder in reversed(folders)}
        found: dict[str, Values] = {
            letter: [(hex(number), number) for word in words for number in _numbers(word)]
            for letter, *words in map(str.split, NUMBERS.split(";"))
        }
        place = ctypes.addressof(self.buffer)
        fixed = {"A": b"\xff" * 32, "E": self.epoll, "T": self.own, "b": self.buffer, "e": b"", "x": b"user.x"}
        fixed |= {"h": struct.pack("Ii", 0x20080522, 0), "z": bytes(64), "=": lambda target: target}
        fixed |= {"v": struct.pack("PN", place, 64), "V": struct.pack("PN", place, 0)}
        # As it is: by this no file changes that a hole leads to.
        fixed |= {
            "S": lambda target: os.stat(target).st_size,
            "X": lambda target: stat.S_IMODE(os.stat(target).st_mode),
        }
        fixed |= {"W": lambda target: int(target == self.own or stat.S_ISCHR(os.stat(target).st_mode))}
        fixed |= {"t": lambda target: struct.pack("4Q", *[int(os.stat(target).st_mtime), 0] * 2)}
        found |= {letter: [("", value)] for letter, value in fixed.items()}
        for letter, paths in (("p", self.paths), ("n", folders), ("q", [*one_of_each.values()])):
            ends = ("", "") if letter == "p" else (f"/{NEW}", f"/{NEW}-{self.mark}")
            found[letter] = [(path + ends[0], (path + ends[1]).encode()) for path in paths]
        found["o"] = [(f"{how | flag:#x}", how | flag) for how in HOW for flag in FLAGS]
        found["f"] = self.held
        found["P"] = [(name, struct.pack("ihh", number, 0x7FFF, 0)) for name, number in self.held]
        files = [(name, number, 1) for name, number in self.held if name.endswith(" 0x0)")]
        found["a"] = [
            (f"page of {name}", lambda _, number=number, shared=shared: self._page(number, shared))
            for name, number, shared in [("its own", -1, 0x22), *files]
        ]
        return found

    def _page(self, descriptor: int, flags: int) -> int:
        """The address of new pages: of a file, shared and to be read, or of its own."""
        return self.raw("mmap", 0, 16384, 1 if descriptor >= 0 else 3, flags, descriptor, 0)[0]

    def attempts(self, table: str) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
        """Label, name and arguments of each."""
        for entry in table.split():
            name, _, forms = entry.partition(":")
            if name not in self.numbers:
                continue  # this architecture has none
            for form in forms.split("|"):
                letters = [letter for letter in form.split(",") if letter]
                fixed = [self.values.get(letter) or [("", int(letter, 0))] for letter in letters]
                for chosen in itertools.product(*fixed):
                    label = " ".join(["", *(text for text, _ in chosen if text)])
                    yield name + label, name, tuple(value for _, value in chosen)

    def attempt(self, name: str, given: tuple[Any, ...]) -> int:
        """What came of it, as a number that is the same for the same."""
        self.buffer.raw = UNTOUCHED
        target = next((value for value in given if isinstance(value, int | bytes) and value != -100), -1)
        try:
            values = [value(target) if callable(value) else value for value in given]
        except (OSError, ValueError):
            return 0  # nothing is there, which other attempts show: it must not be changed to a guess
        if name in ("poll", "ppoll"):  # its answer is where the question was
            self.buffer[: len(given[0])] = given[0]
            values[0] = self.buffer
        if name in ("pause", "rt_sigsuspend"):
            signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        result, error = self.raw(name, *values)
        if name in ("pause", "rt_sigsuspend"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() != 1:  # a process of its own, where the filter would let one be
            os._exit(0)
        if name.startswith(OPENING) or (name == "fcntl" and given[1] in (0, 1030)):
            if result > 2 and result not in {number for _, number in self.held}:
                os.close(result)
            result = min(result, 0)
        with suppress(OSError, IndexError, TypeError):
            if name.startswith(("read", "pread")) and os.fstat(given[0]).st_rdev in CHANCE:
                return error
        if name in CLOCKS:
            return zlib.crc32(f"{result >= 0} {error}".encode())
        return zlib.crc32(self._shown(), zlib.crc32(f"{result} {error}".encode()))

    def _shown(self) -> bytes:
        """The buffer; a time since this shard began, or of a file system in memory, in it is none."""
        written = self.buffer.raw
        if written == UNTOUCHED:
            return b""
        words = list(struct.unpack_from("40q", written))
        if 0 < words[0] < 256:  # st_dev: of no device
            words[0] = 1
        for place, word in enumerate(words[:-1]):
            if self.born <= word * 10**9 + words[place + 1] < 1 << 62:
                words[place] = words[place + 1] = 1
        return struct.pack("40q", *words) + written[320:]

    def counts(self) -> Iterator[tuple[str, int]]:
        """How often what is counted for all processes of a user can be done, until it is refused."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [40])
        threading.stack_size(1 << 18)

        def start() -> bool:
            with suppress(RuntimeError):
                threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
                return True
            return False

        for label, done, most in (
            ("waiting signals", lambda: self.raw("tgkill", 1, 1, 40)[0] == 0, SIGNALS),
            ("threads", start, THREADS),
        ):
            yield label, sum(1 for _ in itertools.takewhile(lambda _, done=done: done(), range(most)))  # type: ignore[misc]

    def results(self, table: str, backwards: bool) -> dict[str, int]:
        """Label -> what came of it."""
        signal.signal(signal.SIGALRM, lambda *_: None)
        attempts = list(self.attempts(table))[:: -1 if backwards else 1]
        found = {label: self.attempt(name, given) for label, name, given in attempts}
        return found | dict(self.counts())


def play(role: str, answer: int, data: str) -> None:
    """In a shard: plays its part (idle, last, clock, wait, act, backwards, hold, see) and writes what it noted to
    ``answer``.
    """
    from fedpriv.guard.record import record_of

    role, _, mark = role.partition(" ")
    found: dict[str, int] = {CLOCK: round(time.monotonic() * 1000)} if role == "clock" else {}
    if role == "last":
        time.sleep(LAST)
    if role not in ("idle", "last", "clock", "wait"):
        found = _Shard(data, mark).results(READING + CHANGING * (role != "see"), role == "backwards")
    os.ftruncate(answer, 0)
    os.lseek(answer, 0, os.SEEK_SET)
    text = np.frombuffer("\n".join(found).encode(), np.uint8)
    os.write(answer, record_of([np.array([*found.values()], np.int64), text]))
    while role in ("wait", "hold"):
        time.sleep(1000)


def _numbers(word: str) -> range:
    first, _, last = word.partition("..")
    return range(int(first, 0), int(last or first, 0) + 1)


def _is_open(number: int) -> bool:
    with suppress(OSError):
        os.fstat(number)
        return True
    return False


def _paths() -> Iterator[str]:
    """All in the root's own file system; of every other one the first of each kind; some that are not there."""
    own, waiting = os.stat("/").st_dev, ["/"]
    yield from ("/", "/proc", "/proc/self/fd/0", "/sys", "/etc/passwd", "/run", "/var/tmp", "/tmp/..")
    for folder in waiting:
        inside, kinds = os.stat(folder).st_dev == own, set[int]()
        with suppress(OSError):
            for name in sorted(os.listdir(folder)):
                path = os.path.join(folder, name)
                kind = stat.S_IFMT(os.lstat(path).st_mode)
                if inside or kind not in kinds:
                    yield path
                kinds.add(kind)
                if inside and stat.S_ISDIR(kind):
                    waiting.append(path)
