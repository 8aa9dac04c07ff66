"""Exact laws and published bounds of single releases: CoQ-FL's bits, cpSGD's binomial noise, shuffled bits.

Everything here is about ONE coordinate of ONE release; composition multiplies. A discrete mechanism is a pair of
probability vectors (world D, world D'), or several pairs of which the worst counts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

#: Orders of every Renyi curve: close to 1 for large totals, up to a million for tiny ones.
ORDERS: Vector = np.round(
    np.concatenate(
        [
            1 + np.geomspace(1e-3, 0.1, 13)[:-1],
            np.arange(1.1, 2.05, 0.1),
            np.arange(2.2, 4.1, 0.2),
            np.arange(4.5, 11.1, 0.5),
            np.arange(12, 32),
            np.arange(32, 64, 4),
            [64, 80, 96, 128, 192, 256, 384, 512, 768, 1024, 4096, 16384, 65536, 1e6],
        ]
    ),
    9,
)


def bit_extremes(epsilon: float) -> tuple[float, float]:
    """(low, high) = (1/(1+e^eps), e^eps/(1+e^eps)): the probabilities of a "high" bit at the ends of the interval."""
    low = 1.0 / (1.0 + math.exp(epsilon))
    return low, 1.0 - low


def randomised_response(epsilon: float) -> tuple[Vector, Vector]:
    """The two laws of an epsilon-private bit; this pair dominates every epsilon-private mechanism."""
    low, high = bit_extremes(epsilon)
    return np.array([high, low]), np.array([low, high])


def cap_response(epsilon: float, inside: float) -> tuple[Vector, Vector]:
    """The two laws of a release whose ratio is e^eps on a set of probability ``inside``, and e^-eps on another.

    They dominate every pair of inputs of a mechanism whose density takes two values, e^eps apart, and that gives
    probability ``inside`` to the set where it is the higher: PrivUnit (`privunit`), randomised response among several
    symbols. In both directions: sup_S P(S) - e^t Q(S) = inside (1 - e^(t - eps)) for 0 <= t <= eps.
    """
    least = inside * math.exp(-epsilon)
    middle = max(0.0, 1.0 - inside - least)
    return np.array([inside, middle, least]), np.array([least, middle, inside])


# --- CoQ-FL: the joint law of a pair's two bits -------------------------------------------------------------


def both_high(p_a: Vector | float, p_b: Vector | float, independent_weight: float, bits: int | None) -> Vector:
    """P(high, high) of a pair with marginals p_a, p_b (broadcast). bits: M shared bits; None: M without limit.

    With t_a = p_a*N, t_b = (1-p_b)*N, N = 2^M: max(0, p_a+p_b-1) if t_a and t_b lie in different cells, otherwise
    f_a*(1-f_b)/N with their fractional parts; mixed with the independent law by ``independent_weight`` (lambda).
    """
    p_a, p_b = np.asarray(p_a, dtype=np.float64), np.asarray(p_b, dtype=np.float64)
    shared = np.maximum(0.0, p_a + p_b - 1.0)
    if bits is not None:
        cells = 2.0**bits
        t_a, t_b = p_a * cells, (1.0 - p_b) * cells
        same_cell = (t_a - np.floor(t_a)) * (1.0 - (t_b - np.floor(t_b))) / cells
        shared = np.where(np.floor(t_a) == np.floor(t_b), same_cell, shared)
    return (1.0 - independent_weight) * shared + independent_weight * p_a * p_b


def pair_law(p_a: float, p_b: Vector | float, independent_weight: float, bits: int | None) -> Vector:
    """Law of (Alice's bit, Bob's bit): [..., 4] in the order high-high, high-low, low-high, low-low."""
    p_b = np.asarray(p_b, dtype=np.float64)
    both = both_high(p_a, p_b, independent_weight, bits)
    return np.stack([both, p_a - both, p_b - both, 1.0 - p_a - p_b + both], axis=-1)


def pair_against_server(epsilon: float, independent_weight: float, bits: int) -> tuple[Vector, Vector]:
    """Worst pairs of laws, [candidates, 4] each, when the server sees both bits: D and D' differ in one member.

    Given Bob's bit, Alice's is a bit whose probability rises with p_a: the ends p_a = high against low dominate. Both
    laws are linear in p_b between the multiples of 1/N, and every divergence used here is jointly convex, so its
    maximum over p_b lies at such a multiple or at an end. Low against high is the same with all bits flipped
    (p_b -> 1 - p_b, which is among the candidates too), and Bob's case is the mirror image.
    """
    low, high = bit_extremes(epsilon)
    grid = np.arange(2**bits + 1) / 2**bits
    partner = np.concatenate([[low, high], grid[(grid > low) & (grid < high)]])
    return pair_law(high, partner, independent_weight, bits), pair_law(low, partner, independent_weight, bits)


def pair_against_members(epsilon: float, private_share: float) -> tuple[Vector, Vector]:
    """The dominating pair of laws, [6] each, for an observer who knows the shared bits as well (M without limit).

    Fewer bits, and the permutations of groups of any size, are post-processing of it: a cell instead of a point.
    The shared uniform falls below both thresholds, between them or above both, in this order; then the bit.
    """
    low, high = bit_extremes(epsilon)
    mu = private_share
    regions, shared_high, shared_low = np.array([low, high - low, low]), np.array([1.0, 1, 0]), np.array([1.0, 0, 0])

    def outcomes(p: float, shared: Vector) -> Vector:
        return np.concatenate(
            [regions * (mu * p + (1 - mu) * shared), regions * (mu * (1 - p) + (1 - mu) * (1 - shared))]
        )

    return outcomes(high, shared_high), outcomes(low, shared_low)


def pair_symmetric_loss(epsilon: float, independent_weight: float) -> tuple[Vector, Vector]:
    """One pair of laws, [4] each, that dominates a CoQ-FL pair at EVERY threshold, for privacy loss distributions.

    The worst hockey-stick divergence over all p_a, p_b, directions and M >= 1 is, for gamma >= 1,
    ``max(0, high - gamma*low, c - gamma*b)``, where ``b = lambda*high*low`` and
    ``c = (1-lambda)*(high-low) + lambda*high^2`` (reached at p_b = high); below 1 it follows by swapping worlds.
    No single pair of inputs reaches it on both sides: four coordinates at eps = 1, lambda = 0.5 with the directions
    mixed 3:1 give delta(4) = 0.1396, all four in one direction 0.1363. This law's losses are that curve's corners.
    """
    low, high = bit_extremes(epsilon)
    b = independent_weight * high * low
    c = (1 - independent_weight) * (high - low) + independent_weight * high**2
    mass = np.array([b, low - b])  # of D' at the corners
    loss_ratio = np.array([c / b, (high - c) / (low - b)])
    return np.concatenate([mass * loss_ratio, mass]), np.concatenate([mass, mass * loss_ratio])


# --- divergences of discrete laws ---------------------------------------------------------------------------


def pure_renyi(epsilon: float, orders: Vector) -> Vector:
    """Renyi divergence of the pair that dominates every epsilon-private mechanism."""
    if epsilon > 600:  # the smaller probability would underflow; the divergence never exceeds epsilon
        return np.full(len(orders), epsilon)
    return renyi_divergence(*randomised_response(epsilon), orders)


def largest_loss(first: Vector, second: Vector) -> float:
    """Pure epsilon of pairs of laws [..., outcomes]: the largest ln(P/Q) where P > 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(first > 0, np.log(first) - np.log(second), -math.inf)
    return float(ratio.max())


