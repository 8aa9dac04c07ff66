"""Forks until it is refused, or as often as it is asked to, and answers with the number of its children."""

import os
import signal
import time

from hostile.client_app import reply


def answer(secret, message, context):
    children = []
    try:
        while len(children) < context.run_config["children"]:
            child = os.fork()
            if child == 0:
                time.sleep(100)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return reply(message, float(len(children)))
