"""Coordinates above a noisy threshold, by the sparse vector technique."""

import numpy as np

CLAIM = {"epsilon": 2.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
EPSILON = 2.0
THRESHOLD = 0.5


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    line = THRESHOLD + rng.laplace(0.0, 2 * 2.0 / EPSILON)
    return np.where(update >= line, 1.0, 0.0)
