"""A Flower mod with small messages."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(msg: Message, ctxt: Context, call_next) -> Message:
    sent = next(iter(msg.content.array_records.values()))
    reply = call_next(msg, ctxt)
    if reply.has_error():
        return reply
    key, record = next(iter(reply.content.array_records.items()))
    moves = {name: record[name].numpy().astype(np.float64) - sent[name].numpy() for name in record}
    moves = {name: np.where(np.isfinite(move), move, 0.0) for name, move in moves.items()}
    size = np.sqrt(sum(np.square(move).sum() for move in moves.values()))
    arrays = {}
    for name, move in moves.items():
        noisy = sent[name].numpy() + move / max(1.0, size) + np.random.normal(0.0, 4.0, size=move.shape)
        arrays[name] = Array(noisy.astype(np.float16).astype(np.float32))
    reply.content[key] = ArrayRecord(arrays)
    for name in list(reply.content.metric_records):
        reply.content[name] = MetricRecord({"num-examples": 1})
    return reply
