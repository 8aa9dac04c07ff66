"""A search over ranges that nobody moves by hand: its points, when it is widened, and where it ends.

Points are those of a scrambled Sobol sequence (`scipy.stats.qmc`), even in the logarithm of every option. Not by a
sampler that learns from trial to trial (TPE and the like): all trials of a sequence are known beforehand, so they run
side by side, are the same for any number of workers and after any interruption, and are as many, at the same places of
its ranges, for every method.

An option that rivals do not have (``own`` of a range) takes a further coordinate of the sequence and moves no point of
the others: over the shared options, searches with as many of them have the same points. The points of a sequence over
the shared options, with the further coordinates of one over all options beside them, are again a scrambled Sobol
sequence over all options. For a coordinate's generator does not depend on how many there are, and scrambling acts on
each coordinate alone: it permutes the intervals of every length 2^-k among themselves. So the boxes of any shape, all
together, hold as many points each as those of the sequence without scrambling.

A best trial in the outermost tenth of a range (of its logarithm) stands at an edge: the best may lie beyond. Then every
search of the board gets the same number of further trials; a range whose own best stands at an edge grows there by a
fixed factor, and the further trials lie in what was added; the others' lie in the ranges that they have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from fedpriv.config.options import Options

#: Of the length of a range's logarithm: where its edges begin.
EDGE = 0.1
Side = Literal["low", "high"]


class Range(Options):
    """Values of one option. least, most: limits of the option itself, beyond which no range grows. whole: integers
    alone. near_one: even in the logarithm of 1 - value, for a factor of which all that happens is near 1; low and high
    are then the option's limits too. own: of an option that rivals do not have.
    """

    low: float = Field(gt=0, allow_inf_nan=False)
    high: float = Field(gt=0, allow_inf_nan=False)
    least: float = Field(default=0.0, ge=0)
    most: float = math.inf
    whole: bool = False
    near_one: bool = False
    own: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.least <= self.low < self.high <= self.most:
            raise ValueError(f"low={self.low:g}, high={self.high:g}: allowed: least <= low < high <= most")
        if self.near_one and not self.high < 1:
            raise ValueError(f"high={self.high:g} with near_one: allowed: less than 1")
        if self.whole and (self.near_one or not (self.low.is_integer() and self.high.is_integer())):
            raise ValueError(f"low={self.low:g}, high={self.high:g} with whole: allowed: integers, without near_one")
        return self

    def at(self, share: float) -> float:
        """The value at a share of the way from low to high, in logarithms, to three significant digits."""
        if self.near_one:
            value = 1 - (1 - self.low) * ((1 - self.high) / (1 - self.low)) ** share
        else:
            value = self.low * (self.high / self.low) ** share
        value = min(self.high, max(self.low, value))
        return float(round(value)) if self.whole else float(f"{value:.3g}")

    def side(self, value: float) -> Side | None:
        """The edge at which a value stands, unless the option itself ends there."""
        if self.near_one:
            return None
        place = math.log(value / self.low) / math.log(self.high / self.low)
        if place <= EDGE and self.low > self.least:
            return "low"
        return "high" if place >= 1 - EDGE and self.high < self.most else None

    def beyond(self, side: Side | None, factor: float) -> Range:
        """What widening adds on a side; the range itself where it is not widened."""
        if side is None:
            return self
        if side == "low":
            return self.model_copy(update={"low": max(self.least, self._on_grid(self.low / factor)), "high": self.low})
        return self.model_copy(update={"low": self.high, "high": min(self.most, self._on_grid(self.high * factor))})

    def _on_grid(self, end: float) -> float:
        return float(max(1, round(end))) if self.whole else end

    def grown(self, side: Side | None, factor: float) -> Range:
        added = self.beyond(side, factor)
        return self.model_copy(update={"low": min(self.low, added.low), "high": max(self.high, added.high)})

    def in_words(self) -> str:
        scale = ", integers" if self.whole else ", even in the logarithm of its distance to 1" if self.near_one else ""
        return f"{self.low:g} to {self.high:g}{scale}"


Space = Mapping[str, Range]
Trial = tuple[str, ...]


@dataclass(frozen=True)
class Search:
    """Of one method at one target. space: its ranges now; trials: what is tried, as overrides, in order."""

    space: Space
    trials: tuple[Trial, ...]

    def further(self, best: Trial | None, count: int, seed: int, factor: float) -> Search:
        """With so many more trials, in what the best one widens, or in the same ranges."""
        sides = self.sides(best)
        shares = _shares(self.space, len(self.trials) + count, seed)[len(self.trials) :]
        added = {option: own.beyond(sides.get(option), factor) for option, own in self.space.items()}
        grown = {option: own.grown(sides.get(option), factor) for option, own in self.space.items()}
        return replace(self, space=grown, trials=(*self.trials, *(_trial(added, share) for share in shares)))

    def sides(self, best: Trial | None) -> dict[str, Side]:
        """Option -> the edge at which the best trial stands."""
        if best is None:
            return {}
        values = {option: float(value) for option, _, value in (override.partition("=") for override in best)}
        found = {option: own.side(values[option]) for option, own in self.space.items()}
        return {option: side for option, side in found.items() if side is not None}

    def in_words(self) -> str:
        return "; ".join(f"{option} from {own.in_words()}" for option, own in self.space.items())


def begin(space: Space, count: int, seed: int) -> Search:
    return Search(space, tuple(_trial(space, share) for share in _shares(space, count, seed)))


def _shares(space: Space, count: int, seed: int) -> list[list[float]]:
    """Point by point, where each option stands on its range, in the order of the space."""
    shared = sum(not one.own for one in space.values())
    first, whole = points(shared, count, seed), points(len(space), count, seed)
    order = [*(o for o, one in space.items() if not one.own), *(o for o, one in space.items() if one.own)]
    both = (dict(zip(order, (*a, *b[shared:]), strict=True)) for a, b in zip(first, whole, strict=True))
    return [[share[option] for option in space] for share in both]


def _trial(space: Space, shares: Sequence[float]) -> Trial:
    return tuple(f"{option}={own.at(share):g}" for (option, own), share in zip(space.items(), shares, strict=True))


def points(dimensions: int, count: int, seed: int) -> list[list[float]]:
    """The first ``count`` points of the sequence in [0, 1)^dimensions; a longer call begins with the same ones."""
    from scipy.stats import qmc  # half a second to import

    sequence = qmc.Sobol(dimensions, scramble=True, rng=seed)
    found: list[list[float]] = sequence.random_base2(max(1, math.ceil(math.log2(count))))[:count].tolist()
    return found


def drawn(space: Space, rng: np.random.Generator) -> Trial:
    """One trial at random, independent of any other: what private selection needs."""
    return _trial(space, rng.random(len(space)).tolist())
