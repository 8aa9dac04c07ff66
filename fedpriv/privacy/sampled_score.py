"""The likelihood-ratio score of sampled Gaussian releases, for `fedpriv.privacy.auditor.audit`.

In round t of T the unit is in the sample with probability q_t, and then moves the release by 1 / m_t of its noise. Let
x_t be the release along that direction, in units of its noise. World 0 has x_t ~ N(0, 1), world 1 the mixture
(1 - q_t) N(0, 1) + q_t N(1 / m_t, 1), independently, so the log of the likelihood ratio is

    sum_t log(1 - q_t + q_t exp(x_t / m_t - 1 / (2 m_t^2))),

the best score there is [Neyman and Pearson 1933]. A sum of the x_t (a linear score) counts the many rounds without the
unit at full weight. The q_t and m_t come from the ledger's events and are only a choice of score: were they wrong, the
bound would be smaller and still hold. Location and scale of the x_t are learned. Shapes: n trials, k >= T features, of
which the first T are the x_t up to location and scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedpriv.privacy.auditor import Fit, Score
from fedpriv.privacy.events import Event, PoissonGaussian

Array = NDArray[np.float64]
#: The score's name in an audit's rule.
NAME = "likelihood ratio"


def sampled_score(events: Sequence[Event], releases: int) -> dict[str, Fit]:
    """{name: fit} for so many releases that cost these events, in their order; empty where one of them is no sampled
    Gaussian, or has several steps, or where all units are in every sample.
    """
    if not events or not all(isinstance(event, PoissonGaussian) for event in events):
        return {}
    found = [one for one in events if isinstance(one, PoissonGaussian)]
    if all(one.takes_all for one in found) or any(one.multiplier <= 0 for one in found):
        return {}
    if sum(one.count for one in found) != releases:
        return {}
    rates = np.concatenate([[one.sampling_rate] * one.count for one in found])
    shifts = np.concatenate([[1 / one.multiplier] * one.count for one in found])
    return {NAME: likelihood_ratio(rates, shifts)}


def likelihood_ratio(rates: Array, shifts: Array) -> Fit:
    """rates, shifts: [T], q_t and 1 / m_t."""

    def fit(world0: Array, world1: Array) -> Score:
        many = len(rates)
        centre, scale = world0[:, :many].mean(0), world0[:, :many].std(0)
        scale = np.where(scale > 0, scale, 1.0) * np.where(world1[:, :many].mean(0) < centre, -1, 1)

        def score(features: Array) -> Array:
            total = np.zeros(len(features))
            for t in range(many):
                exponent = (features[:, t] - centre[t]) * (shifts[t] / scale[t]) - shifts[t] ** 2 / 2
                with np.errstate(divide="ignore"):
                    total += np.logaddexp(np.log1p(-rates[t]), np.log(rates[t]) + exponent)
            return total

        return score

    return fit


def log_ratio(seen: NDArray[np.float64], sigma: float, rate: float, steps: int) -> NDArray[np.float64]:
    """log sum_j Pr[j] exp(j m x - j^2 m^2 / 2), j ~ Binomial(steps, rate), m = 1 / (sigma sqrt(steps)): of values x, in
    units of their noise, whether the unit was there [...].
    """
    times, m = np.arange(steps + 1), 1 / (sigma * np.sqrt(steps))
    exponents = _weights(sigma, rate, steps) + times * m * seen[..., None]
    largest = exponents.max(-1, keepdims=True)
    found: NDArray[np.float64] = np.log(np.exp(exponents - largest).sum(-1)) + largest[..., 0]
    return found


@lru_cache(maxsize=8)
def _weights(sigma: float, rate: float, steps: int) -> Array:
    """log Pr[j] - j^2 m^2 / 2 of every j, [steps + 1]."""
    times = np.arange(steps + 1)
    weights: Array = binom.logpmf(times, steps, rate) - times**2 / (2 * sigma**2 * steps)
    return weights
