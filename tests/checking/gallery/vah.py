"""Central privacy in the older form of a strategy."""

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
CLIP, SIGMA, CLIENTS = 1.0, 2.0, 10


def bounded(array: np.ndarray) -> np.ndarray:
    array = np.where(np.isfinite(array), array, 0.0)
    return array / max(1.0, np.linalg.norm(array) / CLIP)


class Central(FedAvg):
    start = None

    def configure_fit(self, server_round, parameters, client_manager):
        self.start = parameters_to_ndarrays(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        models = [parameters_to_ndarrays(answer.parameters) for _, answer in results]
        start = self.start or [np.zeros_like(array) for array in models[0]]
        merged = []
        for position, old in enumerate(start):
            total = sum(bounded(model[position].astype(np.float64) - old) for model in models)
            noise = np.random.normal(0.0, SIGMA * CLIP, size=old.shape)
            merged.append(old + (total + noise) / CLIENTS)
        return ndarrays_to_parameters(merged), {}


target = Central(fraction_evaluate=0.0)
