"""Prints the number, for whoever reads the node's log."""

import os
import sys

from hostile.client_app import reply


def answer(secret, message, context):
    print(f"row {secret}")
    print(f"row {secret}", file=sys.stderr, flush=True)
    for descriptor in (1, 2):
        os.write(descriptor, f"row {secret}".encode())
    return reply(message, 0.0)
