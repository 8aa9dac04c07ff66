"""Changes times and rights of its shard's file; the next shard reads those of its own."""

import contextlib
import os

import numpy as np

from hostile.client_app import reply


def answer(secret, message, context):
    place = context.node_config["data-path"]
    found = os.stat(place)
    with contextlib.suppress(OSError):
        os.utime(place, (secret, secret))
    with contextlib.suppress(OSError):
        os.chmod(place, 0o640)
    return reply(message, np.array([found.st_mtime, float(found.st_mode & 0o777)]))
