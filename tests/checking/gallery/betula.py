"""Noise that cancels in the long run."""

import numpy as np

CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one"}


class Paired:
    def __init__(self) -> None:
        self.kept = None

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        update = np.where(np.isfinite(update), update, 0.0)
        update = update / max(1.0, np.linalg.norm(update))
        if self.kept is None:
            noise = rng.normal(0.0, 2.0, size=update.shape)
            self.kept = -noise
        else:
            noise, self.kept = self.kept, None
        return update + noise


target = Paired()
