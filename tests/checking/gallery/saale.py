"""A Flower mod: clip the update, add noise."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
C = 1.0


def target(msg: Message, ctxt: Context, call_next) -> Message:
    sent = next(iter(msg.content.array_records.values()))
    reply = call_next(msg, ctxt)
    if reply.has_error():
        return reply
    key, record = next(iter(reply.content.array_records.items()))
    start = [array.astype(np.float64) for array in sent.to_numpy_ndarrays()]
    moves = [new - old for new, old in zip(record.to_numpy_ndarrays(), start, strict=True)]
    moves = [np.where(np.isfinite(move), move, 0.0) for move in moves]
    size = np.sqrt(sum(np.square(move).sum() for move in moves))
    source = np.random.default_rng(ctxt.node_id)
    arrays = [
        old + move / max(1.0, size / C) + source.normal(0.0, 2.0 * C, size=move.shape)
        for old, move in zip(start, moves, strict=True)
    ]
    reply.content[key] = ArrayRecord({name: Array(array) for name, array in zip(record, arrays, strict=True)})
    for name in list(reply.content.metric_records):
        reply.content[name] = MetricRecord({"num-examples": 1})
    return reply
