"""Ends the process that started it, and every other that it can."""

import contextlib
import os
import signal


def send(secret, given):
    for process in (os.getppid(), -1) if given["all"] else (os.getppid(),):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
