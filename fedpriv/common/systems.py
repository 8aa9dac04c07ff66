"""What differs between operating systems, in one file: locks, memory, signals.

Linux has all of it. On macOS memory is counted in bytes. On Windows files are locked by the C library, and there are
neither limits of resources nor most signals: simulations run, nodes and the guard need WSL.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def _there(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


#: Modules of the standard library; None where the system has none.
fcntl, resource, msvcrt = (_there(name) for name in ("fcntl", "resource", "msvcrt"))
#: To open a file without waiting for what is none, and without other ends of lines.
AS_IT_IS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
#: To open a file and not what a link leads to.
ITSELF = getattr(os, "O_NOFOLLOW", 0)
#: Number of the signal of a reader that has gone.
BROKEN_PIPE = getattr(signal, "SIGPIPE", 13)


def lock(file: Any, shared: bool = False) -> None:
    """Locks an open file for this process. Raises OSError where another one holds it. shared: beside other shared locks
    (on Windows none is needed: what is open there is not deleted).
    """
    if fcntl is not None:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    elif not shared:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


def unlock(file: Any) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def cores(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """CPU cores that this process may use: those of its affinity, and at most the quota of its control groups, rounded
    up. A batch job or a container has fewer than its machine.

    Args:
        groups: The file that names the process's groups (cgroup v1 and v2).
        mount: The folder of all groups.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    count: float = len(affinity(0)) if affinity else os.cpu_count() or 1
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, kinds, path = line.split(":", 2)
        if kinds and "cpu" not in kinds.split(","):
            continue
        root = mount / kinds if kinds else mount
        group = root / path.lstrip("/")
        for folder in (root, *(one for one in (group, *group.parents) if one.is_relative_to(root))):
            if (quota := _quota(folder)) is not None:
                count = min(count, quota)
    return max(1, math.ceil(count))


def _quota(group: Path) -> float | None:
    """CPU seconds that a control group may use in a second; None: no limit."""
    try:
        if (group / "cpu.max").is_file():  # v2
            words = (group / "cpu.max").read_text().split()
        else:
            words = [(group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]
        return float(words[0]) / float(words[1]) if words[0] not in ("max", "-1") else None
    except (OSError, ValueError, IndexError):
        return None


def peak_memory_mib() -> int | None:
    """The most memory that this process has had, in MiB; None where the system does not say."""
    if resource is None:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) // (2**20 if sys.platform == "darwin" else 2**10)
