"""Gaussian mechanism on a bounded update."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def size(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    return update / max(1.0, size(update)) + rng.normal(0.0, 2.0, size=update.shape)
