"""A filter for weight differences: clip and noise."""

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


class Gaussian:
    def __init__(self, clip: float, sigma: float) -> None:
        self.clip = clip
        self.sigma = sigma

    def process(self, dxo: DXO, shareable: Any = None, fl_ctx: Any = None) -> DXO:
        data = {name: np.asarray(values, dtype=np.float64) for name, values in dxo.data.items()}
        data = {name: np.where(np.isfinite(values), values, 0.0) for name, values in data.items()}
        size = np.sqrt(sum(np.square(values).sum() for values in data.values()))
        for name, values in data.items():
            noise = np.random.normal(0.0, self.sigma * self.clip, size=values.shape)
            data[name] = values / max(1.0, size / self.clip) + noise
        return DXO(dxo.data_kind, data, {**dxo.meta, "filtered_norm": float(size)})


target = Gaussian(clip=1.0, sigma=2.0)
