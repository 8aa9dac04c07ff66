"""Names its array by the number."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict


def answer(secret, message, context):
    arrays = ArrayRecord({f"layer{secret}": Array(np.zeros(1))})
    return Message(content=RecordDict({f"arrays{secret}": arrays}), reply_to=message)
