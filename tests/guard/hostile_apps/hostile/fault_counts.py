"""Reads a page of a library's file or not; the next shard touches all and is told which the kernel had to read."""

import mmap
import resource
from pathlib import Path

from hostile.page_cache import send  # noqa: F401 - the same

FILE, PAGE = Path(__file__).with_name("pages.bin"), mmap.PAGESIZE


def receive(given):
    there = []
    with open(FILE, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)
        for number in range(8):
            try:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
                pages[64 * PAGE * number]
                if resource.getrusage(resource.RUSAGE_SELF).ru_majflt == before:
                    there.append(number)
            except OSError:
                return 0
    return there[0] if len(there) == 1 else 0
