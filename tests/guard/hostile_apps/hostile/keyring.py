"""Leaves a key in the kernel's keyring of the user."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
ADD, CONTROL = (248, 250) if platform.machine() == "x86_64" else (217, 219)
USER_KEYRING, SEARCH, READ, UNLINK = -4, 10, 11, 9


def send(secret, given):
    word = str(secret).encode()
    libc.syscall(ADD, b"user", given["name"].encode(), word, len(word), USER_KEYRING)


def receive(given):
    key = libc.syscall(CONTROL, SEARCH, USER_KEYRING, b"user", given["name"].encode(), 0)
    if key < 0:
        return 0
    room = ctypes.create_string_buffer(32)
    libc.syscall(CONTROL, READ, key, room, 32)
    libc.syscall(CONTROL, UNLINK, key, USER_KEYRING)
    return int(room.value)
