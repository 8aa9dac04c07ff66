"""The largest epsilon over clients while a run goes on: a round costs the same however many came before it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedpriv.privacy.events import Event
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, total_mu
from fedpriv.privacy.histories import History, contains, first_bounds

#: Of Gaussians with more multipliers than these a client's account is a running sum.
_FEW_KINDS = 8
#: Every finite float64 is a whole number of these parts of 1.
_PARTS = 2**1074


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

    def add(self, releases: Iterable[tuple[int, Event]]) -> None:
        """Adds releases of clients."""
        if self._unbounded:
            return
        own: dict[int, list[Event]] = {}
        clients: set[int] = set()  # its order decides that of rows in `first_bounds`, and so the last bits
        for client, event in releases:
            clients.add(client)
            own.setdefault(client, []).append(event)
        distinct = {id(event): event for events in own.values() for event in events}
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
            before = self._histories.get(client, frozenset())
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
    counts = Counter(dict(before))
    for event in events:
        counts[_single(event)] += event.count
    after = frozenset(counts.items())
    return _Step(before, after, _mu(before), _mu(after))


def _mu(history: History) -> float | None:
    known = [(multiplier, n) for event, n in history if (multiplier := event.gaussian_multiplier) is not None]
    return total_mu(known) if len(known) == len(history) else None


def _single(event: Event) -> Event:
    return event if event.count == 1 else replace(event, count=1)


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
