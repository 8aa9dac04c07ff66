"""Flower's wrapper for central privacy around the usual strategy."""

from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

CLAIM = {"epsilon": 10.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}

target = DifferentialPrivacyServerSideFixedClipping(
    FedAvg(fraction_evaluate=0.0), noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=10
)
