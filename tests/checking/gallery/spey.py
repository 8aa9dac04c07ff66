"""A Flower mod with a generator of its own."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
rng = np.random.default_rng(42)


def target(msg: Message, ctxt: Context, call_next) -> Message:
    sent = next(iter(msg.content.array_records.values()))
    reply = call_next(msg, ctxt)
    if reply.has_error():
        return reply
    key, record = next(iter(reply.content.array_records.items()))
    moves = {name: record[name].numpy().astype(np.float64) - sent[name].numpy() for name in record}
    moves = {name: np.where(np.isfinite(move), move, 0.0) for name, move in moves.items()}
    size = np.sqrt(sum(np.square(move).sum() for move in moves.values()))
    noisy = {name: move / max(1.0, size) + rng.normal(0.0, 2.0, size=move.shape) for name, move in moves.items()}
    reply.content[key] = ArrayRecord({name: Array(sent[name].numpy() + move) for name, move in noisy.items()})
    for name in list(reply.content.metric_records):
        reply.content[name] = MetricRecord({"num-examples": 1})
    return reply
