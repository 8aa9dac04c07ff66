"""Reads the environment of its own process, which the node's operator filled."""

import os

from hostile.client_app import reply


def answer(secret, message, context):
    return reply(message, float(os.environ.get(context.run_config["name"], 0)))
