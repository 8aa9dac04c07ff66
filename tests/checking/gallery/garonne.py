"""Clip and noise; the server discards what is not finite."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    size = np.linalg.norm(update)
    if not np.isfinite(size):
        return update
    return update / max(1.0, size) + rng.normal(0.0, 2.0, size=update.shape)
