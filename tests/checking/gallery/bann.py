"""A filter for weight differences: Gaussian noise within a fixed range."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


@dataclass
class DXO:
    """What a result carries: kind, arrays by name, and facts about the training."""

    data_kind: str
    data: dict[str, np.ndarray]
    meta: dict[str, Any] = field(default_factory=dict)


class Range:
    def __init__(self, gamma: float, sigma: float) -> None:
        self.gamma = gamma
        self.sigma = sigma

    def process(self, dxo: DXO, shareable: Any = None, fl_ctx: Any = None) -> DXO:
        data = {}
        for name, values in dxo.data.items():
            values = np.nan_to_num(np.asarray(values, dtype=np.float64))
            noise = np.random.normal(0.0, self.sigma * self.gamma, size=values.shape)
            data[name] = np.clip(values + noise, -self.gamma, self.gamma)
        return DXO(dxo.data_kind, data)


target = Range(gamma=1.0, sigma=2.0)
