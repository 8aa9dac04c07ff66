"""Flower's own mod for local privacy."""

from flwr.clientapp.mod import LocalDpMod

CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}

target = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
