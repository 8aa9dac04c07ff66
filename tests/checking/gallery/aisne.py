"""Private release of a model's layers, each clipped."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
CLIP = 1.0
STD = 2.0


def clip(layer: np.ndarray) -> np.ndarray:
    layer = np.where(np.isfinite(layer), layer, 0.0)
    return layer * (CLIP / max(np.linalg.norm(layer), CLIP))


def target(update: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    return [clip(layer) + rng.normal(0.0, STD, size=layer.shape) for layer in update]
