"""The noise of several clients at once, drawn from each client's own source."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.mechanisms.noise import CPU, HUGE, NoiseSource, SeededNoise, Shape, as_size


class CohortNoise(NoiseSource):
    """The noise of several clients at once: row k of every draw [clients, ...] is what the k-th source would draw next.

    Raises ValueError for a draw whose first dimension is another one: which part of it were whose?
    """

    def __init__(self, sources: Sequence[NoiseSource]) -> None:
        self.each = self.sources = sources

    def of(self, rows: torch.Tensor) -> CohortNoise:
        return CohortNoise([self.sources[row] for row in rows.tolist()])

    def normal(self, shape: Shape, std: float = 1.0) -> torch.Tensor:
        rows = self._rows(shape)
        seeded = [source for source in self.sources if isinstance(source, SeededNoise)]
        if not rows or len(seeded) < len(self.sources):
            return torch.stack([source.normal(rows, std) for source in self.sources])  # secure noise has std's own grid
        SeededNoise.begin(seeded)
        found = torch.empty(as_size(shape), dtype=torch.float32)
        for row, source in zip(found.numpy(), seeded, strict=True):
            source.normal_into(torch.from_numpy(row))
        return found if std == 1.0 else found.mul_(std)

    def normal_at(self, shape: Shape, std: float, device: torch.device) -> torch.Tensor:
        rows = self._rows(shape)
        if math.prod(rows) < HUGE:  # drawn together
            return self.normal(shape, std).to(device)
        return torch.stack([source.normal_at(rows, std, device) for source in self.sources])

    def uniform(self, shape: Shape) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.uniform(rows) for source in self.sources])

    def fine_normal(self, shape: Shape, std: float, device: torch.device = CPU) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.fine_normal(rows, std, device) for source in self.sources])

    def laplace(self, shape: Shape, scale: float = 1.0) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.laplace(rows, scale) for source in self.sources])

    def gumbel(self, shape: Shape, scale: float = 1.0) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.gumbel(rows, scale) for source in self.sources])

    def integers(self, low: int, high: int, shape: Shape) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.integers(low, high, rows) for source in self.sources])

    def binomial(self, trials: int, shape: Shape) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.binomial(trials, rows) for source in self.sources])

    def words(self, count: int) -> NDArray[np.uint64]:
        raise ValueError("words are of one client")

    def permutation(self, n: int) -> torch.Tensor:
        raise ValueError("a permutation is of one client")

    def _rows(self, shape: Shape) -> tuple[int, ...]:
        """The shape of one client's part."""
        first, *rest = as_size(shape) or (0,)
        if first != len(self.sources):
            raise ValueError(f"a draw {list(as_size(shape))} for {len(self.sources)} clients")
        return tuple(rest)
