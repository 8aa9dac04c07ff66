"""Several local steps in one message."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
LOCAL_STEPS = 5


def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    step = update / max(1.0, np.linalg.norm(update))
    return LOCAL_STEPS * step + rng.normal(0.0, 2.0, size=update.shape)
