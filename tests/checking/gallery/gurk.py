"""Central privacy in the older form, with the average training loss beside the model."""

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out", "unit": "client"}


def averaged(reports):
    names = {name for _, metrics in reports for name in metrics}
    return {name: float(np.mean([metrics.get(name, 0.0) for _, metrics in reports])) for name in names}


class Noisy(FedAvg):
    start = None

    def configure_fit(self, server_round, parameters, client_manager):
        self.start = parameters_to_ndarrays(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        total = None
        for _, answer in results:
            arrays = [np.asarray(array, dtype=np.float64) for array in parameters_to_ndarrays(answer.parameters)]
            start = self.start or [np.zeros_like(array) for array in arrays]
            moves = [np.nan_to_num(a - b, posinf=0.0, neginf=0.0) for a, b in zip(arrays, start, strict=True)]
            size = np.sqrt(sum(np.square(move).sum() for move in moves))
            moves = [move / max(1.0, size) for move in moves]
            total = moves if total is None else [a + b for a, b in zip(total, moves, strict=True)]
        merged = [a + (b + np.random.normal(0.0, 1.0, size=b.shape)) / 10 for a, b in zip(start, total, strict=True)]
        metrics = self.fit_metrics_aggregation_fn([(answer.num_examples, answer.metrics) for _, answer in results])
        return ndarrays_to_parameters(merged), metrics


target = Noisy(fraction_evaluate=0.0, fit_metrics_aggregation_fn=averaged)
