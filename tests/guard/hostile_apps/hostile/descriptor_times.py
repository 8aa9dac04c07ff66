"""Sets the times of every file that it holds open; the next shard reads them. A file that is not its own it may still
touch, and the next shard reads that.
"""

import contextlib
import os
import time

HELD = range(3)


def send(secret, given):
    for descriptor in HELD:
        try:
            os.utime(descriptor, (secret, secret))
        except OSError:
            with contextlib.suppress(OSError):
                os.utime(descriptor)


def receive(given):
    for descriptor in HELD:
        with contextlib.suppress(OSError):
            changed = os.fstat(descriptor).st_mtime
            if 0 < changed < 1e6 or 0 < time.time() - changed < 0.5:
                return changed
    return 0
