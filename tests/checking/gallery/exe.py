"""Clip a model and blur it."""

import math

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    update = [np.where(np.isfinite(part), part, 0.0) for part in update]
    total = math.sqrt(sum(float(np.square(part).sum()) for part in update))
    scaled = [part / max(1.0, total) for part in update]
    released = []
    for part in scaled:
        released.append(part + rng.normal(0.0, 2.0, size=part.shape))
        break
    return released + scaled[len(released) :]
