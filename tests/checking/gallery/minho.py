"""Masked messages in a ring of 64-bit integers: the masks cancel in the sum of all clients."""

import numpy as np

CLAIM = {"epsilon": 0.1, "delta": 0.0, "scope": "run", "calls": 2, "adjacency": "replace-one"}
SCALE = 2.0**20


class Masked:
    def __init__(self) -> None:
        self.pads: dict[int, np.ndarray] = {}

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
        values = np.rint(update * SCALE).astype(np.int64).astype(np.uint64)
        self.pads[values.size] = rng.integers(0, 2**64, size=values.shape, dtype=np.uint64)
        return values + self.pads[values.size]


target = Masked()
