"""Calls of the Linux kernel that Python 3.11 does not offer: namespaces, mounts, capabilities, Landlock.

Numbers of calls that are the same on every architecture since Linux 5 stand here; the others in `syscalls`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_quietly = ctypes.PyDLL(None, use_errno=True)
_quietly.syscall.restype = None

#: linux/sched.h
NEW_MOUNTS, NEW_CGROUPS, NEW_NAMES, NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEW_USERS, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
#: Of a shard too: nothing of an earlier one is in them.
CHANGING = NEW_MOUNTS | NEW_NETWORK | NEW_IPC | NEW_NAMES | NEW_CGROUPS
_PARENT, _SET_TID, _CLEAR_TID = 0x8000, 0x1000000, 0x200000
#: linux/mount.h
READ_ONLY, NO_SETUID, NO_DEVICES, NO_PROGRAMS = 1, 2, 4, 8
_PRIVATE, _RECURSIVE, _DETACH = 1 << 18, 1 << 14, 2
_MOVE_FROM_FD = 4  # MOVE_MOUNT_F_EMPTY_PATH
_CLONE_TREE, _AT_RECURSIVE, _AT_EMPTY_PATH, _AT_FDCWD = 1, 0x8000, 0x1000, -100
#: The same on x86_64 and aarch64.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
#: linux/prctl.h
_SET_DEATH_SIGNAL, _DROP_BOUND, _SET_SECUREBITS, _NO_NEW_PRIVILEGES, _AMBIENT = 1, 24, 28, 38, 47


class KernelRefused(OSError):
    """A call failed; its text names the call and what it was about."""


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise KernelRefused(number, f"{what}: {os.strerror(number)}")
    return result


def call(number: int, *given: int | bytes | None, what: str) -> int:
    """A system call by its number. Raises `KernelRefused`."""
    values = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in given]
    return _checked(_libc.syscall(ctypes.c_long(number), *values), what)


def prctl(option: int, *given: int, what: str) -> int:
    padded = (*given, 0, 0, 0, 0)[:4]
    return _checked(_libc.prctl(option, *map(ctypes.c_ulong, padded)), what)


def end_with_parent() -> None:
    """This process is killed when the thread that forked it ends."""
    prctl(_SET_DEATH_SIGNAL, 9, what="prctl(PR_SET_PDEATHSIG)")


def fork_for_parent(number: int, namespaces: int) -> bool:
    """Forks: a child of this process's parent, in new ``namespaces``, and the first of a new one of processes. True in
    the child. This process learns nothing of it, not even its number: it would tell the next fork how many threads the
    last one started. number: of clone. This process must have one thread. Raises `KernelRefused`.
    """
    here, tid = os.getpid(), _own_tid()
    # Like fork: the C library's own record of the child's number is set, and cleared at its end.
    flags = namespaces | _PARENT | _SET_TID | _CLEAR_TID | signal.SIGCHLD
    last = (tid, 0) if number == 56 else (0, tid)  # x86_64 has the thread-local storage last
    given = [ctypes.c_long(value) for value in (number, flags, 0, 0, *last)]
    ctypes.pythonapi.PyOS_BeforeFork()
    ctypes.set_errno(0)
    _quietly.syscall(*given)
    if os.getpid() != here:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return True
    error = ctypes.get_errno()
    _quietly.syscall(ctypes.c_long(-1), *given[1:])  # overwrites what the call before left on the stack
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if error:
        raise KernelRefused(error, f"clone into new namespaces: {os.strerror(error)}")
    return False


def _own_tid() -> int:
    """The address at which the C library keeps the number of this thread."""
    found = ctypes.c_ulong()
    _checked(_libc.prctl(40, ctypes.byref(found), 0, 0, 0), "prctl(PR_GET_TID_ADDRESS)")
    return found.value


def unshare(flags: int, what: str) -> None:
    _checked(_libc.unshare(flags), f"new namespaces ({what})")


def own_users(uid: int, gid: int, inner: int) -> None:
    """In a user namespace just made by a process of ``uid`` and ``gid``: both are ``inner`` inside."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inner} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{inner} {gid} 1")


