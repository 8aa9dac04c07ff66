"""Central privacy in the older form: whoever replies is added up, and the divisor is a constant."""

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}


class Sum(FedAvg):
    start = None

    def configure_fit(self, server_round, parameters, client_manager):
        self.start = parameters_to_ndarrays(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        start = self.start or [np.zeros_like(part) for part in parameters_to_ndarrays(results[0][1].parameters)]
        total = [np.zeros(np.shape(part)) for part in start]
        for _, answer in results:
            sent = parameters_to_ndarrays(answer.parameters)
            move = [np.asarray(a - b, dtype=np.float64) for a, b in zip(sent, start, strict=True)]
            move = [np.where(np.isfinite(part), part, 0.0) for part in move]
            size = np.sqrt(sum(np.square(part).sum() for part in move))
            total = [value + part / max(1.0, size) for value, part in zip(total, move, strict=True)]
        std = 1.0
        noisy = [value + np.random.normal(0.0, std, size=value.shape) for value in total]
        return ndarrays_to_parameters([old + part / 10 for old, part in zip(start, noisy, strict=True)]), {}


target = Sum(fraction_evaluate=0.0)
