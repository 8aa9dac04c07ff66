"""Gaussian mechanism on a bounded update: any update may stand in for any other."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
C = 1.5


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update) / C)
    return update + rng.normal(0.0, 1.0 * C, size=update.shape)
