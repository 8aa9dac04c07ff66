"""Noise that ends: numbers that it never reaches, and that the data put within reach.

Noise z is added, the same for both inputs, and the data move a number by d. If z is beyond t with probability at most
q, and beyond t - d with probability at least p, the event "the number is beyond t" shows that (epsilon, delta) needs
epsilon >= log((p - delta) / q), whatever the law of z is. t is the most that one half of the draws reached, p and q are
bounds of the other half [Clopper and Pearson 1934]. Numbers of one call count as draws of one law where their noise
has one deviation and their sizes are not correlated; else the one number that moves most is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from fedpriv.checking.budget import Budget, stopwatch
from fedpriv.checking.columns import Bools, Two, atoms
from fedpriv.checking.findings import Finding
from fedpriv.checking.replay_distance import pooled
from fedpriv.checking.replay_numbers import moved_noise
from fedpriv.checking.subject import Numbers, Pair, Question, Subject

#: Calls from which the ends of noise are seen; fewest; numbers in all, at most.
CALLS, FEWEST_CALLS, MOST_NUMBERS = 6_000, 400, 1_500_000
#: Error of both probabilities together.
ERROR = 1e-6
#: Noise ends where at least this many times more of it is within `EDGE` of its largest number than beyond that.
ABRUPT, EDGE = 8.0, 0.05


@dataclass(frozen=True)
class Reach:
    """epsilon: a lower bound that no law is assumed for. share: of the noise that one input puts out of the other's
    reach, at least. end: the largest noise, in its deviations. abrupt: the noise does not fade towards its end.
    """

    epsilon: float
    share: float
    end: float
    abrupt: bool


def ended(
    subject: Subject, question: Question, played: Sequence[tuple[Pair, Two, Bools]], budget: Budget
) -> list[Finding]:
    """At most one finding, of the pair in which one number moves most. played: pairs, what left, and which columns of
    all that leaves are in it.
    """
    usable = [(moved_most(two), pair, two, finite) for pair, two, finite in played if _covered(question, pair)]
    if not usable:
        return []
    size, pair, two, finite = max(usable, key=lambda one: one[0])
    if not size:
        return []
    try:
        with stopwatch() as taken:
            shape = subject.trials(pair.left, 4, question.seed).shape
        if shape[1] != len(finite) or not finite.all():
            return []
        affordable = budget.left / max(taken[0] / 4, 1e-7)
        calls = budget.allowed("calls that show where noise ends", affordable, min(CALLS, MOST_NUMBERS // shape[1]))
        if calls < FEWEST_CALLS:
            return []
        values = subject.trials(pair.left, calls, question.seed + 9)
    except Exception:  # of the target's own, now and then; or numbers that change their form
        return []
    order = np.argsort(np.argsort(two.records, kind="stable"))  # trials are in the order of the names
    values = values[np.isfinite(values).all(1)][:, order]
    found = reach_of(two, values, question.at_delta)
    claim = question.claim
    if found is None or (claim is not None and not found.epsilon > claim.epsilon and not found.abrupt):
        return []
    refuted = claim is not None and found.epsilon > claim.epsilon * (1 + 1e-3)
    more = f", where {claim.epsilon:g} is claimed." if claim is not None and refuted else "; if it ends, infinite."
    if not refuted and not (found.abrupt and found.share > 10 * question.at_delta):
        return []
    seen = (
        f"With {pair.name}, {100 * found.share:.2g} % of what leaves with one input is beyond all that left with the "
        f"other in {len(values):,} calls. Whatever the law of the noise is, epsilon is at least {found.epsilon:.3g}"
        f"{more}"
    )
    if not found.abrupt:
        remedy = "Scale the noise to what one client or example can change, under the adjacency of the claim."
        return [Finding("replayed", "moves-more-than-claimed", "fault", seen, remedy)]
    ends = f" The noise ends: it was hardly ever more than {found.end:.3g} of its deviations, and often just below."
    remedy = "Draw noise that has no end (do not cut or redraw large values), or account for what its end costs."
    return [Finding("replayed", "noise-ends", "fault" if refuted else "doubt", seen + ends, remedy)]


def _covered(question: Question, pair: Pair) -> bool:
    return question.claim is None or question.claim.covers(pair)


def moved_most(two: Two) -> float:
    """The largest move of one number, in deviations of noise that is added; 0 where none is."""
    if len(two.left) < 3 or not moved_noise(two):
        return 0.0
    usable = two.varying & ~atoms(two.left) & ~atoms(two.right)
    moves = np.abs((two.right - two.left).mean(0)[usable]) / two.left.std(0, ddof=1)[usable]
    return float(moves.max(initial=0.0))


def reach_of(two: Two, values: Numbers, delta: float) -> Reach | None:
    """values: of many calls with the left input [n, k], in the columns of ``two``. None: too few."""
    if len(values) < FEWEST_CALLS or values.shape[1] != len(two.varying):
        return None
    usable = np.flatnonzero(two.varying & ~atoms(two.left) & ~atoms(two.right))
    moves = (two.right - two.left).mean(0)[usable]
    most = int(np.argmax(np.abs(moves) / two.left.std(0, ddof=1)[usable]))
    noise = values[:, usable] - values[:, usable].mean(0)
    if np.ptp(pooled(noise.std(0, ddof=1), len(noise))) > 0 or _together(noise):
        noise = noise[:, [most]]
    return _bound(noise * np.sign(moves[most]), abs(float(moves[most])), float(noise.std()), delta)


def _together(noise: Numbers) -> bool:
    """Whether the sizes of two numbers of a call are correlated."""
    if noise.shape[1] < 2:
        return False
    sizes = np.abs(noise)
    sizes = (sizes - sizes.mean(0)) / sizes.std(0)
    # the square of a row's sum is its length, more or less, where its numbers are not correlated
    sums = sizes.sum(1) ** 2 / sizes.shape[1]
    return bool(abs(sums.mean() - 1) > 6 * max(float(sums.std()), 1.0) / math.sqrt(len(sums)))


def _bound(noise: Numbers, move: float, deviation: float, delta: float) -> Reach | None:
    """Of the better of both directions: the right input is beyond the left one's largest, or the left one below the
    right one's least.
    """
    found = []
    for one in (noise, -noise):
        first, second = one[::2].ravel(), one[1::2].ravel()
        end = float(first.max())
        beyond = upper(int((second > end).sum()), second.size)
        share = lower(int((second > end - move).sum()), second.size)
        edge = lower(int((second > end * (1 - EDGE)).sum()), second.size)
        epsilon = math.log((share - delta) / beyond) if share - delta > beyond else 0.0
        found.append(Reach(epsilon, share, end / deviation, edge > ABRUPT * beyond))
    return max(found, key=lambda one: (one.epsilon, one.share))


def upper(count: int, draws: int) -> float:
    """What a probability is at most, by Clopper and Pearson, at a quarter of `ERROR`: two bounds of two directions."""
    return 1.0 if count == draws else float(beta.ppf(1 - ERROR / 4, count + 1, draws - count))


def lower(count: int, draws: int) -> float:
    return 0.0 if count == 0 else float(beta.ppf(ERROR / 4, count, draws - count + 1))
