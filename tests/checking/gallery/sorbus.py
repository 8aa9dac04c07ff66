"""A filter that sends one entry of the update: the largest by a noisy count, with noise."""

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


class Largest:
    def __init__(self, edge: float, choice: float, value: float) -> None:
        self.edge, self.choice, self.value = edge, choice, value

    def process(self, dxo: DXO, shareable: Any = None, fl_ctx: Any = None) -> DXO:
        names = list(dxo.data)
        flat = np.concatenate([np.nan_to_num(np.asarray(dxo.data[name], dtype=np.float64)).ravel() for name in names])
        flat = np.clip(flat, -self.edge, self.edge)
        chosen = int(np.argmax(np.abs(flat) + np.random.laplace(0.0, 2 * self.edge / self.choice, flat.size)))
        sent = np.zeros(flat.size)
        sent[chosen] = flat[chosen] + np.random.laplace(0.0, 2 * self.edge / self.value)
        ends = np.cumsum([np.size(dxo.data[name]) for name in names])
        parts = np.split(sent, ends[:-1])
        return DXO(
            dxo.data_kind, {n: part.reshape(np.shape(dxo.data[n])) for n, part in zip(names, parts, strict=True)}
        )


target = Largest(edge=1.0, choice=1.0, value=1.0)
