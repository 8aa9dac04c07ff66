"""The filter of system calls, run by an interpreter of its instructions, and by the kernel."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fedpriv.guard import syscalls

ALLOW, KILL = 0x7FFF0000, 0x80000000


def run(number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter answers: an errno, ALLOW or KILL (linux/filter.h)."""
    architecture = syscalls.machine().architecture if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, architecture, 0, *[value % 2**64 for value in (*arguments, *[0] * 6)[:6]])
    code, place, held = list(struct.iter_unpack("HBBI", syscalls.program())), 0, 0
    while True:
        kind, true, false, operand = code[place]
        place += 1
        if kind == 0x20:
            (held,) = struct.unpack_from("<I", data, operand)
        elif kind == 0x54:
            held &= operand
        elif kind == 0x06:
            return operand if operand in (ALLOW, KILL) else operand & 0xFFFF
        else:
            holds = {0x15: held == operand, 0x35: held >= operand, 0x45: held & operand != 0}[kind]
            place += true if holds else false


@pytest.fixture(params=["x86_64", "aarch64"])
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """name -> number on one architecture, of all calls that the lists name."""
    monkeypatch.setattr(syscalls.platform, "machine", lambda: request.param)
    tables = ("_ALLOWED", "_PARTLY", "_PRETENDED", "_ABSENT", "_NO_ATTRIBUTES")
    return {name: number for table in tables for name, number in syscalls.numbers(getattr(syscalls, table)).items()}


@pytest.mark.parametrize("known", ["x86_64"], indirect=True)
def test_numbers_are_the_kernels(known: dict[str, int]) -> None:
    """On x86_64, against the headers of this machine if it has them."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if header.exists():
        lines = (line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
        theirs = {line[1][5:]: int(line[2]) for line in lines}
        assert {name: theirs.get(name) for name in known} == known
    assert len(known) > 150


def test_numbers_are_named_once(known: dict[str, int]) -> None:
    assert len(set(known.values())) == len(known)


def test_what_is_not_named_is_refused(known: dict[str, int]) -> None:
    named = set(known.values())
    assert {run(number) for number in range(600) if number not in named} == {errno.EPERM}


def test_another_architecture_is_ended(known: dict[str, int]) -> None:
    assert run(known["read"]) == ALLOW
    assert run(known["read"], architecture=0x40000003) == KILL  # 32 bits
    assert run(0x40000000 + known["read"]) == KILL  # x32


THREAD = 0x3D0F00  # what the C library gives clone for a thread
FORK = 0x1200011


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone", (THREAD,), ALLOW),
        ("clone", (FORK,), errno.EPERM),
        ("clone", (0x10000,), errno.EPERM),
        ("clone", (0x100,), errno.EPERM),
        *(("clone", (THREAD | 1 << bit,), errno.EPERM) for bit in (12, 13, 14, 15, 17, 25, 26, 27, 28, 29, 30)),
        ("clone3", (), errno.ENOSYS),
        ("futex", (0, 128), ALLOW),
        ("futex", (0, 128 | 9 | 256), ALLOW),
        ("futex", (0, 0), errno.EAGAIN),
        ("futex", (0, 9 | 256), errno.EAGAIN),
        ("futex", (0, 1), 0),
        ("futex", (0, 10), 0),
        ("futex", (0, 3), errno.ENOSYS),
        ("fcntl", (0, 3), ALLOW),
        ("fcntl", (0, 1030), ALLOW),
        ("fcntl", (0, 6), 0),
        ("fcntl", (0, 38), 0),
        ("fcntl", (0, 5), errno.EINVAL),  # F_GETLK tells who holds a lock
        ("fcntl", (0, 1024), errno.EINVAL),  # F_SETLEASE
        ("fcntl", (0, 1026), errno.EINVAL),  # F_NOTIFY
        ("flock", (0, 2), 0),
        ("fchmod", (0,), errno.EPERM),
        ("utimensat", (0, 0, 1), errno.EPERM),  # of an open file
        ("utimensat", (0, 1, 1, 0x1000), errno.EPERM),
        ("utimensat", (0, 1, 1), ALLOW),
        ("utimensat", (0, 1 << 32, 1), ALLOW),
        ("getrusage", (0,), errno.ENOSYS),
        ("prctl", (15,), ALLOW),
        ("prctl", (1,), errno.EPERM),  # PR_SET_PDEATHSIG
        ("prctl", (22,), errno.EPERM),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (1,), errno.EPERM),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), errno.ENOTTY),  # TIOCSTI
        ("madvise", (0, 0, 4), ALLOW),
        ("madvise", (0, 0, 12), errno.EINVAL),  # MADV_MERGEABLE
        ("madvise", (0, 0, 21), errno.EINVAL),  # MADV_PAGEOUT
        ("mmap", (0, 0, 0, 0x22), ALLOW),
        ("mmap", (0, 0, 0, 0x40022), errno.ENOMEM),
        ("sysinfo", (), errno.ENOSYS),
        ("getxattr", (), errno.EOPNOTSUPP),
    ],
)
def test_some_arguments_are_refused(known: dict[str, int], name: str, arguments: tuple[int, ...], answer: int) -> None:
    assert run(known[name], *arguments) == answer


REFUSED = (
    *("socket", "socketpair", "connect", "pipe2", "memfd_create", "execve", "ptrace", "mount", "unshare", "setns"),
    *("bpf", "keyctl", "add_key", "userfaultfd", "io_uring_setup", "process_vm_readv", "perf_event_open", "mincore"),
    *("inotify_init1", "fanotify_init", "shmget", "msgget", "semget", "mq_open", "chroot", "pivot_root", "pidfd_open"),
    *("open_by_handle_at", "name_to_handle_at", "seccomp", "setuid", "kexec_load", "reboot", "timer_create", "swapon"),
)


@pytest.mark.parametrize("known", ["x86_64"], indirect=True)
def test_the_lists_name_none_of_these(known: dict[str, int]) -> None:
    assert not set(REFUSED) & set(known)


CALLS = """
import ctypes, json, os, sys
from fedpriv.guard import kernel, syscalls
named = {number for table in ("_ALLOWED", "_PARTLY", "_PRETENDED", "_ABSENT", "_NO_ATTRIBUTES")
         for number in syscalls.numbers(getattr(syscalls, table)).values()}
