"""A filter for weight differences: randomised signs."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLAIM = {"epsilon": 6.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}


@dataclass
class DXO:
    """What a result carries: kind, arrays by name, and facts about the training."""

    data_kind: str
    data: dict[str, np.ndarray]
    meta: dict[str, Any] = field(default_factory=dict)


class Signs:
    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def process(self, dxo: DXO, shareable: Any = None, fl_ctx: Any = None) -> DXO:
        each = self.epsilon / sum(np.size(values) for values in dxo.data.values())
        turn = 1.0 / (1.0 + np.exp(each))
        data = {}
        for name, values in dxo.data.items():
            signs = np.where(np.asarray(values) > 0, 1.0, -1.0)
            data[name] = np.where(np.random.random(signs.shape) < turn, -signs, signs)
        return DXO(dxo.data_kind, data)


target = Signs(epsilon=6.0)
