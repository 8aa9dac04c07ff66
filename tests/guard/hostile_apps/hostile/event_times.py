"""Sends from an event's descriptor, which fails, and sets the time at which it was read: that of all of this kernel."""

import ctypes
import os
import time

libc = ctypes.CDLL(None, use_errno=True)


def send(secret, given):
    with open("/tmp/event-times", "wb") as file:
        libc.sendfile(file.fileno(), libc.eventfd(0, 0), None, 64)


def receive(given):
    return float(time.time() - os.fstat(libc.eventfd(0, 0)).st_atime < 0.5)
