"""Sends as many array records as the number says."""

import numpy as np
from flwr.app import Array, ArrayRecord

from hostile.client_app import reply


def answer(secret, message, context):
    more = {f"more{place}": ArrayRecord({"a": Array(np.zeros(1))}) for place in range(secret)}
    return reply(message, 0.0, **more)
