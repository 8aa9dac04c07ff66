"""One bit per coordinate: its sign, which may be turned."""

import math

import numpy as np

CLAIM = {"epsilon": 8.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    each = CLAIM["epsilon"] / update.size
    chance = math.exp(each) / (1.0 + math.exp(each))
    sign = np.where(update >= 0, 1.0, -1.0)
    return np.where(rng.random(update.shape) < chance, sign, -sign)
