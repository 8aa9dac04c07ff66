"""A clipped update on a grid, with discrete noise."""

import numpy as np

CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
CLIP = 1.0
STEP = 0.5
STD = 2.0


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    finite = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    clipped = finite * (CLIP / max(CLIP, float(np.linalg.norm(finite))))
    steps = np.sign(clipped) * np.floor(np.abs(clipped) / STEP + 0.5)
    noise = np.rint(rng.normal(0.0, STD / STEP, size=steps.shape))
    return (steps + noise) * STEP
