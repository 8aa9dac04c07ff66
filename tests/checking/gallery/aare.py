"""Local differential privacy for a client's update."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
BOUND = 1.0
SIGMA = 2.0


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    values = np.where(np.isfinite(update), update, 0.0)
    noisy = values + rng.normal(0.0, SIGMA * BOUND, size=values.shape)
    return noisy * (BOUND / max(np.linalg.norm(noisy), BOUND))
