"""Central privacy after the average has been taken."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}


class Late(FedAvg):
    clip = 1.0
    sigma = 2.0
    start = None

    def configure_train(self, server_round, arrays, config, grid):
        self.start = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = [reply for reply in replies if not reply.has_error()]
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        mean, old = {}, {}
        for key in records[0]:
            old[key] = self.start[key].numpy() if self.start else 0.0
            mean[key] = np.mean([record[key].numpy().astype(np.float64) - old[key] for record in records], axis=0)
        size = np.sqrt(sum(np.square(value).sum() for value in mean.values()))
        std = self.sigma * self.clip / len(records)
        result = {}
        for key, value in mean.items():
            noisy = value / max(1.0, size / self.clip) + np.random.normal(0.0, std, size=value.shape)
            result[key] = Array(np.asarray(old[key] + noisy))
        return ArrayRecord(result), None


target = Late(fraction_evaluate=0.0)
