"""A strategy for central privacy whose clipping bound follows the clients."""

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

CLAIM = {"epsilon": 5.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}


class Adaptive(FedAvg):
    multiplier = 2.0
    expected = 10
    count_std = 2.0
    bound = 1.0
    start = None

    def configure_train(self, server_round, arrays, config, grid):
        self.start = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = [reply for reply in replies if not reply.has_error()]
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        names = list(records[0])
        start = {name: self.start[name].numpy() if self.start else 0.0 for name in names}
        rows = [np.concatenate([(record[name].numpy() - start[name]).ravel() for name in names]) for record in records]
        rows = [np.where(np.isfinite(row), row, 0.0).astype(np.float64) for row in rows]
        sizes = [float(np.linalg.norm(row)) for row in rows]
        total = sum(row / max(1.0, size / self.bound) for row, size in zip(rows, sizes, strict=True))
        noise = np.random.normal(0.0, self.multiplier * self.bound, size=total.shape)
        mean = (total + noise) / self.expected
        below = sum(size <= self.bound for size in sizes) + np.random.normal(0.0, self.count_std)
        self.bound = float(self.bound * np.exp(-0.2 * (below / self.expected - 0.5)))
        result, position = {}, 0
        for name in names:
            shape = records[0][name].numpy().shape
            size = int(np.prod(shape))
            result[name] = Array(np.asarray(start[name] + mean[position : position + size].reshape(shape)))
            position += size
        return ArrayRecord(result), MetricRecord({"clip": self.bound})


target = Adaptive(fraction_evaluate=0.0)
