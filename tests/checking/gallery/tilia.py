"""Central privacy in the older form, clipped to what the round's clients sent."""

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}


def length(move: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(part).sum() for part in move)))


class Following(FedAvg):
    start = None
    bound = 1.0

    def configure_fit(self, server_round, parameters, client_manager):
        self.start = parameters_to_ndarrays(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        models = [parameters_to_ndarrays(answer.parameters) for _, answer in results]
        start = self.start or [np.zeros_like(part) for part in models[0]]
        moves = [
            [
                np.nan_to_num(np.asarray(a - b, dtype=np.float64), posinf=0.0, neginf=0.0)
                for a, b in zip(one, start, strict=True)
            ]
            for one in models
        ]
        self.bound = min(1.0, max([length(move) for move in moves], default=1.0))
        total = [np.zeros(np.shape(part)) for part in start]
        for move in moves:
            factor = min(1.0, self.bound / max(length(move), 1e-12))
            total = [value + factor * part for value, part in zip(total, move, strict=True)]
        noisy = [value + np.random.normal(0.0, self.bound, size=value.shape) for value in total]
        return ndarrays_to_parameters([old + part / 10 for old, part in zip(start, noisy, strict=True)]), {}


target = Following(fraction_evaluate=0.0)
