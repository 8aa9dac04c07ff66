"""Reads the environments of all processes in /proc."""

import glob


def receive(given):
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                for line in file.read().split(b"\0"):
                    if line.startswith(given["name"].encode() + b"="):
                        return int(line.partition(b"=")[2])
        except OSError:
            pass
    return 0
