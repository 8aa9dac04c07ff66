"""Running sums of four updates through a binary tree."""

import numpy as np

CLAIM = {"epsilon": 12.5, "delta": 1e-5, "scope": "run", "calls": 4, "adjacency": "replace-one"}
C = 1.0
STD = 4.0


class Tree:
    def __init__(self) -> None:
        self.time = 0
        self.sums: dict[int, np.ndarray] = {}
        self.noise: dict[int, np.ndarray] = {}

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        update = np.where(np.isfinite(update), update, 0.0)
        update = update / max(1.0, np.linalg.norm(update) / C)
        self.time += 1
        level = (self.time & -self.time).bit_length() - 1
        self.sums[level] = update + sum(self.sums.pop(lower, 0.0) for lower in range(level))
        if level not in self.noise:
            self.noise[level] = rng.normal(0.0, STD, size=update.shape)
        return sum(value + self.noise[depth] for depth, value in self.sums.items())


target = Tree()
