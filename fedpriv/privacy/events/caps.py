"""Unit vectors and symbols: releases whose density takes two values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.privacy.events.event import Event, check_number, without_randomness

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class UnitCap(Event):
    """A release whose density takes two values, e^epsilon apart: PrivUnit's cap, or one symbol among several.

    inside: the probability of the set where the density is the higher, at most 1/(1 + e^-epsilon); nothing more is
    known of an epsilon-private release that is given with exactly that (`laws.cap_response`). delta: used up by ONE
    release; the price of floating point is in it and in epsilon (`fedpriv.mechanisms.privunit`).
    """

    mechanism = "unit_cap"
    epsilon: float
    inside: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon)
        check_number("inside", self.inside, most=1.0)
        check_number("delta", self.delta)
        if self.delta >= 1:
            raise ValueError(f"delta={self.delta}: must be in [0, 1)")
        if self.inside * (1 + math.exp(-self.epsilon)) > 1 + 1e-12:
            raise ValueError(f"inside={self.inside}: no epsilon={self.epsilon} allows more than 1/(1 + e^-epsilon)")

    @property
    def delta_share(self) -> float:
        return self.delta

    def why_unbounded(self) -> str | None:
        return without_randomness(self.epsilon)

    def pure_epsilon(self) -> float:
        return self.epsilon if self.inside else 0.0

    def renyi(self, orders: Vector) -> Vector:
        import numpy as np

        from fedpriv.mechanisms.laws import cap_response, renyi_divergence

        if self.epsilon > 600:  # the smallest probability would underflow
            return np.full(len(orders), self.epsilon)
        return renyi_divergence(*cap_response(self.epsilon, self.inside), orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.mechanisms.laws import cap_response
        from fedpriv.privacy.dp_library import discrete_pld  # seconds to import

        return discrete_pld(*cap_response(self.epsilon, self.inside), interval)
