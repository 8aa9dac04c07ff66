"""Clip the whole update, draw a two-sided exponential for each number."""

import numpy as np

CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
NORM = 1.0


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    values = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    values = values * min(1.0, NORM / (np.linalg.norm(values) + 1e-12))
    return values + rng.laplace(0.0, NORM / CLAIM["epsilon"], size=values.shape)
