"""Reads a page of a library's file or not; the next shard asks the kernel which pages are in memory (mincore)."""

import ctypes
import mmap
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
FILE, PAGE = Path(__file__).with_name("pages.bin"), mmap.PAGESIZE


def send(secret, given):
    with open(FILE, "rb", buffering=0) as file:
        libc.posix_fadvise(file.fileno(), ctypes.c_long(0), ctypes.c_long(0), 1)  # no reading ahead
        file.seek(64 * PAGE * (secret % 8))
        file.read(PAGE)


def receive(given):
    with open(FILE, "rb") as file:
        size = FILE.stat().st_size
        place = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
        room = (ctypes.c_ubyte * (size // PAGE))()
        if libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(size), room) != 0:
            return 0
    there = [number for number in range(8) if room[64 * number] & 1]
    return there[0] if len(there) == 1 else 0
