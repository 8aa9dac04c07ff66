"""Fills /tmp, and answers with the megabytes that it could write."""

from hostile.client_app import reply


def answer(secret, message, context):
    written = 0
    try:
        with open("/tmp/filler", "wb", buffering=0) as file:
            while written < context.run_config["megabytes"]:
                file.write(bytes(1 << 20))
                written += 1
    except OSError:
        pass
    return reply(message, float(written))
