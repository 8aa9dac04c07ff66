"""A unit direction near the update's own, or away from it."""

import math

import numpy as np

CLAIM = {"epsilon": 3.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    length = np.linalg.norm(update)
    draw = rng.standard_normal(update.size)
    direction = draw / np.linalg.norm(draw) if length == 0 or not np.isfinite(length) else update / length
    sample = rng.standard_normal(update.size)
    sample = sample / np.linalg.norm(sample)
    keep = rng.random() < math.exp(CLAIM["epsilon"]) / (1.0 + math.exp(CLAIM["epsilon"]))
    same = float(sample @ direction) >= 0
    return sample if same == keep else -sample
