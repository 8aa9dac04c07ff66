"""Laws of Gaussians over samples under other neighbours, or of another sampler. Each section has its proof."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from fedpriv.mechanisms.laws import Vector

# --- replaced poisson -------------------------------------------------------------------------------------------------

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


# --- random allocation ------------------------------------------------------------------------------------------------

"""Gaussian noise and a client that takes part in one secret round of t: the pair of laws that dominates a pass.

A pass is t rounds. In each the server releases the sum of the clipped vectors of that round's clients plus N(0, s^2 I),
s = sigma C. Every client takes part in exactly one round I of a pass, uniform on 1..t, drawn for itself, for this pass
alone, and never told (Feldman and Shenfeld 2025, "Privacy amplification by random allocation"). Neighbours: with a
client, and without it, all others' rounds being the same.

**The pair**, with x_1..x_t independent, is one of laws on t numbers:

    Q = N(0, 1)^t,    P = (1/t) sum_i N(m e_i, I),   m = 1/sigma,
    dP/dQ = S = (W_1 + ... + W_t)/t,   W_i = exp(m x_i - m^2/2): under Q independent lognormals of mean 1.

**It dominates a pass**, in both directions, whatever vectors the client sends. Given what was released earlier, the
others' rounds and every batch's randomness, the released y_i of round i is v_i + N(0, s^2 I) if I = i, and else
N(0, s^2 I) (up to a shift which both worlds share), where v_i, |v_i| <= C, is a function of y_1..y_(i-1). Make y from x
of the pair, one round after the other: (|v_i| x_i + (C^2 - |v_i|^2)^(1/2) g) s/C along v_i, and s g' across it, with
fresh normal numbers g, g'. From x_i ~ N(m, 1) this is N(v_i, s^2 I), from N(0, 1) it is N(0, s^2 I); and it needs
y_1..y_(i-1) and x_i, not I. So one kernel takes P to the pass with the client, and Q to that without it: neither
direction of any divergence grows. What is mixed over (the others' rounds, batches) has one law in both worlds; a state
that the client kept from earlier passes may tell its rounds there, but given what was released a pass is a mixture over
such states of pairs as above: joint convexity.
**A cut pass**, of which only the first n rounds are ever released, n being known before it begins: all of the above
holds for y_1..y_n and x_1..x_n alone, whose laws are Q = N(0, 1)^n and P = (1 - n/t) Q + (n/t) P_n, with P_n that of a
pass of n rounds: S = 1 - n/t + (n/t) S_n. A pass that ends earlier still is post-processing. One that goes on is not,
so a run that is extended begins a pass anew.
Passes compose adaptively, as each has its own I (Zhu, Dong and Wang 2022, Theorem 10).

**Both directions from one law.** For c = exp(epsilon), any sign:

    H_c(P|Q) = E (S - c)_+,    H_c(Q|P) = E (1 - c S)_+,

expectations under Q of convex functions of S. So a law that is larger in the convex order (the same mean, more spread)
is an upper bound of both at every epsilon, and independent sums keep that order (Shaked and Shanthikumar 2007, 3.A.12).
Every step below is one: a number between two points of a grid becomes one of the two, its mean kept.

- The grid is 0 and exp(k h), k whole. W's mass between neighbours is divided so that mass and mean, which are
  differences of normal tails, stay.
- Two sums on the grid add up to exp((k + f(j - k)) h), f(n) = log(1 + exp(n h))/h: where it lies between its
  neighbours depends on j - k alone, so a convolution is one multiplication of vectors for every difference. log2(t)
  doublings make S.
- Below the last kept point, mass goes to 0 and that point, its mean kept. Above the last kept point M, S is min(S, M)
  and a rest of mean r: E (S - c)_+ <= E (min(S, M) - c)_+ + r, and E (1 - c S)_+ <= E (1 - c min(S, M))_+. Where sums
  are added, so are their rests. So r is a loss without bound of probability r under P; what lies at 0 is one under Q.

Each step adds at most the variance h^2/4 (relative to its square) to a sum, h^2/6 in the mean; that of half the terms
counts half. `spacing` keeps this below `MORE_VARIANCE` of S's own.

Symbols: sigma -> multiplier, t -> rounds, n -> released, m -> mean, h -> step, r -> rest; the law of T = t S on the
grid -> `Sum`.
"""


#: What spreading may add to the variance of S, relative to it; and the coarsest grid, absolute and in units of m.
MORE_VARIANCE, COARSEST, PER_MEAN = 4e-4, 0.0125, 1 / 50
#: Mass that may be cut at either end of a sum.
CUT = 1e-20
#: Standard deviations of x beyond which nothing is: P[x > 10] = 8e-24.
BEYOND = 10.0
#: Relative error of all sums of rounded numbers, for at most a million rounds: a relative error of a double's 2.2e-16
#: in W's masses is t times as large in those of T, and a convolution adds up to some thousand terms.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Sum:
    """A law on 0 and exp((first + k) step): masses [n] at these, ``zero`` at 0; rest: a further mean without bound."""

    step: float
    first: int
    masses: Vector
    zero: float
    rest: float

    @property
    def logs(self) -> Vector:
        """Logarithms of the points [n]."""
        return np.asarray((self.first + np.arange(len(self.masses))) * self.step, np.float64)

    def finer(self, step: float) -> Sum:
        """The same law on a grid whose step is this one's divided by a power of two."""
        many = round(self.step / step)
        if many == 1:
            return self
        masses = np.zeros((len(self.masses) - 1) * many + 1)
        masses[::many] = self.masses
        return Sum(step, self.first * many, masses, self.zero, self.rest)

    def cut(self) -> Sum:
        """Without ends of mass (below) or mean (above) at most `CUT` each."""
        masses, points = self.masses, np.exp(self.logs)
        low = int(np.searchsorted(np.cumsum(masses), CUT))
        high = len(masses) - 1 - int(np.searchsorted(np.cumsum((masses * points)[::-1]), CUT))
        low, high = min(low, high), max(low, high)
        kept = masses[low : high + 1].copy()
        kept[-1] += masses[high + 1 :].sum()
        rest = self.rest + float((masses[high + 1 :] * (points[high + 1 :] - points[high])).sum())
        up = float((masses[:low] * points[:low]).sum()) / points[low]
        kept[0] += up
        return Sum(self.step, self.first + low, kept, self.zero + float(masses[:low].sum()) - up, rest)


def lognormal(mean: float, step: float) -> Sum:
    """W = exp(m x - m^2/2), x ~ N(0, 1), on the grid."""
    first, last = (math.floor((sign * BEYOND * mean + mean * mean / 2 * sign) / step) for sign in (-1, 1))
    logs: Vector = np.arange(first, last + 2, dtype=np.float64) * step
    x: Vector = logs / mean + mean / 2
    # Between neighbours: mass under Q, and under P, where x has the mean m: E[W; .]
    mass, moment = (_between(x - at) for at in (0.0, mean))
    lower, upper = np.exp(logs[:-1]), np.exp(logs[1:])
    high = np.clip((moment - lower * mass) / (upper - lower), 0.0, mass)
    masses = np.zeros(len(logs))
    masses[:-1] += mass - high
    masses[1:] += high
    below, up = float(ndtr(x[0])), float(ndtr(x[0] - mean)) / math.exp(logs[0])
    masses[0] += up
    masses[-1] += float(ndtr(-x[-1]))
    rest = max(0.0, float(ndtr(mean - x[-1])) - float(ndtr(-x[-1])) * math.exp(logs[-1]))
    return Sum(step, first, masses, below - up, rest).cut()


def _between(edges: Vector) -> Vector:
    """P[edges_k < N(0, 1) < edges_(k+1)], of the smaller tails' difference."""
    left, right = edges[:-1], edges[1:]
    found: Vector = np.where(left + right > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))
    return np.maximum(found, 0.0)


