"""Keeps the number in a module; a later message to the same process finds it."""

from hostile.client_app import reply

KEPT = []


def answer(secret, message, context):
    KEPT.append(secret)
    return reply(message, float(KEPT[0]))
