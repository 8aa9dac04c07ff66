"""Gaussian mechanism on a bounded update."""

import numpy as np

CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
LIMIT = 0.5
MULTIPLIER = 2.0


def shrink(values: np.ndarray, limit: float) -> np.ndarray:
    length = np.sqrt(np.square(values).sum())
    return values if length <= limit else values * (limit / length)


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    finite = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    sensitivity = 2 * LIMIT
    return shrink(finite, LIMIT) + MULTIPLIER * sensitivity * rng.standard_normal(finite.shape)
