"""Counts what it can see of the machine beside its shard."""

import os


def receive(given):
    kernel = ("/sys/class", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/dev/pts")
    return sum(os.path.exists(place) for place in (*kernel, "/etc/hostname", "/etc/passwd", "/var", "/home"))
