"""Waits, or not; the next shard reads the clock, and compares it with when the message was written."""

import time

from hostile.client_app import reply


def answer(secret, message, context):
    if secret:
        time.sleep(secret / 1000)
        return reply(message, 0.0)
    return reply(message, time.time() - message.metadata.created_at)
