"""What differs between operating systems, in one file: locks, memory, signals.

Linux has all of it. On macOS memory is counted in bytes. On Windows files are locked by the C library, and there are
neither limits of resources nor most signals: simulations run, nodes and the guard need WSL.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
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
#: Number of the signal of a reader that has gone.
BROKEN_PIPE = getattr(signal, "SIGPIPE", 13)


def lock(file: Any) -> None:
    """Locks an open file for this process. Raises OSError where another one holds it."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


def unlock(file: Any) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def peak_memory_mib() -> int | None:
    """The most memory that this process has had, in MiB; None where the system does not say."""
    if resource is None:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) // (2**20 if sys.platform == "darwin" else 2**10)
