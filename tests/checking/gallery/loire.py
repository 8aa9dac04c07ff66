"""Integer noise for an update on a grid."""

import math

import numpy as np

CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
STEPS = 16


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update, ord=1))
    grid = np.trunc(update * STEPS).astype(np.int64)
    chance = 1 - math.exp(-CLAIM["epsilon"] / (2 * STEPS))
    noise = rng.geometric(chance, size=grid.shape) - rng.geometric(chance, size=grid.shape)
    return (grid + noise) / STEPS
