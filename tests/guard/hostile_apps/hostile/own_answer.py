"""Writes a whole record to every descriptor that it finds, slowly, and then stays until it is ended."""

import contextlib
import os
import struct
import time


def answer(secret, message, context):
    for byte in b"FPR1" + struct.pack("<IBBQd", 1, 2, 1, 1, float(secret)):
        for descriptor in range(3, 20):
            with contextlib.suppress(OSError):
                os.write(descriptor, bytes([byte]))
        time.sleep(context.run_config["patience"] / 100)
    time.sleep(context.run_config["seconds"])
    os._exit(0)
