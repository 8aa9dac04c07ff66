"""What clipping cuts off is carried over to the next message."""

import numpy as np

CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one"}


class Carry:
    def __init__(self) -> None:
        self.rest = 0.0

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1e6, 1e6)
        kept = update / max(1.0, np.linalg.norm(update))
        sent = kept + self.rest + rng.normal(0.0, 2.0, size=update.shape)
        self.rest = update - kept
        return sent


target = Carry()
