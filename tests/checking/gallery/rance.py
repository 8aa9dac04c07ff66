"""Coarse messages whose rounding error is carried over."""

import numpy as np

CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one"}
STEP = 0.5


class Coarse:
    def __init__(self) -> None:
        self.rest = 0.0

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        update = np.where(np.isfinite(update), update, 0.0)
        update = update / max(1.0, np.linalg.norm(update))
        wanted = update + rng.normal(0.0, 2.0, size=update.shape) + self.rest
        sent = np.rint(wanted / STEP) * STEP
        self.rest = wanted - sent
        return sent


target = Coarse()
