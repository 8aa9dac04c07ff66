"""One client's history of releases as a multiset, and the best bound that any accountant gives for it.

`compose` and the rest of the public interface are in `composition`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np

from fedpriv.mechanisms.laws import renyi_to_epsilon
from fedpriv.privacy.event_costs import pure_epsilon, renyi_curve
from fedpriv.privacy.events import Event
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, shifted_epsilon, total_mu

#: Unordered (event with count 1, number of times): equal histories compare equal.
History = frozenset[tuple[Event, int]]

_PLD_UP_TO_EPSILON = 1e8
#: Beyond this epsilon a grid may cost a share of epsilon, instead of next to nothing; points of a grid; and the losses
#: that exp() holds.
_LARGE_EPSILON, _GRID_SHARE, _MOST_POINTS, _MOST_LOSS = 100.0, 2.5e-3, 4e6, 500.0
_PLD_UP_TO_COMPOSITIONS = 10_000
_PLD_FEW_KINDS = 16
_PLD_KINDS = 96  # most distributions per history: takes seconds, and is within 1% of using all of them


@dataclass(frozen=True)
class Composed:
    """epsilon at the requested delta; the reasons, in words, where it is infinite."""

    epsilon: float
    accountant: str
    reasons: tuple[str, ...] = ()


# --- multisets -------------------------------------------------------------------------------------------------


def make_history(events: Sequence[Event]) -> History:
    """Multiset of single releases. Counts by identity first: that is fast, since most events are one shared object."""
    by_identity = Counter(map(id, events))
    distinct = {id(event): event for event in events}
    counts: Counter[Event] = Counter()
    for identity, times in by_identity.items():
        event = distinct[identity]
        single = event if event.count == 1 else replace(event, count=1)
        counts[single] += times * event.count
    if len({event.threat for event in counts}) > 1:
        raise ValueError("events of different threats are never composed")
    return frozenset(counts.items())


def collect_histories(sequences: Iterable[Sequence[Event]]) -> list[History]:
    """`make_history` of each; sequences of identical objects are examined once."""
    alive = [events if isinstance(events, list | tuple) else tuple(events) for events in sequences]  # keeps ids unique
    known: dict[frozenset[tuple[int, int]], History] = {}
    found = []
    for events in alive:
        identities = frozenset(Counter(map(id, events)).items())
        if identities not in known:
            known[identities] = make_history(events)
        found.append(known[identities])
    if len({event.threat for history in known.values() for event, _ in history}) > 1:
        raise ValueError("events of different threats are never composed or compared")
    return found


def contains(larger: History, smaller: History) -> bool:
    """Whether the second costs no more than the first for certain: its events are among the first's, or both are one
    event, repeated, and the first's is as bad as the worst of the two (`Event.worst_with`: of Gaussians over Poisson
    samples the larger rate and the smaller multiplier; a sample of rate q' < q is with probability q'/q one of rate q,
    and otherwise empty, so joint convexity gives every hockey-stick divergence at most q'/q of that of q).
    """
    counts = dict(larger)
    if all(counts.get(event, 0) >= count for event, count in smaller):
        return True
    if len(larger) != 1 or len(smaller) != 1:
        return False
    ((one, many),), ((other, few),) = larger, smaller
    if type(one) is not type(other) or one.likeness is None or few > many:
        return False
    return one.worst_with(other) == one


# --- cheap bounds: closed form, Renyi, sums --------------------------------------------------


def first_bounds(histories: Sequence[History], delta: float) -> dict[History, Composed]:
    """The best of closed form, RDP and basic composition for each."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must be in [0, 1)")
    bounds: dict[History, Composed] = {}
    others: list[History] = []
    for history in histories:
        reasons = {why for event, _ in history if (why := event.why_unbounded())}
        gaussians = [(event.gaussian_multiplier, count) for event, count in history]
        if reasons:
            bounds[history] = Composed(math.inf, "none", tuple(sorted(reasons)))
        elif not history:
            bounds[history] = Composed(0.0, "none")
        elif all(multiplier is not None for multiplier, _ in gaussians):
            bounds[history] = Composed(gaussian_epsilon(total_mu(gaussians), delta), "gaussian")  # type: ignore[arg-type]
        else:
            others.append(history)
    if others:
        bounds |= _renyi_or_basic(others, delta)
    return bounds


