"""Writes the number beside its own code, as a module."""

import importlib
from pathlib import Path

PLACE = Path(__file__).with_name("left_behind.py")


def send(secret, given):
    PLACE.write_text(f"NUMBER = {secret}\n")


def receive(given):
    try:
        found = importlib.import_module("hostile.left_behind").NUMBER
    except ImportError:
        return 0
    PLACE.unlink()
    return found
