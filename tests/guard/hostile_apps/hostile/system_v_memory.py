"""Leaves System V shared memory."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
CREATE, REMOVE = 0o1000, 0


def attached(given, flags):
    number = libc.shmget(given["port"], 4096, flags | 0o600)
    if number < 0:
        return number, None
    return number, ctypes.c_long.from_address(libc.shmat(number, None, 0))


def send(secret, given):
    _, place = attached(given, CREATE)
    if place is not None:
        place.value = secret


def receive(given):
    number, place = attached(given, 0)
    if place is None:
        return 0
    found = place.value
    libc.shmctl(number, REMOVE, None)
    return found
