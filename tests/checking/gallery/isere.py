"""Local privacy with numpy's own generator."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: np.ndarray) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    return update + np.random.normal(0.0, 2.0, size=update.shape)
