"""Freed memory is kept for the next batch instead of being handed back to the system.

glibc asks the system for every block above a threshold of its own and gives it back when it is freed; training frees
and asks for the same megabytes with every batch, and the system clears each page anew. For the small CNN on 28x28
pictures that is close to half of a training step.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: The largest threshold that glibc takes; larger blocks still come from the system.
LARGEST_KEPT = 32 * 2**20
#: Free memory at the end of the heap beyond this goes back to the system.
MOST_KEPT = 2**30


def keep_freed_memory() -> bool:
    """Sets this process's allocator; False where it is not glibc's, and nothing is changed."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(ctypes.util.find_library("c") or "libc.so.6").mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(_M_TRIM_THRESHOLD, MOST_KEPT))
