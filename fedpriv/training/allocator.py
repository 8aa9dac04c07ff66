"""Keeps freed memory for the next batch instead of returning it to the operating system.

glibc maps every block above a threshold and unmaps it when it is freed; training frees and allocates the same
megabytes with every batch, and the system zeroes each page every time. For the small CNN on 28x28 examples that is
close to half of a training step.
"""

from __future__ import annotations

import ctypes
import sys

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: The largest threshold that glibc accepts; larger blocks are still mapped.
LARGEST_KEPT = 32 * 2**20
#: Free memory at the end of the heap beyond this is returned to the system.
MOST_KEPT = 2**30


def keep_freed_memory() -> bool:
    """Configures this process's allocator; returns False, and changes nothing, if it is not glibc's."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt  # glibc's name; to look for another would start two processes
    except (OSError, AttributeError):  # musl has no mallopt
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(_M_TRIM_THRESHOLD, MOST_KEPT))
