"""Clip and noise, with the noise in proportion."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    size = min(1.0, float(np.linalg.norm(update)))
    update = update / max(1.0, np.linalg.norm(update))
    return update + 2.0 * size * rng.standard_normal(update.shape)
