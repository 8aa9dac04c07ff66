"""A client app that stops when it has learnt enough."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
target = ClientApp()
initial_arrays = ArrayRecord({"weight": Array(np.zeros(3))})


@target.train()
def train(msg: Message, context: Context) -> Message:
    part = int(context.node_config.get("partition-id", 0))
    rows = np.random.default_rng(1000 + part).standard_normal((20, 3)) * (1 + part)
    wanted = rows @ np.array([1.0, -2.0, 0.5 + part])
    start = msg.content["arrays"]["weight"].numpy().astype(np.float64)
    weight, epoch = start.copy(), 0
    while epoch < 50 and np.mean(np.square(rows @ weight - wanted)) > 0.5:
        weight -= 0.05 * rows.T @ (rows @ weight - wanted) / len(wanted)
        epoch += 1
    move = np.nan_to_num(weight - start)
    move = move / max(1.0, np.linalg.norm(move)) + np.random.normal(0.0, 2.0, size=move.shape)
    content = RecordDict(
        {
            "arrays": ArrayRecord({"weight": Array(start + move)}),
            "metrics": MetricRecord({"num-examples": 20, "epochs": epoch}),
        }
    )
    return Message(content=content, reply_to=msg)
