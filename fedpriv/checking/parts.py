"""Trials of many numbers as few features: by the records that leave, such as the models after each step of a loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.subject import Numbers, Played

#: Parts that are looked at one by one, at most; numbers of a part at least.
MOST_PARTS, FEWEST_NUMBERS = 12, 2


@dataclass(frozen=True)
class Parts:
    """Of every part the weighted sum that separates the worlds best if numbers are independent, and the log of the sum
    of squares; of every two parts of one size that follow each other the log of that of their difference, in which a
    step of a loop is alone with its noise, and the least and the largest of these. Of all numbers the weighted sum, and
    the one that tells most.

    parts: places [size] of each; weights [k].
    """

    parts: tuple[NDArray[np.int64], ...]
    weights: Numbers
    best: int

    def __call__(self, values: Numbers) -> Numbers:
        """[n, features] of trials [n, k]."""
        found = [values @ self.weights, values[:, self.best]]
        before, steps = None, []
        for places in self.parts:
            part = values[:, places]
            found += [part @ self.weights[places], _log_squares(part)]
            if before is not None and before.shape == part.shape:
                steps.append(_log_squares(part - before))
            before = part
        if steps:
            found += [*steps, np.min(steps, axis=0), np.max(steps, axis=0)]
        return np.column_stack(found)

    @classmethod
    def of(cls, one: Played, pilots: Sequence[Numbers], kept: NDArray[np.bool_]) -> Parts:
        """pilots: trials of both worlds [n, k], of the ``kept`` ones of the numbers of a play."""
        first, second = pilots
        distance, spread = second.mean(0) - first.mean(0), (first.var(0) + second.var(0)) / 2
        spread = np.maximum(spread, 1e-9 * max(float(spread.max()), float(distance @ distance), 1e-300))
        weights = distance / spread
        weights /= max(float(np.abs(weights).max()), 1e-300)
        return cls(_places(one, kept), weights, int((np.abs(distance) / np.sqrt(spread)).argmax()))


def _log_squares(part: Numbers) -> Numbers:
    return np.asarray(np.log((part**2).sum(1) + 1e-300))


def _places(one: Played, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], ...]:
    """Places of each record among the kept numbers, in the order of the numbers in their names; too many: joined."""
    names = sorted(one.numbers)
    ends = np.cumsum([one.numbers[name].size for name in names])
    if not len(ends) or ends[-1] != len(kept):
        return (np.arange(int(kept.sum())),)
    place = np.cumsum(kept) - 1
    found = {}
    for name, end in zip(names, ends, strict=True):
        inside = np.arange(end - one.numbers[name].size, end)
        if kept[inside].sum() >= FEWEST_NUMBERS:
            found[name] = place[inside[kept[inside]]]
    ordered = [found[name] for name in sorted(found, key=_natural)]
    if len(ordered) > MOST_PARTS:
        ordered = [*ordered[: MOST_PARTS - 1], np.concatenate(ordered[MOST_PARTS - 1 :])]
    return tuple(ordered)


def _natural(name: str) -> list[tuple[int, str]]:
    """Records 2 and 10 in this order."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
