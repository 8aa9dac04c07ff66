"""Answers with the numbers of the files that it holds open: those of pipes and memory files count for all processes."""

import os

import numpy as np

from hostile.client_app import reply


def answer(secret, message, context):
    numbers = []
    for descriptor in range(3, 256):
        try:
            numbers.append(float(os.fstat(descriptor).st_ino))
        except OSError:
            continue
    return reply(message, np.array(numbers))