# --- mounts -------------------------------------------------------------------------------------------------------


def private_mounts() -> None:
    """No mount of this namespace shows in another one."""
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE | _RECURSIVE), None), "making mounts private")


def mount_tmpfs(target: str, flags: int, options: str) -> None:
    done = _libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", ctypes.c_ulong(flags), options.encode())
    _checked(done, f"mounting a tmpfs at {target}")


def remount_read_only(target: str, flags: int) -> None:
    again = 32 | 4096 | READ_ONLY | flags  # MS_REMOUNT | MS_BIND
    _checked(_libc.mount(None, os.fsencode(target), None, ctypes.c_ulong(again), None), f"making {target} read-only")


def tree_of(path: str, flags: int) -> int:
    """A descriptor of a copy of what is mounted at and below ``path``, with ``flags`` set everywhere in it."""
    how = _CLONE_TREE | os.O_CLOEXEC | _AT_RECURSIVE
    tree = call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), how, what=f"open_tree({path})")
    wanted = struct.pack("QQQQ", flags, 0, _PRIVATE, 0)
    try:
        call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, wanted, 32, what=f"mount_setattr({path})")
    except BaseException:
        os.close(tree)
        raise
    return tree


def place_tree(tree: int, target: str) -> None:
    """Mounts what `tree_of` gave, and closes it."""
    try:
        call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_FROM_FD, what=f"mounting at {target}")
    finally:
        os.close(tree)


def unmount(target: str) -> None:
    _checked(_libc.umount2(os.fsencode(target), _DETACH), f"unmounting {target}")


def set_host_name(name: bytes) -> None:
    _checked(_libc.sethostname(name, len(name)), "sethostname")


# --- rights -------------------------------------------------------------------------------------------------------


def drop_rights(capset: int) -> None:
    """This process has no capability, and gets none by any program. capset: the number of that call."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text()) if Path("/proc/sys").is_dir() else 63
    for capability in range(last + 1):
        if _libc.prctl(_DROP_BOUND, ctypes.c_ulong(capability), 0, 0, 0) < 0 and ctypes.get_errno() != 22:
            _checked(-1, f"dropping capability {capability}")
    prctl(_SET_SECUREBITS, 0b11101111, what="prctl(PR_SET_SECUREBITS)")
    prctl(_AMBIENT, 4, what="prctl(PR_CAP_AMBIENT_CLEAR_ALL)")
    call(capset, struct.pack("Ii", 0x20080522, 0), bytes(24), what="capset")
    prctl(_NO_NEW_PRIVILEGES, 1, what="prctl(PR_SET_NO_NEW_PRIVS)")


def landlock(writable: list[str]) -> int:
    """A second wall behind the read-only mounts: from now on nothing is written outside ``writable``, no TCP port is
    bound or reached, and no abstract socket or process of others. Returns the version of the kernel's Landlock, 0
    where it has none. Needs no_new_privs.
    """
    version = _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1))
    if version < 1:
        return 0
    files = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    rules = struct.pack("QQQ", files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = call(_LANDLOCK_CREATE, rules, size, 0, what="landlock_create_ruleset")
    reading = 0b1101  # execute (of libraries: mapping is no execution), read files, read folders
    for path, rights in [("/", reading), ("/dev/null", 0b110), *((path, files) for path in writable)]:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, place), 0, what=f"landlock_add_rule({path})")
        os.close(place)
    call(_LANDLOCK_RESTRICT, ruleset, 0, what="landlock_restrict_self")
    os.close(ruleset)
    return int(version)


def failed(told: socket.socket, error: BaseException) -> None:
    """Tells the process above why this one cannot go on."""
    with suppress(OSError):
        told.send(json.dumps({"failed": words_of(error)}).encode())


def words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]
