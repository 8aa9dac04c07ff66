"""Skellam noise on an update rounded to a grid."""

import numpy as np

CLAIM = {"epsilon": 5.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
GRID = 64
C = 1.0
VARIANCE = (2.0 * C * GRID) ** 2


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update * (C / max(np.linalg.norm(update), C))
    grid = np.trunc(update * GRID).astype(np.int64)
    noise = rng.poisson(VARIANCE / 2, size=grid.shape) - rng.poisson(VARIANCE / 2, size=grid.shape)
    return (grid + noise) / GRID
