"""Starts as many threads as it is asked to, and answers with their number."""

import threading
import time

from hostile.client_app import reply


def answer(secret, message, context):
    threading.stack_size(64 * 1024)
    started = []
    for _ in range(context.run_config["threads"]):
        started.append(threading.Thread(target=time.sleep, args=(context.run_config["patience"],), daemon=True))
        started[-1].start()
    time.sleep(context.run_config["patience"])
    return reply(message, float(len(started)))
