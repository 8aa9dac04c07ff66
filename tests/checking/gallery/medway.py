"""Momentum on the client."""

import numpy as np

CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one"}


class Momentum:
    def __init__(self) -> None:
        self.velocity = None

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        update = np.where(np.isfinite(update), update, 0.0)
        before = np.zeros(update.shape) if self.velocity is None else self.velocity
        clipped = update / max(1.0, np.linalg.norm(update))
        noisy = clipped + rng.normal(0.0, 2.0, size=update.shape)
        self.velocity = 0.9 * before + noisy
        return self.velocity


target = Momentum()
