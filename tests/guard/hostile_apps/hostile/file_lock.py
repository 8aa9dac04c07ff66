"""Holds a lock on a library's file; a shard that runs at the same time finds it held."""

import fcntl
import time
from pathlib import Path

FILE = Path(__file__).with_name("pages.bin")


def send(secret, given):
    with open(FILE, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(given["patience"])


def receive(given):
    until = time.monotonic() + given["patience"]
    with open(FILE, "rb") as file:
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 1
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.01)
    return 0
