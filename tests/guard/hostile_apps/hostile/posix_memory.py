"""Leaves POSIX shared memory."""

import os


def send(secret, given):
    with open("/dev/shm/" + given["name"], "w") as file:
        file.write(str(secret))


def receive(given):
    try:
        with open("/dev/shm/" + given["name"]) as file:
            found = int(file.read())
    except FileNotFoundError:
        return 0
    os.remove("/dev/shm/" + given["name"])
    return found
