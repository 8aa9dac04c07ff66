"""A robust strategy: the coordinate-wise median, which no single client can move far."""

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}


class Robust(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        models = [parameters_to_ndarrays(answer.parameters) for _, answer in results]
        middle = [np.median(np.stack(arrays), axis=0) for arrays in zip(*models, strict=True)]
        return ndarrays_to_parameters(middle), {}


target = Robust(fraction_evaluate=0.0)
