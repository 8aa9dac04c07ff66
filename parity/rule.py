"""When two programs agree. Written and committed before any peer was run.

Every job is run with the same seeds on both sides; both have the seed's clients, rows and first model in common, and
draw cohorts, batches and noise on their own. d_s is the difference of the final test accuracies of seed s.

1. Accuracy: two one-sided t tests at 5 % each show that the mean of d_s lies within `MARGIN`: its 90 % interval does.
   So a pair that could not be told apart because it varies too much fails, and so does a clear difference.
2. The test sees something: the job with a planted fault (half a learning rate, twice the noise, ...) on fedpriv's side
   does not pass 1. Otherwise the job is too easy to say anything, and counts as failed.
3. Epsilon: where a peer's accountant is tight (privacy loss distributions or random variables, of the same event and
   adjacency), it differs by less than `EPSILON_SHARE` of its own. Where the peer composes by Rényi divergences, which
   only bound it, ours is no larger than the peer's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

#: Of accuracy: seven of the 360 test pictures.
MARGIN = 0.02
EPSILON_SHARE = 0.01


@dataclass(frozen=True)
class Difference:
    """Of the mean accuracy: ours - the peer's, with its 90 % interval."""

    mean: float
    low: float
    high: float

    @property
    def within(self) -> bool:
        return self.low > -MARGIN and self.high < MARGIN


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Of accuracies by seed, in the same order. Raises ValueError where these are not as many, fewer than five, or not
    finite.
    """
    if len(ours) != len(theirs) or len(ours) < 5:
        raise ValueError(f"{len(ours)} and {len(theirs)} seeds: as many on both sides, and at least five")
    each = np.subtract(ours, theirs)
    if not np.isfinite(each).all():
        raise ValueError(f"accuracies that are not finite: {ours} and {theirs}")
    half = student.ppf(0.95, len(each) - 1) * each.std(ddof=1) / math.sqrt(len(each))
    return Difference(float(each.mean()), float(each.mean() - half), float(each.mean() + half))


def epsilons_agree(ours: float | None, theirs: float | None, accountant: str) -> bool:
    """accountant: of the peer, ``tight`` or ``rényi``; ``none`` where nothing is private on either side."""
    if accountant == "none":
        return ours is None and theirs is None
    if ours is None or theirs is None:
        return False
    if accountant == "rényi":
        return 0 < ours <= theirs * (1 + 1e-9)
    return abs(ours - theirs) < EPSILON_SHARE * theirs


def fault(
    ours: Sequence[float],
    theirs: Sequence[float],
    planted: Sequence[float],
    epsilons: tuple[float | None, float | None],
    accountant: str,
) -> str | None:
    """What is wrong with a pair, or None. planted: fedpriv's accuracies with the planted fault."""
    found = difference(ours, theirs)
    if not found.within:
        return f"accuracy differs by {found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    if difference(planted, theirs).within:
        return "the planted fault is not seen"
    if not epsilons_agree(*epsilons, accountant):
        return f"epsilon {epsilons[0]} beside {epsilons[1]} ({accountant})"
    return None
