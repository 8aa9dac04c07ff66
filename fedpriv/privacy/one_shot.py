"""An estimate of epsilon from the scores of canaries: Andrew, Kairouz, Oh, Oprea, McMahan and Suriyakumar, "One-shot
empirical privacy estimation for federated learning" (2023; ICLR 2024), Algorithms 1 and 2.

The score of a canary is the cosine of its direction with what the observer sees. Source's estimate: the scores of
canaries are N(mean, std^2), those of directions that nobody trained on N(0, 1/d), and epsilon is that of these two
Gaussians at delta. Here both worlds have scores of their own, and the second Gaussian is fitted as the first is.

**An estimate, and no bound**: it may be too large, and has no confidence. Both deviations are fitted, which makes it
too large on average: by 13 % with 500 scores of either world at mu = 1.5 and delta 1e-5, by 4 % with 5,000. It assumes
that the scores of either world are a sample of one Gaussian, and that no observer sees more than they do. So it says
nothing of faults that a single direction does not show.

The epsilon of two Gaussians. With P_i = N(m_i, s_i^2), l(x) = log p_1(x) - log p_0(x) is a quadratic in x, so
{l > epsilon} is a half-line, the inside or the outside of an interval, and

    delta(epsilon) = P_1(l > epsilon) - e^epsilon P_0(l > epsilon),

which falls in epsilon. epsilon is the larger of both directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from fedpriv.privacy.gaussian_dp import gaussian_epsilon

#: In words, as a report has them.
ASSUMES = "the canaries' scores are Gaussian, and no observer sees more than they do"
SOURCE = "Andrew et al. 2023"
#: Scores of either world below which nothing is estimated.
FEWEST = 8
#: Relative difference of two deviations below which they count as one, by whose closed form epsilon is computed.
ALIKE = 1e-9
MOST = 1e4


@dataclass(frozen=True)
class Normal:
    """mean, and std > 0."""

    mean: float
    std: float


def estimated_epsilon(outside: NDArray[np.float64], inside: NDArray[np.float64], delta: float) -> float | None:
    """The estimate from scores [n] and [m] of the worlds without and with a canary, or of a coin's two sides; None of
    too few. Infinite where the scores of a world are all the same and the worlds differ.
    """
    if min(len(outside), len(inside)) < FEWEST:
        return None
    first, second = (Normal(float(scores.mean()), float(scores.std(ddof=1))) for scores in (outside, inside))
    if min(first.std, second.std) == 0:
        return 0.0 if first == second else math.inf
    return gaussians_epsilon(first, second, delta)


def gaussians_epsilon(first: Normal, second: Normal, delta: float) -> float:
    """The least epsilon >= 0 at which both are (epsilon, delta)-indistinguishable; at most `MOST`, then infinite."""
    if abs(first.std - second.std) <= ALIKE * first.std:
        return gaussian_epsilon(abs(first.mean - second.mean) / first.std, delta)
    return max(_one_way(first, second, delta), _one_way(second, first, delta))


def _one_way(p0: Normal, p1: Normal, delta: float) -> float:
    if gaussians_delta(p0, p1, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussians_delta(p0, p1, high) > delta:
        low, high = high, 2 * high
        if high > MOST:
            return math.inf
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussians_delta(p0, p1, middle) > delta else (low, middle)
    return high


def gaussians_delta(p0: Normal, p1: Normal, epsilon: float) -> float:
    """P_1(l > epsilon) - e^epsilon P_0(l > epsilon), l = log p_1 / p_0. The deviations differ."""
    # In units of p0: y = (x - m_0) / s_0, and p1 is N(shift, ratio^2). l(y) = a y^2 + b y + c.
    shift, ratio = (p1.mean - p0.mean) / p0.std, p1.std / p0.std
    a, b = (1 - ratio**-2) / 2, shift / ratio**2
    c = -((shift / ratio) ** 2) / 2 - math.log(ratio) - epsilon
    square = b * b - 4 * a * c
    if square <= 0:  # above everywhere (a > 0), or nowhere
        return 1 - math.exp(epsilon) if a > 0 else 0.0
    q = -(b + math.copysign(math.sqrt(square), b)) / 2
    low, high = sorted((q / a, c / q if q else -q / a))

    def mass(mean: float, std: float) -> float:
        """Logarithm of the mass where l > epsilon."""
        left, right = (low - mean) / std, (high - mean) / std
        if a > 0:
            return float(np.logaddexp(log_ndtr(left), log_ndtr(-right)))
        if left > 0:  # the tail that does not cancel
            left, right = -right, -left
        top, below = float(log_ndtr(right)), float(log_ndtr(left))
        return top + math.log1p(-math.exp(below - top)) if below < top else -math.inf

    one, none = mass(shift, ratio), mass(0.0, 1.0)
    return math.exp(one) - math.exp(min(700.0, epsilon + none))
