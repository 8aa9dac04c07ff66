"""A run's epsilon by Opacus' accountants (`privacy.accountant=opacus`): for comparison, and used by nothing else.

Opacus knows one mechanism: a Gaussian over a Poisson sample, given as (standard deviation / sensitivity, sampling rate,
steps). Its neighbours are add-or-remove-one. The ledger's multipliers are relative to the sensitivity under the event's
own adjacency, and a Gaussian costs the same for whatever reason its mean moves by one sensitivity. So they are handed
over as they stand, and the figure is for the ledger's adjacency, like the verified one:
- add-or-remove-one and zero-out: as Opacus means them (a unit that is not there contributes zero).
- replace-one (never sampled): the multiplier has the distance between two contributions, for clipped vectors 2C.
  Opacus' engine would be told standard deviation / C and state the smaller epsilon of add-or-remove-one.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedpriv.common.files import json_number
from fedpriv.common.versions import installed
from fedpriv.mechanisms.laws import Vector
from fedpriv.privacy.composition import History, coarsened, counted, first_bounds
from fedpriv.privacy.events import EVERY_CLIENT, Event, PoissonGaussian

#: PRV's memory and time grow with epsilon and steps: beyond these it is not asked.
PRV_UP_TO_EPSILON, PRV_UP_TO_STEPS = 100.0, 1_000_000
#: How far PRV's bound may be above the epsilon that it estimates.
PRV_ERROR = 0.01

REPLACED = (
    "its accountants are told the noise relative to the distance of replace-one (2 C for clipped vectors); Opacus' own "
    "engine tells them standard deviation / C and states the smaller epsilon of add-or-remove-one"
)
ZEROED = "to a Gaussian, zero-out is Opacus' add-or-remove-one: who contributes zero could as well be away"


@dataclass(frozen=True)
class OpacusFigure:
    """epsilon of the costliest client by Opacus' RDP and PRV accountants; None: it gives none, for these reasons."""

    rdp: float | None
    prv: float | None
    adjacency: str
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a summary has it."""
        rdp, prv = (None if value is None else json_number(value) for value in (self.rdp, self.prv))
        library = {"library": f"Opacus {installed('opacus')}", "adjacency": self.adjacency}
        return {"rdp": rdp, "prv": prv, **library, "remarks": list(self.remarks)}

    @property
    def words(self) -> str:
        """The figure in one line."""
        if self.rdp is None:
            return f"none: {'; '.join(self.remarks)}"
        shown = [
            f"{value:.4g} by {name}" for name, value in (("PRV", self.prv), ("RDP", self.rdp)) if value is not None
        ]
        return f"{', '.join(shown)} ({self.adjacency}; for comparison, not verified)"


class OpacusTotals:
    """What clients have released so far, as Opacus' accountants compose it. reason: why they give no figure at all."""

    def __init__(self, delta: float, reason: str | None = None) -> None:
        self.delta, self.reason = delta, reason
        self._released: dict[int, Counter[Event]] = defaultdict(Counter)

    def add(self, releases: Iterable[tuple[int, Event]]) -> None:
        """Adds releases of clients; all of one threat model."""
        for client, event in releases:
            self._released[client][event] += 1

    def figure(self, tight: bool = True) -> OpacusFigure | None:
        """Of the client that our cheap bound finds costliest; None before the first release. tight=False: without PRV,
        which takes up to seconds.
        """
        of_all = self._released.get(EVERY_CLIENT, Counter())
        own = [released for client, released in self._released.items() if client != EVERY_CLIENT]
        accounts = {counted((released + of_all).items()) for released in [*own, Counter[Event]()]} - {frozenset()}
        if not accounts:
            return None
        kinds = {event for account in accounts for event, _ in account}
        adjacency = next(iter(kinds)).threat.adjacency
        if reasons := sorted({why for event in kinds if (why := self.reason or why_not(event))}):
            return OpacusFigure(None, None, adjacency, tuple(reasons))
        bounds = first_bounds(sorted(accounts, key=repr), self.delta)
        return _figure(max(bounds, key=lambda history: bounds[history].epsilon), self.delta, adjacency, tight)


def why_not(event: Event) -> str | None:
    """Why Opacus' accountants have no figure for this event, in words."""
    if event.why_unbounded() is not None:
        return event.why_unbounded()
    if event.gaussian_multiplier is not None or isinstance(event, PoissonGaussian):
        return None
    return f"Opacus composes Gaussians, unsampled or over a Poisson sample, and no {event.mechanism.replace('_', ' ')}"


def _figure(history: History, delta: float, adjacency: str, tight: bool) -> OpacusFigure:
    steps = _steps(sorted(history, key=repr))
    remarks = {"replace-one": [REPLACED], "zero-out": [ZEROED]}.get(adjacency, [])
    rdp, prv = _rdp_epsilon(steps, delta), None
    if tight:
        if rdp > PRV_UP_TO_EPSILON or sum(count for _, _, count in steps) > PRV_UP_TO_STEPS:
            remarks = [*remarks, f"PRV is asked up to epsilon {PRV_UP_TO_EPSILON:g} and {PRV_UP_TO_STEPS:,} steps"]
        else:
            prv = _prv_epsilon(_steps(coarsened(sorted(history, key=repr))), delta)
    return OpacusFigure(rdp, prv, adjacency, tuple(remarks))


Steps = list[tuple[float, float, int]]


def _steps(history: Iterable[tuple[Event, int]]) -> Steps:
    """(noise multiplier, sampling rate, steps) of events with a cost, as Opacus' accountants keep them."""
    found = []
    for event, count in history:
        multiplier, rate = event.gaussian_multiplier, 1.0
        if multiplier is None:
            assert isinstance(event, PoissonGaussian)
            multiplier, rate = event.multiplier, event.sampling_rate
        if rate and not math.isinf(multiplier):
            found.append((multiplier, rate, count))
    return found


@lru_cache(maxsize=4096)
def _rdp_of_one(multiplier: float, rate: float) -> Vector:
    from opacus.accountants.analysis.rdp import compute_rdp  # seconds to import

    found: Vector = compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=_accountants()[0].DEFAULT_ALPHAS)
    return found


def _rdp_epsilon(steps: Steps, delta: float) -> float:
    """As `RDPAccountant.get_epsilon`, with each kind of step computed once in a process."""
    if not steps:
        return 0.0
    from opacus.accountants.analysis.rdp import get_privacy_spent

    total = np.sum([_rdp_of_one(multiplier, rate) * count for multiplier, rate, count in steps], axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order is the first or the last of Opacus' own
        return float(get_privacy_spent(orders=_accountants()[0].DEFAULT_ALPHAS, rdp=total, delta=delta)[0])


def _prv_epsilon(steps: Steps, delta: float) -> float:
    if not steps:
        return 0.0
    accountant = _accountants()[1]()
    accountant.history = steps
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta, eps_error=PRV_ERROR))


def _accountants() -> tuple[Any, Any]:
    from opacus.accountants import PRVAccountant, RDPAccountant  # seconds to import

    return RDPAccountant, PRVAccountant
