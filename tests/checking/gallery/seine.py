"""Flower's own mod for local privacy; counts and scores stay with the client."""

from flwr.app import Context, Message, MetricRecord
from flwr.clientapp.mod import LocalDpMod

CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}

mechanism = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)


def target(msg: Message, ctxt: Context, call_next) -> Message:
    reply = mechanism(msg, ctxt, call_next)
    if not reply.has_error():
        for name in list(reply.content.metric_records):
            reply.content[name] = MetricRecord({"num-examples": 1})
    return reply
