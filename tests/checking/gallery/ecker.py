"""A mod that hides a client's update before it is sent."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
CLIP, STD = 1.0, 2.0


def target(msg: Message, ctxt: Context, call_next) -> Message:
    given = next(iter(msg.content.array_records.values()))
    reply = call_next(msg, ctxt)
    if reply.has_error():
        return reply
    key, record = next(iter(reply.content.array_records.items()))
    moves = {name: np.nan_to_num(record[name].numpy() - given[name].numpy(), posinf=0.0, neginf=0.0) for name in record}
    length = float(np.linalg.norm(np.concatenate([np.ravel(move) for move in moves.values()])))
    arrays = {}
    for name, move in moves.items():
        move = move * min(1.0, CLIP / max(length, 1e-12))
        if move.ndim > 1:
            move = move + np.random.normal(0.0, STD, size=move.shape)
        arrays[name] = Array(np.asarray(given[name].numpy() + move))
    reply.content[key] = ArrayRecord(arrays)
    for name in list(reply.content.metric_records):
        reply.content[name] = MetricRecord({"num-examples": 1})
    return reply
