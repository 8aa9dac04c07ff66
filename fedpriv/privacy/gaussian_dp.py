"""The Gaussian mechanism's exact privacy curve, in closed form and in both directions.

mu is sensitivity / standard deviation; k releases of multipliers m_i compose to ``mu = sqrt(sum 1/m_i^2)``.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon * Phi(-mu/2 - epsilon/mu)

Source: Balle and Wang, ICML 2018, Theorem 8; composition: Dong, Roth and Su, JRSS-B 2022, Corollary 3.3.
Standard library only: clients call this before every release.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_STEPS = 200  # bisection to the last bit


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon at which a Gaussian mechanism of this mu is (epsilon, delta)-private.

    mu in [0, inf], delta in [0, 1), ValueError otherwise. Relative error below 1e-9 for mu from 1e-6 to 1e6.
    """
    _check_delta(delta)
    if not mu >= 0:
        raise ValueError(f"mu={mu}: must be at least 0")
    if mu == 0 or math.erf(mu / math.sqrt(8)) <= delta:
        return 0.0
    if math.isinf(mu) or delta == 0:
        return math.inf
    # With a = mu/2 - epsilon/mu the curve is free of cancellation and increasing in a.
    low, high = NormalDist().inv_cdf(delta) - 1.0, mu / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _delta(middle, mu) <= delta else (low, middle)
    return mu * (mu / 2 - low)


def shifted_epsilon(mu: float, shift: float, delta: float) -> float:
    """epsilon where delta(epsilon) is at most exp(shift) times a Gaussian's at epsilon - shift, shift >= 0."""
    return shift + gaussian_epsilon(mu, delta * math.exp(-shift))


@lru_cache(maxsize=1024)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu whose Gaussian mechanism is (epsilon, delta)-private: the inverse of `gaussian_epsilon`."""
    _check_delta(delta)
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon}: must be at least 0")
    if delta == 0:
        return 0.0
    if math.isinf(epsilon):
        return math.inf
    low, high = 0.0, 1.0
    while _delta(high / 2 - epsilon / high, high) <= delta:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _delta(middle / 2 - epsilon / middle, middle) <= delta else (low, middle)
    return low


def total_mu(multipliers_and_counts: list[tuple[float, int]]) -> float:
    """mu of a composition of (multiplier, count). Infinite for no noise, or noise so small that it underflows."""
    squares = [
        count * _square(1 / multiplier) if multiplier else math.inf for multiplier, count in multipliers_and_counts
    ]
    return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.inf


def _square(x: float) -> float:
    return x * x  # x**2 raises on overflow; this is infinite


def _delta(a: float, mu: float) -> float:
    """delta at epsilon = mu * (mu/2 - a): Phi(a) - phi(a) * M(mu - a), M = Phi(-x)/phi(x), Mills' ratio."""
    if a > -1:
        return NormalDist().cdf(a) - _density(a) * _mills(mu - a)
    return _density(a) * (_mills(-a) - _mills(mu - a))


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _mills(x: float) -> float:
    """Phi(-x) / phi(x) for x >= 0 to about 1e-13."""
    if x < 30:
        return math.sqrt(math.pi / 2) * math.exp(x * x / 2) * math.erfc(x / math.sqrt(2))
    inverse = 1 / (x * x)  # asymptotic series; the next term is below 1e-13 from x = 30 on
    return (1 - inverse * (1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse * (1 - 9 * inverse))))) / x


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must be in [0, 1)")
