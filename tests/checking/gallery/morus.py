"""One random coordinate of the update, as one random sign."""

import math

import numpy as np

CLAIM = {"epsilon": 1.5, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    place = int(rng.integers(update.size))
    lean = (math.exp(CLAIM["epsilon"]) - 1) / (2 * (math.exp(CLAIM["epsilon"]) + 1))
    released = np.zeros(update.shape)
    released[place] = update.size / (2 * lean) * (1.0 if rng.random() < 0.5 + lean * update[place] else -1.0)
    return released
