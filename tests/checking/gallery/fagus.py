"""A filter for weight differences with noise made in advance."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLAIM = {"epsilon": 16.0, "delta": 1e-5, "scope": "run", "calls": 8, "adjacency": "replace-one"}


@dataclass
class DXO:
    """What a result carries: kind, arrays by name, and facts about the training."""

    data_kind: str
    data: dict[str, np.ndarray]
    meta: dict[str, Any] = field(default_factory=dict)


class Prepared:
    def __init__(self, clip: float, sigma: float, ready: int) -> None:
        self.clip = clip
        self.sigma = sigma
        self.ready = ready
        self.pool: dict[tuple[int, int], np.ndarray] = {}

    def noise(self, size: int) -> np.ndarray:
        chosen = int(np.random.randint(self.ready))
        if (chosen, size) not in self.pool:
            self.pool[chosen, size] = np.random.normal(0.0, self.sigma * self.clip, size=size)
        return self.pool[chosen, size]

    def process(self, dxo: DXO, shareable: Any = None, fl_ctx: Any = None) -> DXO:
        flat = np.concatenate([np.asarray(values, dtype=np.float64).ravel() for values in dxo.data.values()])
        flat = np.where(np.isfinite(flat), flat, 0.0)
        flat = flat / max(1.0, np.linalg.norm(flat) / self.clip) + self.noise(flat.size)
        position, data = 0, {}
        for name, values in dxo.data.items():
            size = np.size(values)
            data[name] = flat[position : position + size].reshape(np.shape(values))
            position += size
        return DXO(dxo.data_kind, data)


target = Prepared(clip=1.0, sigma=2.0, ready=16)
