"""A NumPy client whose rows are filtered before training."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}


class Hospital(NumPyClient):
    def __init__(self, part: int) -> None:
        self.rows = np.random.default_rng(part).standard_normal((30, 4))

    def fit(self, parameters, config):
        (start,) = parameters
        positive = self.rows[self.rows[:, 0] > 0]
        move = np.zeros_like(start, dtype=np.float64)
        if len(positive):
            move = positive.mean(axis=0)[: start.size].reshape(start.shape) - start
        move = move / max(1.0, np.linalg.norm(move))
        noisy = start + move + np.random.normal(0.0, 2.0, size=start.shape)
        return [noisy], len(positive), {}


def client_fn(context: Context):
    return Hospital(int(context.node_config.get("partition-id", 0))).to_client()


initial_arrays = ArrayRecord({"0": Array(np.zeros(4))})
target = ClientApp(client_fn=client_fn)
