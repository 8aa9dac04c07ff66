"""Events of whole-number noise: each alone, or in the sum of a round's releases."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.privacy.event_base import Event, check_number, check_share_of_delta, check_whole


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
