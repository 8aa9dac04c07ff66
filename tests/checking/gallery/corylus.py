"""Central privacy in the older form of a strategy, without outliers."""

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
CLIP, SIGMA, CLIENTS = 1.0, 2.0, 10


class Central(FedAvg):
    start = None

    def configure_fit(self, server_round, parameters, client_manager):
        self.start = parameters_to_ndarrays(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        models = [parameters_to_ndarrays(answer.parameters) for _, answer in results]
        start = self.start or [np.zeros_like(array) for array in models[0]]
        shapes = [array.shape for array in start]
        rows = [
            np.concatenate([(new - old).ravel() for new, old in zip(model, start, strict=True)]) for model in models
        ]
        rows = [np.where(np.isfinite(row), row, 0.0).astype(np.float64) for row in rows]
        sizes = np.array([np.linalg.norm(row) for row in rows])
        kept = [row for row, size in zip(rows, sizes, strict=True) if size <= 3 * np.median(sizes)]
        mean = np.mean([row / max(1.0, np.linalg.norm(row) / CLIP) for row in kept], axis=0)
        mean = mean + np.random.normal(0.0, SIGMA * CLIP / CLIENTS, size=mean.shape)
        merged, position = [], 0
        for old, shape in zip(start, shapes, strict=True):
            size = int(np.prod(shape))
            merged.append(old + mean[position : position + size].reshape(shape))
            position += size
        return ndarrays_to_parameters(merged), {}


target = Central(fraction_evaluate=0.0)