def _renyi_or_basic(histories: Sequence[History], delta: float) -> dict[History, Composed]:
    """One matrix product for all histories: counts [histories, events] times curves [events, orders]."""
    events = sorted({event for history in histories for event, _ in history}, key=repr)
    column = {event: index for index, event in enumerate(events)}
    counts = np.zeros((len(histories), len(events)))
    for row, history in enumerate(histories):
        for event, count in history:
            counts[row, column[event]] = count
    curves = np.stack([renyi_curve(event) for event in events])
    infinite = counts @ np.isinf(curves) > 0  # 0 * infinity is not 0 in a product
    totals = np.where(infinite, np.inf, counts @ np.where(np.isinf(curves), 0.0, curves))
    bounds = {}
    for row, history in enumerate(histories):
        paid = math.fsum(event.delta_share * count for event, count in history)
        if paid > delta:
            why = f"the releases use up a delta of {paid:.3g}, more than the target {delta:.3g}"
            bounds[history] = Composed(math.inf, "none", (why,))
            continue
        by_renyi = float(renyi_to_epsilon(totals[row], delta - paid))
        by_sum = math.fsum(pure_epsilon(event) * count for event, count in history)
        mu, shift, others = _gaussians(history)
        near = math.inf if others else shifted_epsilon(mu, shift, delta - paid)
        best = min((by_sum, "basic"), (near, "gaussian"), (by_renyi, "rdp"), key=lambda pair: pair[0])
        bounds[history] = Composed(*best)
    return bounds


def _gaussians(history: Iterable[tuple[Event, int]]) -> tuple[float, float, list[tuple[Event, int]]]:
    """(mu and shift of all releases that are Gaussian, or nearly so; the other ones that cost anything)."""
    known = [(near, count) for event, count in history if (near := event.nearly_gaussian) is not None]
    others = [pair for pair in history if pair[0].nearly_gaussian is None and pure_epsilon(pair[0]) > 0]
    mu = total_mu([(multiplier, count) for (multiplier, _), count in known])
    return mu, math.fsum(shift * count for (_, shift), count in known), others


# --- bounds that take seconds: privacy loss distributions ----------------------------------------------------------


@lru_cache(maxsize=4096)
def refine(history: History, bound: Composed, delta: float) -> Composed:
    """The given bound, or PLD's where that is smaller and worth computing; the same question is answered once."""
    ordered = sorted(history, key=repr)  # set order differs between processes; sorted sums are equal bit for bit
    mu, shift, sampled = _gaussians(ordered)
    compositions = sum(event.coordinates * count for event, count in sampled)
    if not sampled or not 0 < bound.epsilon <= _PLD_UP_TO_EPSILON or compositions > _PLD_UP_TO_COMPOSITIONS:
        return bound
    paid = math.fsum(event.delta_share * count for event, count in history)
    if delta - paid <= 0:
        return bound

    if any(_MOST_LOSS < pure_epsilon(event) / event.coordinates < math.inf for event, _ in sampled):
        return bound
    kinds, best = coarsened(sampled), bound
    while True:
        epsilon = best.epsilon
        interval = 1e-3 if epsilon > 5 else 1e-4 if epsilon > 0.1 else 1e-5  # costs below 2e-5 of epsilon
        if len(kinds) > _PLD_FEW_KINDS:
            interval = min(1e-3, 5 * interval)  # seconds instead of half a minute, and below 2e-3 of epsilon
        if epsilon > _LARGE_EPSILON:  # connected dots cost less than interval^2/8 a composition in the mean
            interval = math.sqrt(8 * _GRID_SHARE * epsilon / (compositions + 1))
        interval = max(interval, bound.epsilon / _MOST_POINTS)
        parts = [(event.loss_distribution(interval), event.coordinates * count) for event, count in kinds]
        if any(distribution is None for distribution, _ in parts):  # known by its Renyi curve alone
            return bound

        from fedpriv.privacy import dp_library  # seconds to import: only where RDP alone would be too loose

        if mu > 0:
            parts.append((dp_library.gaussian_pld(mu, interval), 1))
        found = shift + dp_library.composed_epsilon(parts, (delta - paid) * math.exp(-shift))
        best = Composed(found, "pld") if found < epsilon else best
        if epsilon <= max(_LARGE_EPSILON, 1.5 * found):  # else the grid was for a far larger one
            return best


def coarsened(sampled: Sequence[tuple[Event, int]]) -> list[tuple[Event, int]]:
    """Many sigmas (a decaying noise) become at most `_PLD_KINDS`, each rounded DOWN, so that the cost is never
    underestimated.
    """
    alike = [(key, event, count) for event, count in sampled if (key := event.likeness) is not None]
    one_kind = len({type(event) for event, _ in sampled}) == 1
    if len(sampled) <= _PLD_KINDS or len(alike) < len(sampled) or not one_kind:
        return list(sampled)
    alike.sort(key=lambda item: item[0])
    size = math.ceil(len(alike) / _PLD_KINDS)
    merged: Counter[Event] = Counter()
    for group in (alike[start : start + size] for start in range(0, len(alike), size)):
        worst = reduce(lambda one, other: one.worst_with(other), (event for _, event, _ in group))
        merged[worst] += sum(count for _, _, count in group)
    return list(merged.items())
