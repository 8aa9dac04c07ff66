"""One client's share of a noisy sum; the server reads each share."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
CLIENTS = 10
C = 1.0
STD = 2.0 * C


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update) / C)
    return update + rng.normal(0.0, STD / CLIENTS, size=update.shape)
