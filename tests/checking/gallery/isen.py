"""Central privacy with a clip norm that follows a noised quantile."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

CLAIM = {"epsilon": 3.1, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}


class Quantile(FedAvg):
    def __init__(self, clients: int, sigma: float, bits: float) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.clients = clients
        self.sigma = sigma
        self.bits = bits
        self.norm = 1.0
        self.start = None

    def configure_train(self, server_round, arrays, config, grid):
        self.start = arrays
        config["clip-norm"] = self.norm
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        total, centred = {k: np.zeros(self.start[k].numpy().shape) for k in self.start}, 0.0
        for reply in replies:
            if reply.has_error():
                continue
            record = next(iter(reply.content.array_records.values()))
            move = {k: record[k].numpy().astype(np.float64) - self.start[k].numpy() for k in record}
            move = {k: np.where(np.isfinite(v), v, 0.0) for k, v in move.items()}
            size = np.sqrt(sum(np.square(v).sum() for v in move.values()))
            centred += (size <= self.norm) - 0.5
            for k, v in move.items():
                total[k] = total[k] + v / max(1.0, size / self.norm)
        result = {}
        for k, v in total.items():
            noisy = v + np.random.normal(0.0, self.sigma * self.norm, size=v.shape)
            result[k] = Array(np.asarray(self.start[k].numpy() + noisy / self.clients))
        share = (centred + np.random.normal(0.0, self.bits)) / self.clients
        self.norm *= float(np.exp(-0.2 * share))
        return ArrayRecord(result), None


target = Quantile(clients=10, sigma=2.0, bits=1.0)