def added(one: Sum, other: Sum) -> Sum:
    """The sum of two independent ones, on the finer of their grids."""
    step = min(one.step, other.step)
    one, other = one.finer(step), other.finer(step)
    n, k = len(one.masses), len(other.masses)
    start = min(one.first, other.first)
    size = max(one.first + n, other.first + k) - start + math.ceil(math.log(2) / step) + 2
    found = np.zeros(size)
    found[one.first - start : one.first - start + n] += one.masses * other.zero
    found[other.first - start : other.first - start + k] += other.masses * one.zero
    for shift in range(other.first - one.first - n + 1, other.first - one.first + k):
        # places i of one and i + shift of the other, counted from their common origin
        low, high = max(one.first, other.first - shift), min(one.first + n, other.first + k - shift)
        both = (
            one.masses[low - one.first : high - one.first]
            * (other.masses[low + shift - other.first : high + shift - other.first])
        )
        place = float(np.logaddexp(0.0, shift * step)) / step
        whole = math.floor(place)
        share = math.expm1((place - whole) * step) / math.expm1(step)
        at = low + whole - start
        found[at : at + len(both)] += both * (1 - share)
        found[at + 1 : at + 1 + len(both)] += both * share
    return Sum(step, start, found, one.zero * other.zero, one.rest + other.rest).cut()