libc, out = ctypes.CDLL(None, use_errno=True), {}
kernel.drop_rights(syscalls.machine().capset)
syscalls.confine(syscalls.program())
for number in range(470):
    if number not in named and number not in (335, 336):  # traps of uprobes: the kernel ends who calls them otherwise
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
        out[number] = ctypes.get_errno() if result == -1 else 0
os.write(1, json.dumps(sorted(set(out.values()))).encode())
os.write(1, json.dumps(len(out)).encode())
"""


def test_the_kernel_refuses_what_is_not_named() -> None:
    """Every other number that a kernel has: all answer EPERM, and none reaches the kernel's own check of its
    arguments.
    """
    done = subprocess.run([sys.executable, "-c", CALLS], check=True, capture_output=True, text=True).stdout
    kinds, _, number = done.partition("]")
    assert kinds + "]" == f"[{errno.EPERM}]" and int(number) > 280


def test_an_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls.platform, "machine", lambda: "riscv64")
    with pytest.raises(syscalls.UnknownMachine, match="riscv64"):
        syscalls.machine()


# --- landlock, by itself: behind the mounts of a sandbox it is never the one that says no ---------


CODE = """
import os, socket, sys
from fedpriv.guard import kernel
kernel.prctl(38, 1, what="no_new_privs")
version = kernel.landlock([sys.argv[1] + "/inside"])
def can(work):
    try:
        work()
    except PermissionError:
        return False
    except ConnectionRefusedError:
        return True
    return True
def write(name):
    with open(f"{sys.argv[1]}/{name}", "w") as file:
        file.write("x")
with open(sys.argv[1] + "/read") as file:
    file.read()
with open("/dev/null", "w") as file:
    file.write("x")
print(version, can(lambda: write("inside/a")), can(lambda: write("outside")), can(lambda: os.mkdir(sys.argv[1] + "/b")),
      can(lambda: socket.create_connection(("127.0.0.1", 9))), can(lambda: os.unlink(sys.argv[1] + "/read")))
"""


def test_landlock_lets_write_in_its_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "read").write_text("x")
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], check=True, capture_output=True, text=True)
    version, inside, outside, folder, tcp, removed = done.stdout.split()
    if int(version):  # a kernel without it relies on the mounts and the filter
        assert [inside, outside, folder, removed] == ["True", "False", "False", "False"]
        assert tcp == str(int(version) < 4)
