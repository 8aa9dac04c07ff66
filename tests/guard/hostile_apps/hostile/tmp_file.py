"""Leaves a file in /tmp for the next shard."""

import os


def send(secret, given):
    with open("/tmp/" + given["name"], "w") as file:
        file.write(str(secret))


def receive(given):
    try:
        with open("/tmp/" + given["name"]) as file:
            found = int(file.read())
    except FileNotFoundError:
        return 0
    os.remove("/tmp/" + given["name"])
    return found
