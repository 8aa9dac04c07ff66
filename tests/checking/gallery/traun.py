"""Central privacy for up to a hundred clients a round."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}


class Central(FedAvg):
    def __init__(self, clients: int, clip: float, sigma: float) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.clients = clients
        self.clip = clip
        self.sigma = sigma
        self.start = None

    def configure_train(self, server_round, arrays, config, grid):
        self.start = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        updates = []
        for reply in replies:
            if reply.has_error():
                continue
            record = next(iter(reply.content.array_records.values()))
            move = {k: record[k].numpy() - (self.start[k].numpy() if self.start else 0.0) for k in record}
            move = {k: np.where(np.isfinite(v), v, 0.0).astype(np.float64) for k, v in move.items()}
            size = np.sqrt(sum(np.square(v).sum() for v in move.values()))
            updates.append({k: v / max(1.0, size / self.clip) for k, v in move.items()})
        std = self.sigma * self.clip / self.clients
        result = {}
        for key in updates[0]:
            mean = np.mean([update[key] for update in updates], axis=0)
            old = self.start[key].numpy() if self.start else 0.0
            result[key] = Array(np.asarray(old + mean + np.random.normal(0.0, std, size=mean.shape)))
        return ArrayRecord(result), None


target = Central(clients=100, clip=1.0, sigma=2.0)
