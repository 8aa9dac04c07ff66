"""A sketch of the update: eight random combinations of its coordinates."""

import numpy as np

CLAIM = {"epsilon": 4.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    matrix = rng.standard_normal((8, update.size)) / np.sqrt(8)
    return np.concatenate([matrix @ update, matrix.ravel()])