def renyi_divergence(first: Vector, second: Vector, orders: Vector) -> Vector:
    """D_alpha(P || Q), the worst over pairs of laws [candidates, outcomes], for each order (> 1)."""
    first, second = np.atleast_2d(first), np.atleast_2d(second)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p, log_q = np.log(first), np.log(second)
        terms = orders[:, None, None] * (log_p - log_q) + log_q
        terms = np.where(first > 0, terms, -math.inf)
    largest = terms.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(terms - largest).sum(axis=-1)) + largest[..., 0]
    return np.maximum(0.0, log_sum.max(axis=-1) / (orders - 1.0))


# --- cpSGD: the binomial mechanism --------------------------------------------------------------------------


def renyi_to_epsilon(curves: Vector, delta: float) -> Vector:
    """epsilon at delta of Renyi curves [..., orders], the best order for each (Canonne et al. 2020, Prop. 12)."""
    if delta == 0:
        return np.where((curves == 0).all(axis=-1), 0.0, np.inf)
    best = (curves + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)).min(axis=-1)
    return np.maximum(0.0, np.where(np.isnan(best), np.inf, best))


def binomial_epsilon(
    step: float, trials: int, dimension: int, l1: float, l2: float, linf: float, delta: float
) -> float:
    """epsilon of cpSGD's Theorem 1 at p = 1/2 (Agarwal et al., NeurIPS 2018), infinite where it does not hold."""
    variance = trials / 4
    if step == 0 or variance < max(23 * math.log(10 * dimension / delta), 2 * linf / step):
        return math.inf
    b, c, d = 1 / 3, 7 * math.sqrt(2) / 4, 2 / 3
    log = math.log
    gaussian_part = l2 * math.sqrt(2 * log(1.25 / delta)) / (step * math.sqrt(variance))
    second = (l2 * c * math.sqrt(log(10 / delta)) + l1 * b) / (step * variance * (1 - delta / 10))
    third = linf * (2 / 3 * log(1.25 / delta) + d * log(20 * dimension / delta) * log(10 / delta)) / (step * variance)
    return gaussian_part + second + third


