"""A Flower mod with Laplace noise."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

CLAIM = {"epsilon": 2.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
BOUND = 0.5


class Laplace:
    def __init__(self, epsilon: float, bound: float) -> None:
        self.scale = 2 * bound / epsilon
        self.bound = bound

    def __call__(self, msg: Message, ctxt: Context, call_next) -> Message:
        sent = next(iter(msg.content.array_records.values()))
        reply = call_next(msg, ctxt)
        if reply.has_error():
            return reply
        key, record = next(iter(reply.content.array_records.items()))
        moves = {name: record[name].numpy().astype(np.float64) - sent[name].numpy() for name in record}
        moves = {name: np.where(np.isfinite(move), move, 0.0) for name, move in moves.items()}
        size = sum(np.abs(move).sum() for move in moves.values())
        released = {}
        for name, move in moves.items():
            noise = np.random.laplace(0.0, self.scale, size=move.shape)
            released[name] = Array(sent[name].numpy() + move / max(1.0, size / self.bound) + noise)
        reply.content[key] = ArrayRecord(released)
        for name in list(reply.content.metric_records):
            reply.content[name] = MetricRecord({"num-examples": 1})
        return reply


target = Laplace(epsilon=2.0, bound=BOUND)