def spacing(mean: float, rounds: int, terms: int) -> float:
    """h for sums of so many terms: for all of them as the variance of S allows, for fewer of them coarser, by powers of
    two of which the fourth is at most t/terms.
    """
    variance = math.expm1(min(mean * mean, 500.0)) / rounds
    finest = min(COARSEST, PER_MEAN * mean, math.sqrt(2 * MORE_VARIANCE * variance))
    return finest * 2.0 ** math.floor(math.log2(rounds / terms) / 4)


@lru_cache(maxsize=64)
def allocated_sum(rounds: int, multiplier: float) -> Sum:
    """The law of T = t S from above in the convex order."""
    mean, total, done = 1 / multiplier, None, 0
    part, terms = lognormal(mean, spacing(mean, rounds, 1)), 1
    while True:
        if rounds & terms:
            total, done = (part if total is None else added(total, part)), done + terms
        if 2 * terms > rounds:
            assert total is not None
            return total
        terms *= 2
        part = added(part, part).finer(spacing(mean, rounds, terms))


# --- what accountants ask --------------------------------------------------------------------------------------


def _ratios(rounds: int, multiplier: float, released: int) -> tuple[Vector, Vector, float, float]:
    """S: its values above 0, increasing, their masses; the mass of 0; the rest of its mean. released: 0: all rounds."""
    released = released or rounds
    law, share = allocated_sum(released, multiplier), released / rounds
    values, masses = share * np.exp(law.logs - math.log(released)), law.masses
    if share == 1:
        return values, masses, law.zero, law.rest / rounds
    return 1 - share + np.append(0.0, values), np.append(law.zero, masses), 0.0, law.rest / rounds


def hockey_sticks(rounds: int, multiplier: float, losses: Vector, released: int = 0) -> tuple[Vector, Vector]:
    """(H_c(P|Q), H_c(Q|P)) from above at c = exp(loss), of increasing losses (any sign)."""
    values, mass, zero, rest = _ratios(rounds, multiplier, released)
    # of the points above each loss: mass and mean; of those below: mass and mean
    place = np.searchsorted(values, np.exp(losses), side="right")
    over, over_mean = (np.append(np.cumsum(part[::-1])[::-1], 0.0)[place] for part in (mass, mass * values))
    removed = over_mean - np.exp(losses) * over + rest
    place = np.searchsorted(values, np.exp(-losses), side="left")
    under, under_mean = (np.append(0.0, np.cumsum(part))[place] for part in (mass, mass * values))
    added_ = under + zero - np.exp(losses) * under_mean
    return tuple(np.clip(part * (1 + ROUNDING), 0.0, 1.0) for part in (removed, added_))  # type: ignore[return-value]


@lru_cache(maxsize=64)
def allocated_pld(rounds: int, multiplier: float, interval: float, released: int = 0) -> Any:
    """Privacy loss distribution of one pass: losses interpolated between grid points (Doroshenko et al. 2022), what
    lies beyond the last point counted as infinite.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as library

    values = _ratios(rounds, multiplier, released)[0]
    least, most = math.floor(math.log(values[0]) / interval) - 1, math.ceil(math.log(values[-1]) / interval) + 1
    laws = []
    for direction, (low, high) in enumerate(((least, most), (-most, -least))):
        grid = np.arange(low, high + 1)
        deltas = hockey_sticks(rounds, multiplier, np.asarray(grid * interval, np.float64), released)[direction]
        deltas = np.minimum.accumulate(deltas)
        laws.append(pld_pmf.create_pmf_pessimistic_connect_dots(interval, grid, deltas))
    return library.PrivacyLossDistribution(*laws)


def allocated_renyi(rounds: int, multiplier: float, orders: Vector, released: int = 0) -> Vector:
    """Renyi divergence at each order (> 1), the larger of both directions, of the bounded part of the pair: beside it,
    `unbounded_share` of delta is paid.
    """
    values, mass, _, _ = _ratios(rounds, multiplier, released)
    logs = np.log(values)
    moments = [
        max(float(logsumexp(power * logs, b=mass)) for power in (order, 1 - order)) + ROUNDING for order in orders
    ]
    found: Vector = np.minimum(np.maximum(moments, 0.0) / (orders - 1), orders / (2 * multiplier * multiplier))
    return found


def unbounded_share(rounds: int, multiplier: float, released: int = 0) -> float:
    """Probability of a loss without bound in a pass, in the worse direction."""
    return max(_ratios(rounds, multiplier, released)[2:])
