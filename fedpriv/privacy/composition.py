"""Composition of releases: over a run, over clients, under a filter; and the verification of a ledger.

Every result names its accountant:
``gaussian`` (exact closed form), ``rdp``, ``pld``, ``basic`` (sums of pure epsilons and deltas), ``filter``
(the bound is privacy.max_epsilon), ``none`` (infinite for a reason in words, or nothing was released).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

import numpy as np

from fedpriv.mechanisms.laws import ORDERS
from fedpriv.privacy.event_costs import renyi_curve
from fedpriv.privacy.events import EVERY_CLIENT, ApproximateDP, Entry, Event, NoBound, Threat
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu, total_mu
from fedpriv.privacy.histories import (
    Composed,
    History,
    collect_histories,
    contains,
    first_bounds,
    make_history,
    refine,
)

__all__ = [
    "Budget",
    "Composed",
    "Population",
    "Verified",
    "compose",
    "compose_clients",
    "gaussian_epsilon",
    "gaussian_mu",
    "guarantee_events",
    "realised_events",
    "threats",
    "verify",
]

_MOST_REFINED = 2  # histories refined by PLD in search of the maximum
_IDLE = EVERY_CLIENT - 1  # id that stands for all clients without an account
_ROUNDING = 1 + 1e-12  # tolerance, so that the same account summed in another order is still admitted
ADAPTIVE = (
    "the noise was chosen from earlier outputs: without privacy.max_epsilon a composition of what was spent "
    "is an odometer reading, not a guarantee"
)


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
    exactly what stays within the plan. Otherwise it is a filter. All Gaussian: the sum of mu^2 stays below the largest
    that max_epsilon allows (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). Other mechanisms: Renyi at ONE
    order (Feldman and Zrnic 2021), fixed by the account's first event that is not a Gaussian; for short histories of
    sampled Gaussians that filter stops far too early, so pass a plan where the noise is constant.

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
            return contains(make_history(self.plan), make_history(events))
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
