"""Reads a file of the machine that is not its shard."""


def receive(given):
    try:
        with open(given["folder"] + "/other.csv") as file:
            return int(file.read())
    except OSError:
        return 0
