"""A sparse update: coordinates are kept at random."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    chance = np.abs(update) / max(np.abs(update).max(initial=0.0), 1e-12)
    kept = rng.random(update.shape) < chance
    return np.where(kept, update + rng.normal(0.0, 2.0, size=update.shape), 0.0)
