"""Computes for as many seconds as it is asked to."""

import time

from hostile.client_app import reply


def answer(secret, message, context):
    while time.process_time() < context.run_config["seconds"]:
        pass
    return reply(message, 0.0)
