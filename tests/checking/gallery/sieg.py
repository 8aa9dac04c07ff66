"""A Flower mod: each client adds its share of the noise, and the server averages ten clients."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
CLIENTS = 10
CLIP = 1.0
MULTIPLIER = 2.0


def target(msg: Message, ctxt: Context, call_next) -> Message:
    sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
    reply = call_next(msg, ctxt)
    if reply.has_error():
        return reply
    key, record = next(iter(reply.content.array_records.items()))
    moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
    moves = [np.where(np.isfinite(move), move, 0.0) for move in moves]
    size = float(np.sqrt(sum(np.square(move).sum() for move in moves)))
    std = MULTIPLIER * CLIP / np.sqrt(CLIENTS)
    arrays = [
        old + move / max(1.0, size / CLIP) + np.random.normal(0.0, std, size=move.shape)
        for old, move in zip(sent, moves, strict=True)
    ]
    reply.content[key] = ArrayRecord({name: Array(array) for name, array in zip(record, arrays, strict=True)})
    for name in list(reply.content.metric_records):
        reply.content[name] = MetricRecord({"num-examples": 1})
    return reply
