"""Noise for each layer of a model."""

import math

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
CLIP = 1.0


def gaussian(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 2.0 * CLIP, size=shape)


def target(update: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    update = [np.where(np.isfinite(part), part, 0.0) for part in update]
    total = math.sqrt(sum(float(np.square(part).sum()) for part in update))
    factor = CLIP / max(total, CLIP)
    seed = int(rng.integers(2**62))
    return [part * factor + gaussian(part.shape, seed) for part in update]
