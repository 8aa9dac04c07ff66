"""What the auditor looks at in releases that are too long to be shown whole: a few numbers of each trial.

Of every release the inner product with the effect of the data; of all releases of a trial together their squared
length, the coordinates that tell the worlds apart best by their mean and by their spread, the largest coordinate, how
many are zero, and the low bits of all (as numbers, and how often they are zero). What the data change is learned
beforehand, from pilot trials with the same noise in both worlds, none of which is measured: choosing badly costs power,
never validity. Shapes: n trials, d numbers of a release.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: The low bits of a float32, of 24 that it holds.
LOW = 0xFF
#: A number's variance is taken for no less than this share of the most, so that a bare one decides by itself.
LEAST = 1e-9


class Sums:
    """Sums [d] of a release's numbers, of their squares and of their low bits, over the pilot trials of one world."""

    def __init__(self) -> None:
        self.count, self.parts = 0, [torch.zeros(()).double() for _ in range(4)]

    def add(self, value: Tensor) -> None:
        """value: [n, d]."""
        exact, low = value.double(), low_bits(value).double()
        self.count += len(value)
        for index, part in enumerate((exact, exact**2, low, low**2)):
            self.parts[index] = self.parts[index] + part.sum(0)

    def moments(self, first: int) -> tuple[Tensor, Tensor]:
        """(mean [d], variance [d]) of the numbers (``first`` 0) or of their low bits (2)."""
        mean = self.parts[first] / self.count
        return mean, (self.parts[first + 1] / self.count - mean**2).clamp(min=0)


@dataclass(frozen=True)
class Place:
    """What to look at in one release of a trial: weights [d], indices, and the scale of its squared length."""

    weights: Tensor
    mean_at: int
    spread_at: int
    low_weights: Tensor
    scale: float

    @classmethod
    def learned(cls, worlds: tuple[Sums, Sums]) -> Place:
        (zero, variance0), (one, variance1) = (sums.moments(0) for sums in worlds)
        distance, variance = one - zero, (variance0 + variance1) / 2
        floor = max(LEAST * max(float(variance.max()), float((distance**2).max())), 1e-300)
        weights, telling = distance / variance.clamp(min=floor), distance.abs() / variance.clamp(min=floor).sqrt()
        unlike = ((variance0 + floor) / (variance1 + floor)).log().abs()
        (low0, spread0), (low1, spread1) = (sums.moments(2) for sums in worlds)
        low = (low1 - low0) / ((spread0 + spread1) / 2 + 1)
        return cls(
            _unit(weights),
            int(telling.argmax()),
            int(unlike.argmax()),
            _unit(low),
            float(variance.mean()) or float((one**2).mean()) or 1.0,
        )


@dataclass
class Seen:
    """What has been seen of n trials so far, [n] each: of every release, beside it, and of all together by name."""

    matched: list[Tensor] = field(default_factory=list)
    beside: list[Tensor] = field(default_factory=list)
    totals: dict[str, Tensor] = field(default_factory=dict)

    def add(self, value: Tensor, place: Place) -> None:
        """A release [n, d]."""
        self.matched.append(value @ place.weights)
        low = low_bits(value)
        self._total("squared length", torch.linalg.vecdot(value, value) / place.scale)
        self._total("by mean", value[:, place.mean_at])
        self._total("by spread", value[:, place.spread_at])
        self._total("zeros", (value == 0).sum(1))
        self._total("low bits", low @ place.low_weights)
        self._total("no low bits", (low == 0).sum(1))
        largest = value.abs().amax(1)
        known = self.totals.get("largest", largest)
        self.totals["largest"] = torch.maximum(known, largest)

    def _total(self, name: str, numbers: Tensor) -> None:
        self.totals[name] = self.totals.get(name, torch.zeros(())) + numbers.float()

    def features(self) -> Tensor:
        """[n, features]."""
        return torch.stack([*self.matched, *self.totals.values(), *self.beside], dim=1)


def low_bits(value: Tensor) -> Tensor:
    """The last eight bits of float32 numbers, as float32."""
    return (value.view(torch.int32) & LOW).float()


def _unit(weights: Tensor) -> Tensor:
    return (weights / weights.abs().max().clamp(min=1e-300)).float()


@dataclass(frozen=True)
class Summary:
    """Three features of every ``block`` numbers: the weighted sum that separates the worlds best if they are
    independent, the best single number, and the sum of squares. Numbers after the last full block are passed through.
    """

    block: int
    weights: NDArray[np.float32]  # [blocks, block]
    best: int  # index in each block

    def __call__(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, features] of trials [n, numbers]."""
        blocks, whole = len(self.weights), self.weights.size
        parts = values[:, :whole].reshape(len(values), blocks, self.block)
        matched = np.einsum("nbk,bk->nb", parts, self.weights)
        squares = np.einsum("nbk,nbk->nb", parts, parts)
        found: NDArray[np.float32] = np.concatenate(
            [matched, parts[:, :, self.best], squares, values[:, whole:]], axis=1
        )
        return found

    @classmethod
    def learned(cls, world0: NDArray[np.float32], world1: NDArray[np.float32], block: int) -> Summary:
        blocks = world0.shape[1] // block
        first, second = (world[:, : blocks * block].astype(np.float64) for world in (world0, world1))
        distance, spread = second.mean(0) - first.mean(0), (first.var(0) + second.var(0)) / 2
        spread = np.maximum(spread, 1e-9 * max(spread.max(), float(distance @ distance), 1e-300))
        telling = (np.abs(distance) / np.sqrt(spread)).reshape(blocks, block).max(0)
        weights = (distance / spread).reshape(blocks, block)
        weights /= np.maximum(np.abs(weights).max(1, keepdims=True), 1e-300)
        return cls(block, weights.astype(np.float32), int(telling.argmax()))
