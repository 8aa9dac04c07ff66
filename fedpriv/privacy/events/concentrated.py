"""Releases that are known by a zCDP bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.privacy.events.event import NO_NOISE, Event, check_number, check_whole, without_randomness

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class ZCDP(Event):
    """Any mechanism that satisfies rho-zCDP (Bun and Steinke 2016)."""

    mechanism = "zcdp"
    rho: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rho", self.rho)

    def why_unbounded(self) -> str | None:
        return NO_NOISE if math.isinf(self.rho) else None

    def renyi(self, orders: Vector) -> Vector:
        return self.rho * orders


@dataclass(frozen=True, kw_only=True)
class GumbelTopK(Event):
    """One-shot top-k: Gumbel noise on scores, the k best indices leave (Durfee and Rogers 2019).

    epsilon: (range of one score's log-likelihood ratio) of one pick; with scores in [0, tau] and Gumbel scale b it
    is 2*tau/b under replace-one and tau/b under zero-out. The release is k*epsilon**2/8-zCDP.
    """

    mechanism = "gumbel_top_k"
    k: int
    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("k", self.k, least=1)
        check_number("epsilon", self.epsilon)

    def why_unbounded(self) -> str | None:
        return without_randomness(self.epsilon)

    def pure_epsilon(self) -> float:
        return self.k * self.epsilon

    def renyi(self, orders: Vector) -> Vector:
        import numpy as np

        # each pick has a privacy loss of range epsilon: epsilon^2/8-zCDP (Cesar and Rogers 2021)
        return np.minimum(self.k * self.epsilon**2 / 8 * orders, self.k * self.epsilon)
