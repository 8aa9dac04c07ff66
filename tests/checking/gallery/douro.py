"""Local privacy with a generator per round."""

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
state = {"round": 0}


def target(update: np.ndarray) -> np.ndarray:
    state["round"] += 1
    source = np.random.default_rng(state["round"])
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    return update + source.normal(0.0, 2.0, size=update.shape)
