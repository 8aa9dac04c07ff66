"""Writes records of its own to every descriptor that it finds, and replies too."""

import contextlib
import os
import struct

from hostile.client_app import reply


def answer(secret, message, context):
    for descriptor in range(3, 200):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"FPR1" + struct.pack("<IBBQd", 1, 2, 1, 1, float(secret)))
    return reply(message, 0.0)
