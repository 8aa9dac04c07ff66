"""Writes to a folder of the machine."""

import os


def send(secret, given):
    os.makedirs(given["folder"], exist_ok=True)
    with open(given["folder"] + "/drop", "w") as file:
        file.write(str(secret))
