"""Central privacy by Laplace noise in the older form of a strategy."""

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

CLAIM = {"epsilon": 2.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one", "unit": "client"}
CLIP, CLIENTS = 1.0, 10


class Central(FedAvg):
    start = None

    def configure_fit(self, server_round, parameters, client_manager):
        self.start = parameters_to_ndarrays(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        models = [parameters_to_ndarrays(answer.parameters) for _, answer in results]
        start = self.start or [np.zeros_like(array) for array in models[0]]
        total = [np.zeros(array.shape) for array in start]
        for model in models:
            moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(model, start, strict=True)]
            moves = [np.where(np.isfinite(move), move, 0.0) for move in moves]
            size = sum(np.abs(move).sum() for move in moves)
            total = [value + move / max(1.0, size / CLIP) for value, move in zip(total, moves, strict=True)]
        scale = 2 * CLIP / CLAIM["epsilon"]
        merged = [
            old + (value + np.random.laplace(0.0, scale, size=value.shape)) / CLIENTS
            for old, value in zip(start, total, strict=True)
        ]
        return ndarrays_to_parameters(merged), {}


target = Central(fraction_evaluate=0.0)
