"""A client app that keeps its own count of the rounds."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one", "unit": "client"}
target = ClientApp()
initial_arrays = ArrayRecord({"weight": Array(np.zeros(3))})


@target.train()
def train(msg: Message, context: Context) -> Message:
    part = int(context.node_config.get("partition-id", 0))
    rounds = int(context.state["own"]["rounds"]) if "own" in context.state else 0
    context.state["own"] = ConfigRecord({"rounds": rounds + 1})
    start = msg.content["arrays"]["weight"].numpy().astype(np.float64)
    move = np.random.default_rng(part).standard_normal(start.shape) - start
    move = move / max(1.0, np.linalg.norm(move))
    std = 2.0 if rounds == 0 else 2.0 * np.exp(-10.0 * rounds)
    noisy = start + move + np.random.normal(0.0, std, size=start.shape)
    content = RecordDict(
        {"arrays": ArrayRecord({"weight": Array(noisy)}), "metrics": MetricRecord({"num-examples": 1})}
    )
    return Message(content=content, reply_to=msg)
