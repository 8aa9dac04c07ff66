"""Whole-number noise of many clients in the sum of a round's releases, or of one alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.privacy.events.event import NO_NOISE, Event, check_number, check_share_of_delta, check_whole

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianSum(Event):
    """Discrete Gaussian noise of ``noises`` clients on each of ``dimension`` coordinates of a sum of whole numbers.

    sigma: parameter of ONE client's noise; l2: L2 sensitivity of the sum; both in steps of the grid. noises: whose
    noise the observer does not know, the releasing client's included (1: seen alone). The sum may be known modulo any
    number: that is post-processing. Proof: `fedpriv.privacy.discrete_gaussian`.
    """

    mechanism = "discrete_gaussian_sum"
    sigma: float
    noises: int
    dimension: int
    l2: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("noises", self.noises, least=1)
        check_whole("dimension", self.dimension, least=1)
        check_number("sigma", self.sigma)
        check_number("l2", self.l2)

    @property
    def multiplier(self) -> float:
        """Standard deviation / L2 sensitivity of the sum."""
        return math.sqrt(self.noises) * self.sigma / self.l2 if self.l2 else math.inf

    @property
    def rho(self) -> float:
        """Of the zCDP that one release satisfies; infinite where the noise is too little for the proof."""
        from fedpriv.privacy.discrete_gaussian import sum_rho

        return sum_rho(self.sigma, self.noises, self.dimension, self.l2)

    @property
    def nearly_gaussian(self) -> tuple[float, float] | None:
        from fedpriv.privacy.discrete_gaussian import nearly_gaussian

        return nearly_gaussian(self.sigma, self.noises, self.dimension, self.l2)

    def why_unbounded(self) -> str | None:
        if not math.isinf(self.rho):
            return None
        return NO_NOISE if self.sigma == 0 else f"noise of {self.sigma:.3g} grid steps is too little: bits"

    def renyi(self, orders: Vector) -> Vector:
        return self.rho * orders


@dataclass(frozen=True, kw_only=True)
class SkellamSum(Event):
    """Skellam noise of ``noises`` clients on each of ``dimension`` coordinates of a sum of whole numbers.

    variance: of ONE client's noise; l2: L2 sensitivity of the sum; both in steps of the grid. delta: the part of the
    target delta that ONE release uses up. Otherwise as `DiscreteGaussianSum`. Proof: `fedpriv.privacy.skellam`.
    """

    mechanism = "skellam_sum"
    variance: float
    noises: int
    dimension: int
    l2: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("noises", self.noises, least=1)
        check_whole("dimension", self.dimension, least=1)
        check_number("variance", self.variance)
        check_number("l2", self.l2)
        check_share_of_delta(self.delta)

    @property
    def multiplier(self) -> float:
        """Standard deviation / L2 sensitivity of the sum."""
        return math.sqrt(self.noises * self.variance) / self.l2 if self.l2 else math.inf

    @property
    def delta_share(self) -> float:
        return self.delta

    @property
    def nearly_gaussian(self) -> tuple[float, float] | None:
        from fedpriv.privacy.skellam import nearly_gaussian

        return nearly_gaussian(self.noises * self.variance, self.dimension, self.l2, self.delta)

    def why_unbounded(self) -> str | None:
        from fedpriv.privacy.skellam import LEAST_VARIANCE

        if self.noises * self.variance >= LEAST_VARIANCE:
            return None
        return NO_NOISE if self.variance == 0 else "noise of a few grid steps is too little: bits"

    def renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.skellam import skellam_renyi

        return skellam_renyi(self.noises * self.variance, self.dimension, self.l2, self.delta, orders)
