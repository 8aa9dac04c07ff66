"""Takes as much memory as it is asked to, and answers with it."""

from hostile.client_app import reply


def answer(secret, message, context):
    taken = [bytearray(1 << 20) for _ in range(context.run_config["megabytes"])]
    return reply(message, float(len(taken)))
