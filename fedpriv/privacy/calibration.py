"""Calibration: the noise at which a whole planned run costs a given epsilon, found by search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fedpriv.common.errors import OptionError
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import ZCDP, Event, Threat
from fedpriv.privacy.gaussian_dp import gaussian_mu

_SMALLEST, _LARGEST = 1e-4, 1e9  # range of noise multipliers searched
_MOST_EVALUATIONS = 60
_ROUND_EPSILON = "strategy.client.epsilon"


@dataclass(frozen=True)
class Calibrated:
    """noise_multiplier: argument of the plan; epsilon: cost of the run so planned, by ``accountant``."""

    noise_multiplier: float
    epsilon: float
    accountant: str


def calibrate(
    plan: Callable[[float], Sequence[Event]],
    target_epsilon: float,
    delta: float,
    tolerance: float = 0.01,
    option: str = "privacy.target_epsilon",
) -> Calibrated:
    """The smallest noise found whose planned run costs at most target_epsilon, and at least (1 - tolerance) of it.

    plan: noise multiplier -> all releases of one client by the end of the run (the client that releases most); more
    noise must never cost more. Raises OptionError(option) where no noise is enough. Where the cost jumps over the
    tolerated range, returns the noise just above the jump.
    """
    if not target_epsilon > 0:
        raise OptionError(option, target_epsilon, "must be more than 0")

    def cost(noise: float) -> Calibrated:
        composed = compose(plan(noise), delta)
        return Calibrated(noise, composed.epsilon, composed.accountant)

    enough = _enough_noise(plan, cost, target_epsilon, delta, option)
    too_little = Calibrated(_SMALLEST, math.inf, "none")
    wanted = target_epsilon * (1 - tolerance / 2)  # aim at the middle of the tolerated range
    for _ in range(_MOST_EVALUATIONS):
        close = enough.noise_multiplier < too_little.noise_multiplier * (1 + 1e-9)
        if enough.epsilon >= target_epsilon * (1 - tolerance) or close:
            break
        found = cost(_between(too_little, enough, wanted))
        too_little, enough = (found, enough) if found.epsilon > target_epsilon else (too_little, found)
    return enough


def _enough_noise(
    plan: Callable[[float], Sequence[Event]],
    cost: Callable[[float], Calibrated],
    target: float,
    delta: float,
    option: str,
) -> Calibrated:
    noise = 1.0
    while noise <= _LARGEST:
        found = cost(noise)
        if found.epsilon <= target:
            return found
        noise *= 4
    composed = compose(plan(_LARGEST), delta)
    if math.isinf(composed.epsilon):
        why = "; ".join(composed.reasons) or "the cost stays infinite"
        raise OptionError(option, target, f"no noise level reaches it: {why}")
    floor = f"with unlimited noise the run still costs epsilon {composed.epsilon:.4g}, from releases it does not cover"
    raise OptionError(option, target, f"no noise level reaches it: {floor}")


def _between(too_little: Calibrated, enough: Calibrated, wanted: float) -> float:
    """Next noise to try: epsilon is close to a power of the noise, so a secant in logarithms; never at an end."""
    low, high = math.log(too_little.noise_multiplier), math.log(enough.noise_multiplier)
    share = 0.5
    if math.isfinite(too_little.epsilon) and enough.epsilon > 0:
        share = math.log(too_little.epsilon / wanted) / math.log(too_little.epsilon / enough.epsilon)
    elif enough.epsilon > 0:  # only one end is known: epsilon of many releases falls like 1/noise
        return max(math.exp((low + high) / 2), enough.noise_multiplier * min(0.9, enough.epsilon / wanted))
    return math.exp(low + (high - low) * min(0.95, max(0.05, share)))


@lru_cache(maxsize=256)
def round_multiplier(epsilon: float, delta: float, gaussian_rho: float, other_rho: float = 0.0) -> float:
    """The noise multiplier z at which one round costs (epsilon, delta): Gaussians of gaussian_rho/z^2 in all, exactly,
    or zCDP of other_rho/z^2 beside them, by Renyi curves and within 0.1 %.
    """
    if other_rho == 0:
        return math.sqrt(2 * gaussian_rho) / gaussian_mu(epsilon, delta) * (1 + 1e-12)
    rho, threat = gaussian_rho + other_rho, Threat("client", "replace-one", "server")

    def one_round(multiplier: float) -> list[Event]:
        return [ZCDP(threat=threat, rho=rho / multiplier**2)]

    return calibrate(one_round, epsilon, delta, 1e-3, _ROUND_EPSILON).noise_multiplier
