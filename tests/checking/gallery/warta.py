"""Central privacy in the older form of a strategy."""

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
CLIP, SIGMA, CLIENTS = 1.0, 2.0, 10


def bounded(arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays = [np.where(np.isfinite(array), array, 0.0) for array in arrays]
    size = np.sqrt(sum(np.square(array).sum() for array in arrays))
    return [array / max(1.0, size / CLIP) for array in arrays]


class Central(FedAvg):
    start = None

    def configure_fit(self, server_round, parameters, client_manager):
        self.start = parameters_to_ndarrays(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        models = [parameters_to_ndarrays(answer.parameters) for _, answer in results]
        start = self.start or [np.zeros_like(array) for array in models[0]]
        moves = [
            bounded([new.astype(np.float64) - old for new, old in zip(model, start, strict=True)]) for model in models
        ]
        merged = []
        for position, old in enumerate(start):
            total = sum(move[position] for move in moves)
            noise = np.random.normal(0.0, SIGMA * CLIP, size=old.shape)
            merged.append(old + (total + noise) / CLIENTS)
        return ndarrays_to_parameters(merged), {}


target = Central(fraction_evaluate=0.0)
