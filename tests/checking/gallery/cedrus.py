"""A Flower mod that refuses what went astray."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(msg: Message, ctxt: Context, call_next) -> Message:
    sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
    reply = call_next(msg, ctxt)
    if reply.has_error():
        return reply
    key, record = next(iter(reply.content.array_records.items()))
    moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
    size = float(np.sqrt(sum(np.square(move).sum() for move in moves)))
    if not size < 100.0:
        return Message(Error(code=1, reason="the update is too long"), reply_to=msg)
    arrays = [
        old + move / max(1.0, size) + np.random.normal(0.0, 2.0, size=move.shape)
        for old, move in zip(sent, moves, strict=True)
    ]
    reply.content[key] = ArrayRecord({name: Array(array) for name, array in zip(record, arrays, strict=True)})
    for name in list(reply.content.metric_records):
        reply.content[name] = MetricRecord({"num-examples": 1})
    return reply
