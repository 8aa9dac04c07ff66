"""Makes many pipes or none: the kernel counts them all, and the next shard reads the count off a pipe of its own."""

import os


def here():
    inode = 0
    for _ in range(1025):  # a processor takes 1024 numbers at once
        ends = os.pipe()
        inode = os.fstat(ends[0]).st_ino
        for end in ends:
            os.close(end)
    return inode


def send(secret, given):
    for _ in range(secret):
        for end in os.pipe():
            os.close(end)


def receive(given):
    try:
        return here()
    except OSError:
        return 0
