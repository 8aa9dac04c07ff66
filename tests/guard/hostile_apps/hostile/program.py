"""Runs a program."""

import os


def send(secret, given):
    os.posix_spawn("/bin/sh", ["sh", "-c", f"echo {secret} > {given['folder']}/drop"], {})
