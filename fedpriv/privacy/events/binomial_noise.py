"""Binomial noise, known by its Renyi curve alone (the proof: `fedpriv.privacy.binomial`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from fedpriv.privacy.events.event import NO_NOISE, Event, check_number, check_share_of_delta, check_whole

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class Binomial(Event):
    """cpSGD: noise step*(Z - trials/2), Z ~ Binomial(trials, 1/2), on each of ``dimension`` coordinates.

    l1, l2, linf: sensitivities in real units; step: width of the grid, same units; trials: of the noise that
    the observer cannot subtract. delta: the part of the target delta that ONE release uses up (the bound needs one of
    its own). distance: L2 distance (real units) of two data sets' vectors before they are randomly rounded to the grid,
    each coordinate independently; infinite: unknown, only l2 is used.
    """

    mechanism = "binomial"
    step: float
    trials: int
    dimension: int
    l1: float
    l2: float
    linf: float
    delta: float
    distance: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("trials", self.trials, least=0)
        check_whole("dimension", self.dimension, least=1)
        for name in ("step", "l1", "l2", "linf", "distance"):
            check_number(name, getattr(self, name))
        check_share_of_delta(self.delta)

    @property
    def delta_share(self) -> float:
        return self.delta

    def why_unbounded(self) -> str | None:
        if self.trials == 0:
            return NO_NOISE
        return None if _holds(self) else "the binomial mechanism's bound does not hold for so few trials"

    def pure_epsilon(self) -> float:
        from fedpriv.privacy.event_costs import ORDERS, renyi_to_epsilon

        # half of the release's share of delta covers the event outside which the curve holds
        return float(renyi_to_epsilon(self._curve(self.delta / 2, ORDERS), self.delta / 2))

    def renyi(self, orders: Vector) -> Vector:
        return self._curve(self.delta, orders)

    def _curve(self, delta: float, orders: Vector) -> Vector:
        """Renyi divergence of one release at each order, outside an event of probability delta."""
        import numpy as np

        from fedpriv.privacy.binomial import binomial_renyi

        if self.step == 0:
            return np.full(len(orders), np.inf)
        l2, linf, distance = (length / self.step for length in (self.l2, self.linf, self.distance))
        return binomial_renyi(self.trials, self.dimension, l2, linf, distance, delta, orders)


@lru_cache(maxsize=10_000)
def _holds(event: Binomial) -> bool:
    """Whether there are enough trials for the bound. Asked at every release of a run."""
    from fedpriv.privacy.event_costs import ORDERS

    return not math.isinf(event.renyi(ORDERS)[0])
