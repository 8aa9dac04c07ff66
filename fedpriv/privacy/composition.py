"""Composition of releases: over a run, over clients, under a filter; the verification of a ledger; running totals.

Every result names its accountant:
``gaussian`` (exact closed form), ``rdp``, ``pld``, ``basic`` (sums of pure epsilons and deltas), ``filter``
(the bound is privacy.max_epsilon), ``none`` (infinite for a reason in words, or nothing was released).
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Literal

import numpy as np

from fedpriv.mechanisms.laws import ORDERS, Vector, renyi_to_epsilon
from fedpriv.privacy.events import EVERY_CLIENT, OF_SUMS, OTHER_ADJACENCY, ApproximateDP, Entry, Event, NoBound, Threat
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu, shifted_epsilon, total_mu

#: Unordered (event with count 1, number of times): equal histories compare equal.
History = frozenset[tuple[Event, int]]

_PLD_UP_TO_EPSILON = 1e8
#: Beyond this epsilon a grid may cost a share of epsilon, instead of next to nothing; points of a grid; and the losses
#: that exp() holds.
_LARGE_EPSILON, _GRID_SHARE, _MOST_POINTS, _MOST_LOSS = 100.0, 2.5e-3, 4e6, 500.0
_PLD_UP_TO_COMPOSITIONS = 10_000
_PLD_FEW_KINDS = 16
_PLD_KINDS = 96  # most distributions per history: takes seconds, and is within 1% of using all of them
_MOST_REFINED = 2  # histories refined by PLD in search of the maximum
_IDLE = EVERY_CLIENT - 1  # id that stands for all clients without an account
_ROUNDING = 1 + 1e-12  # tolerance, so that the same account summed in another order is still admitted
ADAPTIVE = (
    "the noise was chosen from earlier outputs: without privacy.max_epsilon a composition of what was spent "
    "is an odometer reading, not a guarantee"
)
#: Of Gaussians with more multipliers than these a client's account is a running sum.
_FEW_KINDS = 8
#: Every finite float64 is a whole number of these parts of 1.
_PARTS = 2**1074


# --- one event, asked once of equal ones: figures of ONE of its ``count`` releases, ``dimension`` included ------------


@lru_cache(maxsize=100_000)
def pure_epsilon(event: Event) -> float:
    """epsilon at delta = 0, as `Event.pure_epsilon`."""
    return event.pure_epsilon()


@lru_cache(maxsize=10_000)
def renyi_curve(event: Event) -> Vector:
    """Renyi divergence of one release at each of `ORDERS` (count aside). Cached: do not write into it."""
    if event.why_unbounded():
        return np.full(len(ORDERS), np.inf)
    # it increases with the order: a gap takes the next value
    curve = np.minimum.accumulate(event.renyi(ORDERS)[::-1])[::-1]
    curve.flags.writeable = False
    return curve


def release_epsilon(event: Event, delta: float) -> float:
    """epsilon at delta of one release, by its Renyi curve."""
    return float(renyi_to_epsilon(renyi_curve(event), delta - event.delta_share))


@dataclass(frozen=True)
class Composed:
    """epsilon at the requested delta; the reasons, in words, where it is infinite."""

    epsilon: float
    accountant: str
    reasons: tuple[str, ...] = ()


# --- multisets -------------------------------------------------------------------------------------------------


def make_history(events: Sequence[Event]) -> History:
    """Multiset of single releases. Counts by identity first: that is fast, since most events are one shared object."""
    distinct = {id(event): event for event in events}
    history = counted((distinct[identity], times) for identity, times in Counter(map(id, events)).items())
    if len({event.threat for event, _ in history}) > 1:
        raise ValueError("events of different threats are never composed")
    return history


def counted(releases: Iterable[tuple[Event, int]]) -> History:
    """The multiset of (event, number of times)."""
    counts: Counter[Event] = Counter()
    for event, times in releases:
        counts[_single(event)] += times * event.count
    return frozenset(counts.items())


def _single(event: Event) -> Event:
    return event if event.count == 1 else replace(event, count=1)


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


# --- totals over clients ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Population:
    """Largest and median epsilon over clients; ``accountant`` is that of the maximum."""

    maximum: float
    median: float
    accountant: str
    reasons: tuple[str, ...]
    num_histories: int


def compose(events: Iterable[Event], delta: float) -> Composed:
    """Everything that one client released, in any order. Raises ValueError if threats are mixed."""
    history = make_history(list(events))
    return refine(history, first_bounds([history], delta)[history], delta)


def compose_clients(
    histories: Mapping[int, Sequence[Event]],
    delta: float,
    refined: bool = True,
    times: Mapping[int, int] = MappingProxyType({}),
) -> Population:
    """Every client's total. Equal histories (any order, any grouping into counts) are composed once.

    times: how many clients have each history, where that is not 1.
    refined=False: without PLD, milliseconds even for sampled Gaussians; an upper bound, within 20% over many steps.
    """
    clients: Counter[History] = Counter()
    for key, history in zip(histories, collect_histories(histories.values()), strict=True):
        clients[history] += times.get(key, 1)
    if not clients:
        return Population(0.0, 0.0, "none", (), 0)
    bounds = first_bounds(list(clients), delta)
    if not refined:
        worst = max(bounds.values(), key=lambda bound: bound.epsilon)
        epsilons = {history: bound.epsilon for history, bound in bounds.items()}
        median = statistics.fmean(epsilons[history] for history in _in_the_middle(clients, epsilons))
        return Population(worst.epsilon, median, worst.accountant, worst.reasons, len(clients))
    maximum = _largest(bounds, delta)
    return Population(
        maximum.epsilon, _median(clients, bounds, delta), maximum.accountant, maximum.reasons, len(clients)
    )


def at_other_adjacency(
    histories: Mapping[int, Sequence[Event]], delta: float, restate: Callable[[Event], Event | None]
) -> tuple[str, float] | None:
    """(adjacency, largest epsilon) of what clients released in sums of clients, where neighbours are the other kind.
    restate: each event there; None: no analysis. None where there is none of some event, or the sum is not of clients.
    """
    named = {event.threat for events in histories.values() for event in events}
    if len(named) != 1 or (threat := named.pop()).unit != "client" or threat.observer not in OF_SUMS:
        return None
    restated = {event: restate(event) for events in histories.values() for event in events}
    found = {key: [other for event in events if (other := restated[event])] for key, events in histories.items()}
    if None in restated.values():
        return None
    return OTHER_ADJACENCY[threat.adjacency], compose_clients(found, delta).maximum


def costliest(histories: Iterable[Sequence[Event]], delta: float) -> tuple[History, ...]:
    """The histories whose bounds decide the maximum of `compose_clients`."""
    bounds = first_bounds(list(set(collect_histories(histories))), delta)
    return tuple(sorted(bounds, key=lambda history: bounds[history].epsilon, reverse=True)[:_MOST_REFINED])


def _largest(bounds: Mapping[History, Composed], delta: float) -> Composed:
    """A bound on the largest total: refined by PLD from the top down until no client's cheap bound exceeds it."""
    found, refined = Composed(0.0, "none"), list[History]()
    for history in sorted(bounds, key=lambda history: bounds[history].epsilon, reverse=True):
        bound = bounds[history]
        if refined and bound.epsilon <= found.epsilon:
            break
        if any(contains(other, history) for other in refined):
            continue
        if len(refined) == _MOST_REFINED:
            return bound
        better = refine(history, bound, delta)
        found = better if not refined or better.epsilon > found.epsilon else found
        refined.append(history)
    return found


