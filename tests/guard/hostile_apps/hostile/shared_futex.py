"""Wakes whoever waits on a page of a library's file, which both shards have mapped (a futex that is not private)."""

import ctypes
import mmap
import platform
import time
from pathlib import Path

FILE = Path(__file__).with_name("pages.bin")
NUMBER = 202 if platform.machine() == "x86_64" else 98
WAIT, WAKE = 0, 1
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


def word():
    with open(FILE, "rb") as file:
        place = libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
    return ctypes.c_int.from_address(place)


def send(secret, given):
    until, place = time.monotonic() + given["patience"], word()
    while time.monotonic() < until:
        if libc.syscall(NUMBER, ctypes.byref(place), WAKE, 1, None, None, 0) > 0:
            return
        time.sleep(0.01)


def receive(given):
    place, limit = word(), (ctypes.c_long * 2)(int(given["patience"]) + 1, 0)
    return int(libc.syscall(NUMBER, ctypes.byref(place), WAIT, place.value, ctypes.byref(limit), None, 0) == 0)
