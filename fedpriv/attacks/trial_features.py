"""Long trials as few features, for the auditor: three of every block of numbers, learned from separate draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Numbers of a trial that are all shown to the distinguisher; longer trials are reduced.
MOST_FEATURES = 64
#: Trials in each world from which it is learned where to look; none of them is measured.
PILOT = 4096


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
    def learned(cls, world0: NDArray[Any], world1: NDArray[Any], block: int) -> Summary:
        blocks = world0.shape[1] // block
        first, second = (world[:, : blocks * block].astype(np.float64) for world in (world0, world1))
        distance, spread = second.mean(0) - first.mean(0), (first.var(0) + second.var(0)) / 2
        spread = np.maximum(spread, 1e-9 * max(spread.max(), float(distance @ distance), 1e-300))
        telling = (np.abs(distance) / np.sqrt(spread)).reshape(blocks, block).max(0)
        weights = (distance / spread).reshape(blocks, block)
        weights /= np.maximum(np.abs(weights).max(1, keepdims=True), 1e-300)
        return cls(block, weights.astype(np.float32), int(telling.argmax()))


def summarised(sample: Any, pilot: Sequence[NDArray[Any]], block: int, matched: bool = False) -> Any:
    """The sampler itself where its trials are short; else one of summaries, learned from ``pilot``, separate draws of
    both worlds. matched: the summary's sums stand before the numbers of short trials as well.
    """
    short = block == 1 or pilot[0].shape[1] <= MOST_FEATURES
    if short and not matched:
        return sample
    summary = Summary.learned(pilot[0], pilot[1], block)
    if not short:
        return lambda world, trials, seed: summary(sample(world, trials, seed))

    def both(world: bool, trials: int, seed: int) -> NDArray[np.float32]:
        values = sample(world, trials, seed)
        found: NDArray[np.float32] = np.concatenate([summary(values)[:, : len(summary.weights)], values], axis=1)
        return found

    return both
