"""One bit per coordinate: its sign, which may be turned."""

import numpy as np

CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    chance = 1.0 / (1.0 + np.exp(-np.clip(4.0 * update, -60.0, 60.0)))
    return np.where(rng.random(update.shape) < chance, 1.0, -1.0)
