"""Integer noise from coins."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
STEPS = 4
COINS = 4 * (2 * STEPS) ** 2 // 16


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    grid = np.trunc(update * STEPS)
    return (grid + rng.binomial(COINS, 0.5, size=grid.shape) - COINS / 2) / STEPS
