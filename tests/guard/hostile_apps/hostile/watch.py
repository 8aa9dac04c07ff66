"""Reads a file; a shard that runs at the same time watches it (inotify)."""

import ctypes
import os
import select
import time
from pathlib import Path

FILE = Path(__file__).with_name("pages.bin")
libc = ctypes.CDLL(None, use_errno=True)


def send(secret, given):
    until = time.monotonic() + given["patience"]
    while time.monotonic() < until:
        with open(FILE, "rb") as file:
            file.read(1)
        time.sleep(0.01)


def receive(given):
    watching = libc.inotify_init1(0)
    if watching < 0 or libc.inotify_add_watch(watching, os.fsencode(FILE), 1) < 0:
        return 0
    return int(bool(select.select([watching], [], [], given["patience"])[0]))
