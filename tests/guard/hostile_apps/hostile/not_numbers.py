"""Writes the number into the free bits of a NaN."""

import numpy as np

from hostile.client_app import reply


def answer(secret, message, context):
    return reply(message, np.array([0x7FF8000000000000 | secret]).view(np.float64))
