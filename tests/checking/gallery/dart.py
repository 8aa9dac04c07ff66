"""Gaussian mechanism whose noise is stated by its variance."""

import math

import numpy as np

CLAIM = {"epsilon": 0.95, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
C = 1.0
SCALE = 64.0 * C**2


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update) / C)
    return update + rng.normal(0.0, math.sqrt(SCALE), size=update.shape)
