"""A filter for weight differences: integer noise on a grid."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLAIM = {"epsilon": 3.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}


@dataclass
class DXO:
    """What a result carries: kind, arrays by name, and facts about the training."""

    data_kind: str
    data: dict[str, np.ndarray]
    meta: dict[str, Any] = field(default_factory=dict)


class Grid:
    def __init__(self, epsilon: float, steps: int) -> None:
        self.chance = 1 - np.exp(-epsilon / (2 * steps))
        self.steps = steps

    def process(self, dxo: DXO, shareable: Any = None, fl_ctx: Any = None) -> DXO:
        data = {name: np.asarray(values, dtype=np.float64) for name, values in dxo.data.items()}
        data = {name: np.where(np.isfinite(values), values, 0.0) for name, values in data.items()}
        size = sum(np.abs(values).sum() for values in data.values())
        for name, values in data.items():
            grid = np.trunc(values / max(1.0, size) * self.steps)
            noise = np.random.geometric(self.chance, grid.shape) - np.random.geometric(self.chance, grid.shape)
            data[name] = (grid + noise) / self.steps
        return DXO(dxo.data_kind, data)


target = Grid(epsilon=3.0, steps=100)
