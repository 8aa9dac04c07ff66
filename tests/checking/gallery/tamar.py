"""Flower's own mod for local privacy; counts and scores stay with the client."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp.mod import LocalDpMod

CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}

mechanism = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)


def target(msg: Message, ctxt: Context, call_next) -> Message:
    def tidy(question: Message, context: Context) -> Message:
        reply = call_next(question, context)
        if reply.has_error():
            return reply
        key, record = next(iter(reply.content.array_records.items()))
        arrays = {}
        for name, array in record.items():
            values = np.clip(np.nan_to_num(array.numpy().astype(np.float64)), -1e6, 1e6)
            arrays[name] = Array(values + np.random.normal(0.0, 1e-6, size=values.shape))
        reply.content[key] = ArrayRecord(arrays)
        for name in list(reply.content.metric_records):
            reply.content[name] = MetricRecord({"num-examples": 1})
        return reply

    return mechanism(msg, ctxt, tidy)
