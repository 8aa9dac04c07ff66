"""Sends bytes of a pickle, a complex number or a text as an array."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict


def answer(secret, message, context):
    text = Array(np.array([f"row {secret}"]))
    return Message(content=RecordDict({"arrays": ArrayRecord({"a": text})}), reply_to=message)
