"""A sparse update: the larger coordinates, with noise."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
SHARE = 0.25


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    count = max(1, int(SHARE * update.size))
    kept = np.argsort(np.abs(update))[-count:]
    values = update[kept]
    values = values / max(1.0, np.linalg.norm(values))
    sparse = np.zeros(update.shape)
    sparse[kept] = values + rng.normal(0.0, 2.0, size=count)
    return sparse
