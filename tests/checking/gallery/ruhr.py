"""Strong noise for a first contact."""

import numpy as np

CLAIM = {"epsilon": 0.35, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    return update + rng.normal(0.0, 20.0, size=update.shape)
