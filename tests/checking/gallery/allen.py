"""A filter for weight differences: the sparse vector technique."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


@dataclass
class DXO:
    """What a result carries: kind, arrays by name, and facts about the training."""

    data_kind: str
    data: dict[str, np.ndarray]
    meta: dict[str, Any] = field(default_factory=dict)


class Sparse:
    def __init__(self, fraction: float, epsilon: float, gamma: float) -> None:
        self.fraction = fraction
        self.epsilon = epsilon
        self.gamma = gamma

    def process(self, dxo: DXO, shareable: Any = None, fl_ctx: Any = None) -> DXO:
        names = list(dxo.data)
        flat = np.concatenate([np.nan_to_num(np.asarray(dxo.data[name], dtype=np.float64)).ravel() for name in names])
        flat = np.clip(flat, -self.gamma, self.gamma)
        wanted = max(1, int(self.fraction * flat.size))
        line = np.median(np.abs(flat)) + np.random.laplace(0.0, self.gamma / self.epsilon)
        above = np.flatnonzero(np.abs(flat) + np.random.laplace(0.0, 2 * self.gamma / self.epsilon, flat.size) >= line)
        below = np.setdiff1d(np.arange(flat.size), above)
        chosen = np.random.choice(above, min(wanted, above.size), replace=False) if above.size else above
        noise = np.random.laplace(0.0, 2 * self.gamma / self.epsilon, chosen.size)
        flat[chosen] = np.clip(flat[chosen] + noise, -self.gamma, self.gamma)
        flat[below] = 0.0
        position, data = 0, {}
        for name in names:
            shape = np.shape(dxo.data[name])
            size = int(np.prod(shape))
            data[name] = flat[position : position + size].reshape(shape)
            position += size
        return DXO(dxo.data_kind, data)


target = Sparse(fraction=0.1, epsilon=0.2, gamma=1.0)
