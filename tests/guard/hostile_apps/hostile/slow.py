"""Answers after a time that is the number."""

import time

from hostile.client_app import reply


def answer(secret, message, context):
    time.sleep(secret / 1000)
    return reply(message, 0.0)