def binomial_sensitivities(clip_norm: float, step: float, levels: int, dimension: int) -> tuple[float, float, float]:
    """(L1, L2, Linf) under replace-one of a vector of norm <= clip_norm after rounding to ``levels`` of width step.

    Both worlds may round with the same uniforms (divergences are jointly convex), so a coordinate moves by at most
    its own change plus one step: L2 <= 2C + step*sqrt(d), L1 <= sqrt(d)*L2, Linf <= (levels - 1)*step.
    """
    l2 = 2 * clip_norm + step * math.sqrt(dimension)
    return math.sqrt(dimension) * l2, l2, (levels - 1) * step


# --- shuffling ----------------------------------------------------------------------------------------------


def shuffled_epsilon(epsilon: float, users: int, delta: float) -> float | None:
    """epsilon of ``users`` shuffled epsilon-private answers; None where the theorem's condition does not hold.

    Feldman, McMillan and Talwar, "Hiding among the clones", FOCS 2021, Theorem 3.1:
    epsilon0 <= ln(n/(16 ln(2/delta))), then ln(1 + tanh(eps0/2) * (8 sqrt(e^eps0 ln(4/delta)/n) + 8 e^eps0/n)).
    """
    if users <= 16 * math.log(2 / delta) or epsilon > math.log(users / (16 * math.log(2 / delta))):
        return None
    grown = math.exp(epsilon) / users
    amplified = math.log1p(math.tanh(epsilon / 2) * (8 * math.sqrt(grown * math.log(4 / delta)) + 8 * grown))
    return min(epsilon, amplified)


def skellam_exponent(reach: float, variance: float) -> float:
    """h with P[X >= reach] <= exp(-h) (Chernoff): reach asinh(z) - m (sqrt(1 + z^2) - 1), z = reach/m."""
    z = reach / variance
    return reach * math.asinh(z) - variance * (z * z / (1 + math.sqrt(1 + z * z)))
