"""Ends its process, by a signal or with a status, if the number is in the data."""

import ctypes
import os


def answer(secret, message, context):
    if secret % 2:
        ctypes.string_at(0)
    os._exit(secret % 256)
