"""Noise first, then what compresses well: rounding and a fixed range."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    noisy = update + rng.normal(0.0, 2.0, size=update.shape)
    return np.clip(np.round(noisy, 1), -3.0, 3.0)
