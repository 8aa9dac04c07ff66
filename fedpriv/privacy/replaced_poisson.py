"""A Gaussian over a Poisson sample of parts of which one, if it is drawn, is another: curve and law of its loss.

The sum of the parts in the sample gets noise N(0, s^2 I). Two data sets differ in one part: it is v in one and w in the
other, both no longer than C. The part is drawn with probability q by a coin that the observer does not see; given the
other parts' coins and values the outputs have, up to a shift, the laws

    P = (1 - q) N(0, s^2 I) + q N(v, s^2 I),   Q = (1 - q) N(0, s^2 I) + q N(w, s^2 I).

This is not the law of add-or-remove: there a part that is drawn is v or nothing, here it is v or w, which lie up to 2C
apart, and both mixtures move.

**The pair** P*, Q*, on a line, with v = C and w = -C **dominates** every P, Q: the hockey-stick divergence
H_t(P|Q) = sup_A P(A) - t Q(A) is at most H_t(P*|Q*) for every t >= 0.

Proof. For t >= 1, with the density ratios X = dN_0/dN_v and Y = dN_w/dN_v,

    H_t(P|Q) = E_(N_v) [(q - (t - 1)(1 - q) X - t q Y)_+],

a convex function of Z = (t - 1)(1 - q) X + t q Y, whose weights are not negative. X and Y are lognormal of mean 1, by
the distances a = |v| <= C and b = |v - w| <= 2C. (1) Of all sums with these two marginals the comonotone one is largest
in the convex order (Dhaene et al. 2002, Theorem 7); X and Y are comonotone where 0 and w lie on one ray from v. (2) A
lognormal of mean 1 grows in the convex order with its distance, and a comonotone sum grows with its marginals, since
expected shortfalls of comonotone terms add up (the same, Theorem 5). So H_t is largest where a = C, b = 2C, on one ray:
v = C, w = -C. For t < 1, H_t(P|Q) = 1 - t + t H_(1/t)(Q|P), which is the same case with v and w exchanged; P* and Q*
are each other's reflections. Mixing over the other parts' coins and values, which have one law in both worlds, does not
increase H_t (joint convexity); nor does a part that is itself random: it is a mixture over pairs v, w.

Since the pair dominates at every t, so do its products, also where later releases depend on earlier outputs (Zhu, Dong,
Wang 2022, Theorem 10), and its Renyi curve bounds that of P, Q (it is an integral of H_t with positive weights).

With q = 1 the pair is a Gaussian of multiplier s/(2C). For q < 1 the curve is at most that Gaussian's (joint
quasi-convexity), and is computed as an integral over a line.

Symbols: s/(2C) -> multiplier, q -> rate; below s = 1, C -> shift = 1/(2 multiplier).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from fedpriv.mechanisms.laws import Vector

#: The integral is computed up to this order, and while C is at most so many standard deviations; beyond, the Gaussian's
#: curve without sampling is the bound.
LARGEST_ORDER, LARGEST_SHIFT = 512.0, 20.0
#: Standard deviations beyond the outermost peak of an integrand; its points in one standard deviation.
BEYOND, POINTS = 14.0, 40
#: Added to each log moment for the rounding of the integral.
SLACK = 1e-12


def log_mixtures(points: Vector, rate: float, shift: float) -> tuple[Vector, Vector]:
    """log P*(x) and log Q*(x) but for the density of N(0, 1), at points x."""
    up, down = shift * points - shift * shift / 2, -shift * points - shift * shift / 2
    stay, moved = np.log1p(-rate), np.log(rate)
    return np.logaddexp(stay, moved + up), np.logaddexp(stay, moved + down)


@lru_cache(maxsize=256)
def _renyi(rate: float, multiplier: float, orders: tuple[float, ...]) -> Vector:
    shift = 1 / (2 * multiplier)
    found = np.array(orders) * 0.5 / multiplier**2
    if shift > LARGEST_SHIFT:
        return found
    step = 1 / (POINTS * max(1.0, shift))
    for place, order in enumerate(orders):
        if order > LARGEST_ORDER:
            continue
        # P^a Q^(1-a) has its peaks between -C and a C: the exponents are -x^2/2 + c x with c from -C to a C
        points = np.arange(-shift - BEYOND, order * shift + BEYOND, step)
        above, below = log_mixtures(points, rate, shift)
        exponents = order * above + (1 - order) * below - points**2 / 2
        most = exponents.max()
        moment = most + np.log(np.exp(exponents - most).sum() * step) - 0.5 * np.log(2 * np.pi)
        found[place] = min(found[place], (max(moment, 0.0) + SLACK) / (order - 1))
    return found


def replaced_poisson_renyi(rate: float, multiplier: float, orders: Vector) -> Vector:
    """Renyi divergence at each order (> 1); both ways it is the same."""
    return _renyi(rate, multiplier, tuple(float(order) for order in orders)).copy()


def hockey_stick(rate: float, multiplier: float, losses: Vector) -> Vector:
    """delta(epsilon) = H_(exp epsilon)(P*|Q*) at each epsilon (any sign)."""
    shift = 1 / (2 * multiplier)
    low, high = np.full(losses.shape, -1.0), np.full(losses.shape, 1.0)

    def loss(points: Vector) -> Vector:
        above, below = log_mixtures(points, rate, shift)
        return above - below

    while (short := loss(high) < losses).any():  # the loss rises without bound in both directions
        high[short] *= 2
    while (short := loss(low) > losses).any():
        low[short] *= 2
    for _ in range(100):
        middle = (low + high) / 2
        below = loss(middle) < losses
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    with np.errstate(under="ignore"):
        first = (1 - rate) * ndtr(-high) + rate * ndtr(shift - high)
        second = np.logaddexp(np.log1p(-rate) + log_ndtr(-high), np.log(rate) + log_ndtr(-high - shift))
        found: Vector = np.clip(first - np.exp(losses + second), 0.0, 1.0)
    return found


@lru_cache(maxsize=64)
def replaced_poisson_pld(rate: float, multiplier: float, interval: float) -> Any:
    """Privacy loss distribution of one release: losses interpolated between grid points (Doroshenko et al. 2022), what
    lies beyond the last point counted as infinite.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as library

    shift = 1 / (2 * multiplier)
    above, below = log_mixtures(np.array([shift + 9.5]), rate, shift)
    most = int(np.ceil(float((above - below)[0]) / interval))
    grid = np.arange(-most, most + 1)
    losses: Vector = grid.astype(np.float64) * interval
    deltas = np.minimum.accumulate(hockey_stick(rate, multiplier, losses))
    return library.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(interval, grid, deltas))
