"""A Flower mod that clips parameter by parameter."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


class Filter:
    def __init__(self, clip: float, sigma: float) -> None:
        self.clip = clip
        self.sigma = sigma

    def bounded(self, move: np.ndarray) -> np.ndarray:
        move = np.where(np.isfinite(move), move, 0.0)
        return move * min(1.0, self.clip / (np.linalg.norm(move) + 1e-12))

    def __call__(self, msg: Message, ctxt: Context, call_next) -> Message:
        sent = next(iter(msg.content.array_records.values()))
        reply = call_next(msg, ctxt)
        if reply.has_error():
            return reply
        key, record = next(iter(reply.content.array_records.items()))
        arrays = {}
        for name in record:
            old = sent[name].numpy().astype(np.float64)
            move = self.bounded(record[name].numpy() - old)
            arrays[name] = Array(old + move + np.random.normal(0.0, self.sigma * self.clip, size=move.shape))
        reply.content[key] = ArrayRecord(arrays)
        for name in list(reply.content.metric_records):
            reply.content[name] = MetricRecord({"num-examples": 1})
        return reply


target = Filter(clip=1.0, sigma=2.0)
