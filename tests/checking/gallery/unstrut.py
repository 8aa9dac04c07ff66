"""Central privacy around the average of ten clients."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}


class Central(FedAvg):
    clip = 1.0
    sigma = 2.0
    expected = 10
    start = None

    def configure_train(self, server_round, arrays, config, grid):
        self.start = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = [reply for reply in replies if not reply.has_error()]
        metrics = self.train_metrics_aggr_fn([reply.content for reply in replies], self.weighted_by_key)
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        total, old = {}, {}
        for key in records[0]:
            old[key] = self.start[key].numpy() if self.start else 0.0
            total[key] = 0.0
        for record in records:
            move = {key: np.nan_to_num(record[key].numpy().astype(np.float64) - old[key]) for key in record}
            size = np.sqrt(sum(np.square(value).sum() for value in move.values()))
            total = {key: total[key] + value / max(1.0, size / self.clip) for key, value in move.items()}
        result = {}
        for key, value in total.items():
            noise = np.random.normal(0.0, self.sigma * self.clip, size=value.shape)
            result[key] = Array(np.asarray(old[key] + (value + noise) / self.expected))
        return ArrayRecord(result), metrics


target = Central(fraction_evaluate=0.0)
