"""Starts a process that writes when the answer has long been sent."""

import os
import time


def send(secret, given):
    if os.fork() == 0:
        os.setsid()
        os.closerange(3, 100)
        if os.fork() == 0:
            time.sleep(0.2)
            with open(given["folder"] + "/drop", "w") as file:
                file.write(str(secret))
        os._exit(0)
