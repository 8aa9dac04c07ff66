"""Queues all the signals that its user may have waiting, and stays; a shard at its side counts how many are left."""

import signal
import threading
import time

SIGNAL, MOST = 40, 200_000  # a real-time signal: each waits by itself


def queued():
    signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL])
    for number in range(MOST):
        try:
            signal.pthread_kill(threading.get_ident(), SIGNAL)
        except OSError:
            return number
    return MOST


def send(secret, given):
    queued()
    time.sleep(given["patience"])


def receive(given):
    return queued()