def _median(clients: Counter[History], bounds: Mapping[History, Composed], delta: float) -> float:
    """Median over clients; the one or two histories in the middle are refined."""
    middle = set(_in_the_middle(clients, {history: bound.epsilon for history, bound in bounds.items()}))
    return statistics.fmean(refine(history, bounds[history], delta).epsilon for history in middle)


def _in_the_middle(clients: Counter[History], epsilons: Mapping[History, float]) -> tuple[History, History]:
    """The histories of the two clients in the middle (of an odd number: one client's, twice), by epsilon."""
    ranked = sorted(epsilons, key=epsilons.__getitem__)
    upto = np.cumsum([clients[history] for history in ranked])
    low, high = np.searchsorted(upto, [(upto[-1] - 1) // 2, upto[-1] // 2], side="right").tolist()
    return ranked[low], ranked[high]


# --- filters -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """Decides whether a client may release again. Sound also where the noise of a release depends on earlier outputs.

    With a ``plan`` (all that may be released, fixed before the run) whose total is at most max_epsilon, it admits
    exactly what stays within the plan, and more of the same in the same proportions as far as max_epsilon goes (a
    resumed run may have to release rounds again): nothing is left to choose but how many. Otherwise it is a filter. All
    Gaussian: the sum of mu^2 stays below the largest that max_epsilon allows (Smith and Thakurta 2022; Koskela, Tobaben
    and Honkela 2023). Other mechanisms: Renyi at ONE order (Feldman and Zrnic 2021), fixed by the account's first event
    that is not a Gaussian; for short histories of sampled Gaussians that filter stops far too early, so pass a plan
    where the noise is constant.

    rule="auto" picks between the filters by the KINDS of mechanism in the account, which must be settled before the
    first release (a run's strategy settles them); where they might be chosen after seeing outputs, set "gaussian"
    (nothing else is admitted) or "rdp".

    part: of what a filter may add up (mu^2, or the divergence at its order) no more than this share is admitted.
    """

    max_epsilon: float
    delta: float
    rule: Literal["auto", "gaussian", "rdp"] = "auto"
    plan: tuple[Event, ...] = ()
    order: float | Literal["opening", "gaussian"] = "opening"
    part: float = 1.0

    def admits(self, spent: Sequence[Event], further: Sequence[Event]) -> bool:
        """True if ``further`` may be released after ``spent`` (in order of release). Well under 1 ms for Gaussians."""
        events = [*spent, *further]
        if not events:
            return True
        if any(event.threat != events[0].threat for event in events):
            raise ValueError("events of different threats are never composed: filter the account by threat")
        if self.part == 1 and self.plan and _planned_epsilon(self.plan, self.delta) <= self.max_epsilon:
            plan, history = dict(make_history(self.plan)), make_history(events)
            if contains(frozenset(plan.items()), history):
                return True
            alike = {Fraction(count, plan[event]) if event in plan else None for event, count in history}
            if len(alike) > 1 or None in alike or len(plan) > len(history):
                return False
            return _planned_epsilon(tuple(events), self.delta) <= self.max_epsilon
        multipliers = [(event.gaussian_multiplier, event.count) for event in events]
        if self.rule != "rdp" and all(multiplier is not None for multiplier, _ in multipliers):
            limit = gaussian_mu(self.max_epsilon, self.delta) * math.sqrt(self.part) * _ROUNDING
            return total_mu(multipliers) <= limit  # type: ignore[arg-type]
        return self.rule != "gaussian" and self._renyi_admits(events)

    def fixed_order(self) -> float:
        """The order of a filter with order="gaussian" or a number: independent of what was or will be released."""
        return float(ORDERS[self._order(self._renyi_limits(self.delta / 2), ())])

    def _renyi_admits(self, events: Sequence[Event]) -> bool:
        paid = sum(event.delta_share * event.count for event in events)
        if any(event.why_unbounded() for event in events) or paid > self.part * self.delta / 2:
            return False
        # Pairs use the other half of delta; where they may come later, it is reserved for them from the beginning.
        delta = self.delta / 2 if paid or self.order != "opening" else self.delta
        limits = self._renyi_limits(delta)
        order = self._order(limits, events)
        total = sum(float(renyi_curve(event)[order]) * event.count for event in events)
        return total <= self.part * limits[order] * _ROUNDING

    def _renyi_limits(self, delta: float) -> np.ndarray:
        """The largest total at each of `ORDERS`."""
        found: np.ndarray = self.max_epsilon - np.log1p(-1 / ORDERS) + np.log(delta * ORDERS) / (ORDERS - 1)
        return found

    def _order(self, limits: np.ndarray, events: Sequence[Event]) -> int:
        """Position in `ORDERS`. A fixed order does not depend on any release."""
        if isinstance(self.order, float):
            return int(np.flatnonzero(self.order == ORDERS)[0])
        if self.order == "gaussian":
            curve = ORDERS
        else:
            curve = renyi_curve(next((event for event in events if event.gaussian_multiplier is None), events[0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            return int(np.nanargmax(np.where(limits > 0, limits / curve, -np.inf)))


@lru_cache(maxsize=64)
def _planned_epsilon(plan: tuple[Event, ...], delta: float) -> float:
    return compose(plan, delta).epsilon


@lru_cache(maxsize=64)
def affordable(plan: tuple[Event, ...], rounds: int, max_epsilon: float, delta: float) -> tuple[Event, ...]:
    """A plan for so many rounds that are all alike, or of as many of them as cost at most max_epsilon: a client that is
    drawn for some of the rounds takes part in fewer. Empty where that is none. Fixed before the run, as a `Budget.plan`
    must be. rounds: 1 where they are not alike.
    """
    if not plan or compose(plan, delta).epsilon <= max_epsilon:
        return plan
    if any(event.count % rounds for event in plan):
        return ()

    def first(many: int) -> tuple[Event, ...]:
        return tuple(replace(event, count=event.count // rounds * many) for event in plan)

    many = bisect_right(range(1, rounds + 1), max_epsilon, key=lambda many: compose(first(many), delta).epsilon)
    return first(many) if many else ()


# --- verification of a ledger ---------------------------------------------------------------------------------------


def guarantee_events(entries: Iterable[Entry]) -> list[Event]:
    """Events that give a guarantee without a filter: the bounds fixed before the run; adaptive noise has none."""
    return [_no_guarantee(entry.event.threat) if entry.adaptive else entry.event for entry in entries]


@lru_cache(maxsize=64)
def _no_guarantee(threat: Threat) -> NoBound:
    return NoBound(threat=threat, reason=ADAPTIVE)


def realised_events(entries: Iterable[Entry]) -> list[Event]:
    """What was actually spent, release by release."""
    return [entry.spent for entry in entries]


def threats(entries_by_client: Mapping[int, Sequence[Entry]]) -> list[Threat]:
    """The threats of a ledger, in order of appearance. One release may be booked under several."""
    return list(dict.fromkeys(entry.event.threat for entries in entries_by_client.values() for entry in entries))


@dataclass(frozen=True)
class Verified:
    """A run's verified figures under one threat. maximum: verified_epsilon; spent_so_far: composed from the realised
    events.
    """

    maximum: float
    median: float
    spent_so_far: float
    accountant: str
    reasons: tuple[str, ...]
    threat: Threat | None
    _at_scope: Callable[[str, float | None], Composed] = field(repr=False, compare=False)

    def at_scope(self, scope: Literal["run", "round", "coordinate"], delta: float | None = None) -> Composed:
        """The verified epsilon at a claim's scope (and delta, where the claim has its own): maximum over clients.

        round: everything one client released in one round; coordinate: one coordinate of one release.
        """
        return self._at_scope(scope, delta)


def verify(
    entries_by_client: Mapping[int, Sequence[Entry]],
    delta: float,
    max_epsilon: float | None = None,
    threat: Threat | None = None,
    idle: int = 0,
) -> Verified:
    """The verified figures of a ledger under one threat (``threat`` is required if the ledger has several).

    idle: clients that are not in the ledger.

    Where a client's bounds exceed ``max_epsilon``, or its noise is adaptive and has no bound, and its actual
    spending passes the filter (checked again here), its epsilon is max_epsilon. Clients without entries count with
    epsilon 0. Raises ValueError for mixed threats.
    """
    present = threats(entries_by_client)
    if threat is None and len(present) > 1:
        raise ValueError(f"the ledger holds several threats, say which one: {present}")
    threat = threat or (present[0] if present else None)
    entries = {
        client: [entry for entry in account if entry.event.threat == threat]
        for client, account in entries_by_client.items()
    }
    filtered = _held_by_filter(entries, max_epsilon, delta)

    def guarantee(client: int, part: Sequence[Entry]) -> list[Event]:
        if client in filtered and part:
            return [ApproximateDP(threat=part[0].event.threat, epsilon=float(max_epsilon or 0), delta=delta)]
        return guarantee_events(part)

    def at_scope(scope: str, scope_delta: float | None) -> Composed:
        histories: list[list[Event]] = []
        own_delta = delta if scope_delta is None else scope_delta
        for client, account in entries.items():
            if scope == "round":
                rounds: dict[int, list[Entry]] = {}
                for entry in account:
                    rounds.setdefault(entry.round, []).append(entry)
                for part in rounds.values():  # a round has its own bound besides the filter's for the whole run
                    held, own = guarantee(client, part), guarantee_events(part)
                    cheaper = client in filtered and compose(own, own_delta).epsilon < float(max_epsilon or 0)
                    histories.append(own if cheaper else held)
            elif scope == "coordinate":
                histories += [[event.one_coordinate()] for event in dict.fromkeys(guarantee(client, account))]
            else:
                histories.append(guarantee(client, account))
        found = compose_clients(dict(enumerate(histories)), own_delta)
        return Composed(found.maximum, found.accountant, found.reasons)

    others = {_IDLE: list[Event]()} if idle else {}
    bounds = {client: guarantee(client, account) for client, account in entries.items()}
    run = compose_clients(bounds | others, delta, times={_IDLE: idle})
    spent = compose_clients({client: realised_events(account) for client, account in entries.items()}, delta)
    accountant = "filter" if filtered and run.maximum == max_epsilon else run.accountant
    return Verified(run.maximum, run.median, spent.maximum, accountant, run.reasons, threat, at_scope)


def _held_by_filter(entries: Mapping[int, Sequence[Entry]], max_epsilon: float | None, delta: float) -> frozenset[int]:
    """Clients whose bound exceeds max_epsilon (or is missing), but whose actual spending passes the filter."""
    if max_epsilon is None:
        return frozenset()
    histories = collect_histories(guarantee_events(account) for account in entries.values())
    bounds = first_bounds(list(set(histories)), delta)
    budget = Budget(max_epsilon, delta)
    return frozenset(
        client
        for client, history in zip(entries, histories, strict=True)
        if bounds[history].epsilon > max_epsilon and budget.admits([], realised_events(entries[client]))
    )


# --- running totals ---------------------------------------------------------------------------------------------------


#: One object, so that all who released nothing yet are alike.
NOTHING: History = frozenset()


class RunningTotals:
    """What clients have released so far, and a bound on the largest total: as `compose_clients(..., refined=False)`, or
    the plan's where that is smaller.

    Memory is for clients that released something; a client without a bound makes the total infinite for good.
    """

    def __init__(self, delta: float) -> None:
        self.delta = delta
        self._plan: tuple[History, ...] = ()
        self._planned = math.inf
        self._unbounded = False
        self._histories: dict[int, History] = {}
        self._running: dict[int, _RunningMu] = {}
        self._largest_mu = 0.0  # of the clients that released Gaussians alone: an account's mu never falls
        #: How many clients share each account that holds something else.
        self._others: Counter[History] = Counter()

    def within(self, plan: tuple[History, ...], epsilon: float) -> None:
        """Tells what the run is planned to come to at most: a part of one of these accounts costs no more than they do.
        Else a faster bound than that of the whole run would exceed it before the run ends, and the total would fall.
        """
        self._plan, self._planned = plan, epsilon

    def add(self, releases: Iterable[tuple[Sequence[int], Sequence[Event]]]) -> None:
        """Adds releases: each of some clients made all of these."""
        if self._unbounded:
            return
        own: dict[int, Sequence[Event]] = {}
        distinct: dict[int, Event] = {}
        for some, events in releases:
            distinct |= {id(event): event for event in events}
            for client in some:
                own[client] = [*own[client], *events] if client in own else events
        clients = set[int]()  # its order decides that of rows in `first_bounds`, and so the last bits
        for client in sorted(own):
            clients.add(client)
        if any(event.why_unbounded() for event in distinct.values()):
            self._unbounded = True
            self._histories, self._running, self._others = {}, {}, Counter()
            return
        steps: dict[tuple[int, ...], _Step] = {}  # clients of a round have mostly released alike
        for client in clients:
            if (running := self._running.pop(client, None)) is not None:
                if (mu := running.plus(own[client])) is not None:
                    self._running[client] = running
                    self._largest_mu = max(self._largest_mu, mu)
                    continue
                self._histories[client] = running.history
            before = self._histories.get(client, NOTHING)
            key = (id(before), *map(id, own[client]))
            if key not in steps:  # a step keeps ``before``, whose id is nobody else's meanwhile
                steps[key] = _step(before, own[client])
            self._take(client, steps[key])

    def _take(self, client: int, step: _Step) -> None:
        if step.mu_before is None:
            self._others[step.before] -= 1
            if not self._others[step.before]:
                del self._others[step.before]
        if step.mu is None:
            self._others[step.after] += 1
        else:
            self._largest_mu = max(self._largest_mu, step.mu)
        if step.mu is not None and len(step.after) > _FEW_KINDS:
            self._histories.pop(client, None)
            self._running[client] = _RunningMu(step.after)
        else:
            self._histories[client] = step.after

    def maximum(self) -> float:
        """The largest epsilon over clients; 0 where nothing was released."""
        if self._unbounded:
            return math.inf
        bounds = first_bounds(list(self._others), self.delta)
        others = (self._at_most(history, bound.epsilon) for history, bound in bounds.items())
        return max([gaussian_epsilon(self._largest_mu, self.delta), *others])

    def _at_most(self, history: History, epsilon: float) -> float:
        planned = epsilon > self._planned and any(contains(whole, history) for whole in self._plan)
        return self._planned if planned else epsilon


@dataclass(frozen=True)
class _Step:
    """From one account to the next. mu: None where it does not hold Gaussians alone."""

    before: History
    after: History
    mu_before: float | None
    mu: float | None


def _step(before: History, events: Sequence[Event]) -> _Step:
    after = counted([*before, *((event, 1) for event in events)])
    return _Step(before, after, _mu(before), _mu(after))


def _mu(history: History) -> float | None:
    known = [(multiplier, n) for event, n in history if (multiplier := event.gaussian_multiplier) is not None]
    return total_mu(known) if len(known) == len(history) else None


class _RunningMu:
    """An account of many Gaussians: `total_mu` to the last bit, from an exact sum."""

    def __init__(self, history: History) -> None:
        self._counts = dict(history)
        self._sum = 0
        for event, count in history:
            self._sum += _parts(event, count)

    @property
    def history(self) -> History:
        return frozenset(self._counts.items())

    def plus(self, events: Sequence[Event]) -> float | None:
        """mu with these releases too; None, and nothing added, where one is no Gaussian."""
        if any(event.gaussian_multiplier is None for event in events):
            return None
        for event in events:
            single = _single(event)
            before = self._counts.get(single, 0)
            self._counts[single] = before + event.count
            self._sum += _parts(single, before + event.count) - _parts(single, before)
        return math.sqrt(self._sum / _PARTS)


def _parts(event: Event, count: int) -> int:
    """count / multiplier^2, in float64 as `total_mu` adds it, as a whole number of parts."""
    multiplier = event.gaussian_multiplier
    assert multiplier, "no noise at all has no bound, and no account"
    inverse = 1 / multiplier
    numerator, denominator = (count * (inverse * inverse)).as_integer_ratio()
    return numerator * (_PARTS // denominator)
