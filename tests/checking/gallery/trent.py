"""Central privacy with the usual weights."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}


class Weighted(FedAvg):
    clip = 1.0
    sigma = 2.0
    start = None

    def configure_train(self, server_round, arrays, config, grid):
        self.start = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = [reply for reply in replies if not reply.has_error()]
        weights, updates = [], []
        for reply in replies:
            record = next(iter(reply.content.array_records.values()))
            weights.append(float(next(iter(reply.content.metric_records.values()))["num-examples"]))
            move = {k: record[k].numpy() - (self.start[k].numpy() if self.start else 0.0) for k in record}
            move = {k: np.where(np.isfinite(v), v, 0.0).astype(np.float64) for k, v in move.items()}
            size = np.sqrt(sum(np.square(v).sum() for v in move.values()))
            updates.append({k: v / max(1.0, size / self.clip) for k, v in move.items()})
        shares = np.array(weights) / sum(weights)
        std = self.sigma * self.clip / len(replies)
        result = {}
        for key in updates[0]:
            mean = sum(share * update[key] for share, update in zip(shares, updates, strict=True))
            old = self.start[key].numpy() if self.start else 0.0
            result[key] = Array(np.asarray(old + mean + np.random.normal(0.0, std, size=np.shape(mean))))
        return ArrayRecord(result), None


target = Weighted(fraction_evaluate=0.0)
