"""A control group (cgroup v2) for each start of an app, where the machine gives one.

It counts what the limits of a process do not: the kernel's own memory for an app, and its threads at the moment they
start. Where memory is short, the app ends and nothing else. Groups can be made by root, and by a user whose service or
session has them (systemd: `Delegate=memory pids`, `DelegateSubgroup=`).
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

CONTROLLERS = ("memory", "pids")
#: Threads beyond the app's own limit, at which its keeper ends it.
SPARE = 16
#: Bytes for the kernel's own records of an app.
KERNEL = 64 << 20


def counts_threads(release: str = "") -> bool:
    """Whether RLIMIT_NPROC counts the threads of one user namespace, and so of one start (Linux 5.14). Before, it
    counts all processes of the machine's user: a limit would tell one start of others, and none is set.
    """
    version = re.match(r"(\d+)\.(\d+)", release or platform.release())
    return version is not None and (int(version[1]), int(version[2])) >= (5, 14)


def in_words() -> str:
    if parent() is not None:
        return (
            "Each start of an app has a control group that limits its memory, the kernel's for it too, and its threads."
        )
    exact = counts_threads() and os.getuid() != 0
    return (
        "This machine gives no control group: an app's memory, files, threads and signals are limited each by itself, "
        "and what the kernel needs for it is not limited as a sum. Its threads are limited "
        + (
            "as they start."
            if exact
            else "by a look 20 times a second: as root, and before Linux 5.14, no limit holds."
        )
    )


@cache
def parent(process: str = "/proc/self") -> Path | None:
    """The folder in which groups can be made: of this process's own group, or the one above; None: there is none."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path(process, "cgroup").read_text().splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::")).strip("/")
        mounts = (line.split(" - ") for line in Path(process, "mountinfo").read_text().splitlines())
        mounted = next(Path(before.split()[4]) for before, after in mounts if after.startswith("cgroup2 "))
        for folder in (mounted / own, (mounted / own).parent):
            with suppress(OSError):
                enabled = folder / "cgroup.subtree_control"
                if not {*CONTROLLERS} <= {*enabled.read_text().split()}:
                    enabled.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
                (place := folder / f"fedpriv-{secrets.token_hex(8)}").mkdir()
                place.rmdir()
                return folder
    return None


@contextmanager
def group(memory: int, processes: int) -> Iterator[int | None]:
    """A descriptor of a new group: who writes 0 to it enters, and no app can leave. memory: bytes."""
    folder = parent()
    if folder is None:
        yield None
        return
    place = folder / f"fedpriv-{secrets.token_hex(8)}"
    place.mkdir()
    try:
        (place / "memory.max").write_text(str(memory + KERNEL))
        (place / "pids.max").write_text(str(processes + SPARE))
        with suppress(OSError):  # where there is swap
            (place / "memory.swap.max").write_text("0")
        with open(place / "cgroup.procs", "wb", buffering=0) as entrance:
            yield entrance.fileno()
    finally:
        for _ in range(100):  # its process has ended, and the kernel may still be at it
            with suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.01)
