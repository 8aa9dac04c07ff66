"""How far the data move what leaves, in deviations of noise that is added to it, and what that costs.

Where two neighbouring inputs differ under every seed by the same numbers, the noise is added, and the same for both.
If it looks Gaussian or Laplace, independent from number to number, its cost is known: with distance mu in deviations,
that of a Gaussian mechanism [Balle and Wang 2018]; with the sum of the moves over the scales, pure epsilon of Laplace
noise [Dwork et al. 2006]. Correlated noise is found by the deviation of the sum of all numbers weighted by their moves:
what one weighted sum shows, everything shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedpriv.checking.budget import Budget, stopwatch
from fedpriv.checking.columns import Two
from fedpriv.checking.replay_numbers import ENOUGH, GAUSS, LAPLACE, distance_in_noise, follows, moved_noise
from fedpriv.checking.subject import Claim, Numbers
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

#: Plays of one input from which deviations are taken, where time allows, and at least; the share of the time for more
#: of them, and for the least.
ENOUGH_PLAYS, LEAST_PLAYS, MORE_SHARE, MOST_SHARE = 192, 32, 0.5, 0.8
#: Deviations of an estimate's error that are allowed for.
ERRORS = 4.5


@dataclass(frozen=True)
class Distance:
    """size: in deviations of the noise; pure: the sum of moves over Laplace scales. least: what both are at least a
    factor of, were the noise as large as its error allows. law: None: no noise of a known law is added.
    """

    size: float = 0.0
    law: Literal["Gaussian", "Laplace"] | None = None
    pure: float = 0.0
    least: float = 0.0

    def epsilon(self, delta: float, calls: int = 1, least: bool = False) -> float:
        """Of so many calls with noise of their own. Laplace noise at delta 0 alone; above it 0, which is no bound."""
        factor = self.least if least else 1.0
        if self.law == "Gaussian":
            return gaussian_epsilon(self.size * factor * math.sqrt(calls), delta)
        return self.pure * factor * calls if self.law == "Laplace" and delta == 0 else 0.0


def distance_of(two: Two, more: Callable[[int], Numbers], budget: Budget) -> Distance:
    """more: so many further plays of the left input [n, k], in the columns of ``two``."""
    if not two.varying.any():
        return Distance()
    chosen = two.only(two.varying)
    noise = np.concatenate([side - side.mean(0) for side in (chosen.left, chosen.right)])
    if not moved_noise(two):
        deviations = noise.std(0) * math.sqrt(len(chosen.left) / (len(chosen.left) - 1))
        return Distance(distance_in_noise(chosen, pooled(deviations, len(chosen.left))))
    left = np.concatenate([chosen.left, _further(chosen, two, more, budget)])
    noise = left - left.mean(0)
    deviations = left.std(0, ddof=1)
    scales = pooled(deviations, len(left))
    size = distance_in_noise(chosen, scales)
    law = law_of(noise) if size else None  # equal for both inputs: nothing is told of
    if law is None:
        return Distance(size)
    moved = (chosen.right - chosen.left).mean(0)
    alike = np.ptp(scales) <= 1e-9 * scales.max()
    error = ERRORS / math.sqrt(2 * (len(left) - 1) * (len(scales) if alike else 1))
    if law == "Laplace":  # its deviation is less sure, and sqrt(2) times its scale
        error *= math.sqrt(2.5)
    together = noise @ (moved / scales**2)
    correlated = float(together.std(ddof=1)) / max(size, 1e-300) if size else 1.0
    least = 1 / (1 + error) if error < 1 else 0.0
    pure = float((np.abs(moved) / scales).sum()) * math.sqrt(2)
    shared = max(1.0, correlated)
    return Distance(size / shared, law, pure / shared, least)


def law_of(noise: Numbers) -> Literal["Gaussian", "Laplace"] | None:
    """The law that centred numbers [n, k] follow; None where it is neither, or may be both."""
    gaussian, laplace = follows(noise, GAUSS), follows(noise, LAPLACE)
    return "Gaussian" if gaussian and not laplace else "Laplace" if laplace and not gaussian else None


def _further(chosen: Two, two: Two, more: Callable[[int], Numbers], budget: Budget) -> Numbers:
    """Further plays [n, k], until the law of the noise can be told, as far as the time goes; none if it does not go so
    far.
    """
    count, numbers = chosen.left.shape
    needed = max(LEAST_PLAYS, math.ceil(ENOUGH / numbers)) - count
    wanted = max(ENOUGH_PLAYS - count, needed)
    none = np.zeros((0, numbers))
    if wanted <= 0:
        return none
    with stopwatch() as taken:
        first = more(2)
    affordable = budget.left / max(taken[0] / 2, 1e-6)
    many = min(wanted, max(int(MORE_SHARE * affordable), min(needed, int(MOST_SHARE * affordable))))
    if many < max(2, needed) or first.shape[1] != len(two.varying):
        return none
    found = more(many)
    return found[:, two.varying] if found.shape[1] == len(two.varying) else none


def pooled(deviations: Numbers, plays: int) -> Numbers:
    """One deviation for all columns where they are equal within their errors."""
    error = ERRORS / math.sqrt(2 * max(1, plays - 1))
    middle = float(np.sqrt((deviations**2).mean()))
    if (np.abs(deviations - middle) <= error * middle).all():
        return np.full_like(deviations, middle)
    return deviations


def doubled(claim: Claim) -> Claim:
    """What a claim about one unit and none says of one unit against another: two steps [Dwork and Roth 2014, 2.2]."""
    delta = min(math.nextafter(1, 0), claim.delta * (1 + math.exp(min(claim.epsilon, 700.0))))
    return replace(claim, epsilon=2 * claim.epsilon, delta=delta, adjacency="replace-one")
