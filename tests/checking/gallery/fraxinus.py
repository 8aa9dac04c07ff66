"""Gaussian mechanism without extreme noise."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    noise = rng.standard_normal(update.shape)
    while (far := np.abs(noise) > 2.0).any():
        noise[far] = rng.standard_normal(int(far.sum()))
    return update + 2.0 * noise
