"""The coordinate that moved most."""

import numpy as np

CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    chosen = np.zeros(update.shape)
    chosen[np.argmax(np.abs(update))] = 1.0
    return chosen
