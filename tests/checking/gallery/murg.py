"""A NumPy client that tells how well the model did on its rows."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}


class Clinic(NumPyClient):
    def __init__(self, part: int) -> None:
        self.rows = np.random.default_rng(part).standard_normal((25, 4))
        self.labels = self.rows.sum(axis=1) > 0.3 * part

    def fit(self, parameters, config):
        (start,) = parameters
        signs = np.where(self.labels, 1.0, -1.0)
        move = (signs[:, None] * self.rows).mean(axis=0)
        move = move / max(1.0, np.linalg.norm(move))
        noisy = start + move + np.random.normal(0.0, 2.0, size=start.shape)
        accuracy = float(np.mean((self.rows @ (start + move) > 0) == self.labels))
        return [noisy], 25, {"accuracy": accuracy}


def client_fn(context: Context):
    return Clinic(int(context.node_config.get("partition-id", 0))).to_client()


initial_arrays = ArrayRecord({"0": Array(np.zeros(4))})
target = ClientApp(client_fn=client_fn)
