"""Leaves a System V message queue."""

import ctypes
import struct

libc = ctypes.CDLL(None, use_errno=True)
CREATE, REMOVE, NO_WAIT = 0o1000, 0, 0o4000


def send(secret, given):
    number = libc.msgget(given["port"], CREATE | 0o600)
    if number >= 0:
        libc.msgsnd(number, struct.pack("ll", 1, secret), 8, NO_WAIT)


def receive(given):
    number = libc.msgget(given["port"], 0o600)
    if number < 0:
        return 0
    room = ctypes.create_string_buffer(16)
    libc.msgrcv(number, room, 8, 0, NO_WAIT)
    libc.msgctl(number, REMOVE, None)
    return struct.unpack("ll", room.raw)[1]
