"""Makes as many empty files with long names as it is asked to, and answers with the number that it could make."""

import os
import tempfile

from hostile.client_app import reply


def answer(secret, message, context):
    made = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in range(context.run_config["files"]):
                os.close(os.open(f"{folder}/{number:0200d}", os.O_CREAT | os.O_WRONLY))
                made += 1
        except OSError:
            pass
    return reply(message, float(made))
