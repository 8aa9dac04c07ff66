"""The only module that uses dp-accounting 0.6.0; it works around its pitfalls. Loaded only where needed:
importing it takes seconds, and clients with only Gaussian noise never do.

Our multipliers are relative to the sensitivity under the event's own adjacency, so no accountant may apply a
neighbouring relation of its own (tests/privacy/test_privacy_composition.py pins each figure):
- under REPLACE_ONE, PLD takes std/clip and doubles the sensitivity itself, RDP takes std/sensitivity (a Gaussian of
  1.0 at delta 1e-5: 9.997 against 4.73). Hence PLD always with ADD_OR_REMOVE_ONE, which doubles nothing.
- `PLDAccountant` drops the count of randomised-response events (50 at eps = 1: 1.00, not 45.68). Hence
  distributions built and self-composed here, never an accountant.
- fixed-size sampling: RDP with REPLACE_ONE alone; zCDP: RDP alone; tiny sigmas raise or overflow.
- the loss distribution of a Gaussian is computed point by point in Python: `_GaussianLoss` does the same for all points
  in one operation each, to the bit, in an eighth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from absl import logging as absl_logging
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import pld_pmf, privacy_loss_mechanism
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import rdp_privacy_accountant as rdp_library
from numpy.typing import NDArray
from scipy import fft

from fedpriv.mechanisms.laws import Vector

_ADD_OR_REMOVE = privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE = privacy_accountant.NeighboringRelation.REPLACE_ONE
#: The library's loops cost O(order) (Poisson) and O(order^2) (fixed size): beyond these the divergence is not computed.
_LARGEST_POISSON_ORDER, _LARGEST_FIXED_ORDER = 256.0, 128.0


# --- Renyi divergences of one release, at each order ---------------------------------------------------------


def poisson_gaussian_rdp(sampling_rate: float, multiplier: float, orders: Vector) -> Vector:
    """Poisson-subsampled Gaussian, add-or-remove (Mironov, Talwar and Zhang 2019). Infinite where not computed."""
    event = dp_event.PoissonSampledDpEvent(sampling_rate, dp_event.GaussianDpEvent(multiplier))
    return _rdp(event, _ADD_OR_REMOVE, orders, (orders >= 1.1) & (orders <= _LARGEST_POISSON_ORDER))


def fixed_size_gaussian_rdp(sample_size: int, population: int, multiplier: float, orders: Vector) -> Vector:
    """Gaussian over a sample without replacement, replace-one (Wang, Balle and Kasiviswanathan 2019, Theorem 27).

    Computed at whole orders; between them (order - 1)*D is convex, so the chord is an upper bound.
    """
    gaussian = dp_event.GaussianDpEvent(multiplier)
    event = dp_event.SampledWithoutReplacementDpEvent(population, sample_size, gaussian)
    whole = np.unique(np.concatenate([[2.0], np.ceil(orders), np.floor(orders)]))
    whole = whole[(whole >= 2) & (whole <= _LARGEST_FIXED_ORDER)]
    log_moments = (whole - 1) * _rdp(event, _REPLACE, whole, whole > 0)
    chord = np.interp(orders, np.append(1.0, whole), np.append(0.0, log_moments), right=np.inf) / (orders - 1)
    return np.where(np.isfinite(chord), chord, np.inf)


def laplace_rdp(multiplier: float, orders: Vector) -> Vector:
    """Laplace mechanism (Mironov 2017, Proposition 6)."""
    return _rdp(dp_event.LaplaceDpEvent(multiplier), _ADD_OR_REMOVE, orders, orders > 0)


def _rdp(event: Any, relation: Any, orders: Vector, where: NDArray[np.bool_]) -> Vector:
    divergences = np.full(len(orders), np.inf)
    accountant = rdp_library.RdpAccountant(orders[where], relation)
    with _quiet(), np.errstate(all="ignore"):
        accountant.compose(event)
    divergences[where] = accountant.rdp
    return np.where(np.isnan(divergences), np.inf, divergences)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses warnings about orders at which a series does not converge: those count as infinite."""
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        yield
    finally:
        absl_logging.set_verbosity(verbosity)


# --- privacy loss distributions --------------------------------------------------------------------------------


class _GaussianLoss(privacy_loss_mechanism.GaussianPrivacyLoss):
    """The library's loss of a (Poisson-sampled) Gaussian, its curve evaluated at all points together.

    For each epsilon the library evaluates log(1 + (exp(+-epsilon) - 1) / q) by its ``log_a_times_exp_b_plus_c``, where
    a = 1/q and c = 1 - 1/q < 0. The operations and their order are the same here, on arrays:
    tests/privacy/test_privacy_composition.py compares the bits.
    """

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """delta(epsilon) of one epsilon, or of an array of them, of any shape."""
        if np.ndim(epsilon) == 0:
            return super().get_delta_for_epsilon(epsilon)
        epsilons, rate = np.asarray(epsilon, float), float(self.sampling_prob)
        added = self.adjacency_type == privacy_loss_mechanism.AdjacencyType.ADD
        deltas, inside = np.zeros_like(epsilons), np.full(epsilons.shape, True)
        if rate < 1 and added:
            inside = epsilons < -math.log1p(-rate)
        elif rate < 1:
            inside = epsilons > math.log1p(-rate)
            deltas[~inside] = -np.expm1(epsilons[~inside])
        losses = epsilons[inside]
        if rate < 1:
            unsampled = _before_sampling(-losses if added else losses, rate)
            losses = -unsampled if added else unsampled
        cutoffs = -0.5 * self.sensitivity - losses * self._standard_deviation**2 / self.sensitivity
        if added:
            cutoffs = self.sensitivity + cutoffs
        above, below = self.mu_upper_cdf(cutoffs), self.mu_lower_log_cdf(cutoffs)
        deltas[inside] = above - np.exp(epsilons[inside] + below)
        return np.clip(deltas, 0, 1)


def _before_sampling(losses: Vector, rate: float) -> Vector:
    """log(1 + (exp(loss) - 1) / rate), of losses above log(1 - rate): at that end itself, minus infinity.

    Raises ValueError for a loss below that end, which no outcome has.
    """
    end, constant = math.log(1 - rate), 1 - 1 / rate
    scaled = losses + np.log(1 / rate)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = scaled + np.log1p(-np.exp(np.log(-constant) - scaled))
    found = np.where(losses == 0, np.log(1 / rate + constant), found)
    at_end = np.abs(losses - end) <= 1e-9 * np.maximum(np.abs(losses), abs(end))  # `math.isclose`
    found = np.where(at_end, -np.inf, found)
    if np.isnan(found).any():
        raise ValueError(f"a loss is below log(1 - {rate})")
    return found


def _gaussian(multiplier: float, sampling_rate: float, interval: float) -> Any:
    """What ``pld.from_gaussian_mechanism`` makes under add-or-remove-one."""

    def one_way(adjacency: Any) -> Any:
        loss = _GaussianLoss(multiplier, sampling_prob=sampling_rate, adjacency_type=adjacency)
        return pld._create_pld_pmf_from_monotone_privacy_loss(
            loss, value_discretization_interval=interval, use_connect_dots=True
        )

    return pld._pld_for_subsampled_mechanism(one_way, sampling_rate)


def gaussian_pld(mu: float, interval: float) -> Any:
    """All unsampled Gaussians at once: mu = sqrt(sum 1/multiplier^2)."""
    return _gaussian(1 / mu, 1.0, interval)


@lru_cache(maxsize=256)
def poisson_gaussian_pld(sampling_rate: float, multiplier: float, interval: float) -> Any:
    return _gaussian(multiplier, sampling_rate, interval)


def laplace_pld(multiplier: float, interval: float) -> Any:
    return pld.from_laplace_mechanism(multiplier, value_discretization_interval=interval)


def discrete_pld(first: Vector, second: Vector, interval: float) -> Any:
    """From one pair of probability vectors that dominates in both directions (its loss is the same both ways).

    Losses are interpolated linearly between the neighbouring grid points (Doroshenko et al. 2022): never too small, and
    the error is of second order, where rounding each loss up would add up to one interval per composition.
    """
    first, second = first[second > 0], second[second > 0]
    losses = np.log(first) - np.log(second)
    grid = np.unique(np.concatenate([np.floor(losses / interval), np.ceil(losses / interval)])).astype(int)
    curve = [np.maximum(first - np.exp(point * interval) * second, 0.0).sum() for point in grid]
    deltas = np.minimum.accumulate(np.clip(curve, 0.0, 1.0))
    deltas[-1] = 0.0
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(interval, grid, deltas))


# --- composition -------------------------------------------------------------------------------------------------

#: Mass outside the window that is computed; rounding of a level of a transform's sums.
_OUTSIDE, _LEVEL = 1e-16, 2.0**-48


def composed_epsilon(parts: Sequence[tuple[Any, int]], delta: float) -> float:
    """epsilon of loss distributions p_1, p_2, ..., each n_i times, composed by Fourier transforms whose rounding is
    accounted for.

    Transforms err by a share of the whole mass, which no small delta allows (the library's ``self_compose``: 9,000
    answers of epsilon 0.01 at delta 1e-14 came to 6.992, where the true delta is 3e-13). So the laws are tilted first,
    as in a large deviation's: q_i(l) = p_i(l) exp(t l - K_i), K_i = log sum p_i(l) exp(t l). Their convolution q has
    its mass where epsilon is, and with K = sum of n_i K_i

        delta(epsilon) = sum over l > epsilon of q(l) exp(K - t l) (1 - exp(epsilon - l)).

    Since exp(K - t l) <= exp(K - t epsilon) there, what is wrong with q costs at most exp(K - t epsilon) times
    - `_OUTSIDE`, the mass of q that Chernoff's bound leaves outside the window of w places that is computed; and
    - sqrt(w) (n + 1) e, n the number of compositions. Each number of a transform of length N errs by at most
      e = log2(2 N) `_LEVEL` sum |q_i| (N. Higham, Accuracy and Stability of Numerical Algorithms, chapter 24: some
      units of rounding, 2^-53, for every level of sums), so a product of n of them, none larger than 1, by n e; the
      inverse keeps the mean square of that and adds its own; a sum with weights of at most 1 over w places (Cauchy and
      Schwarz).
    Logarithms and exponentials err by some units of rounding of their arguments: a share of delta (``share``).
    """
    symmetric = all(law._symmetric for law, _ in parts)
    ways = ("_pmf_remove",) if symmetric else ("_pmf_remove", "_pmf_add")
    return max((_composed([(getattr(law, way), count) for law, count in parts], delta) for way in ways), default=0.0)


def composed_deltas(parts: Sequence[tuple[Any, int]], epsilons: Vector) -> Vector:
    """delta at each epsilon of laws composed as by `composed_epsilon`, not tilted: never too small, and of thousands of
    compositions some 1e-8 too large.
    """
    deltas = np.zeros(len(epsilons))
    for way in ("_pmf_remove", "_pmf_add"):
        chosen = [(getattr(law, way), count) for law, count in parts]
        _, step, first, total, low, found, wrong, share = _convolved(chosen, None)
        losses = step * (first + low + np.arange(len(found)))
        above = [-float(found @ np.expm1(np.minimum(epsilon - losses, 0.0))) for epsilon in epsilons]
        deltas = np.maximum(deltas, _at_infinity(chosen) + math.exp(total) * (share * np.array(above) + wrong))
    return np.minimum(deltas, 1.0)


def _composed(parts: Sequence[tuple[Any, int]], delta: float) -> float:
    """In one direction."""
    if not parts:
        return 0.0
    if any(law._infinity_mass >= delta for law, _ in parts) or (left := delta - _at_infinity(parts)) <= 0:
        return math.inf
    tilt, step, first, total, low, found, wrong, share = _convolved(parts, math.log(left))
    high = low + len(found) - 1
    distances = step * np.arange(len(found) + 1)
    near, lost = np.exp(-tilt * distances), -np.expm1(-distances)

    def log_scale(place: int) -> float:
        """log exp(K - t epsilon) of epsilon at this place."""
        return total - tilt * step * place

    def above(place: int) -> float:
        """log delta."""
        own = found[place - low :]
        return log_scale(place) + math.log(share * float(own @ (near * lost)[: len(own)]) + wrong)

    fails, holds = max(low, -first), high
    if fails >= holds or above(fails) <= math.log(left):
        return max(0.0, step * (max(low, -first) + first)) if above(min(fails, high)) <= math.log(left) else math.inf
    if above(holds) > math.log(left):
        return math.inf
    while holds - fails > 1:
        middle = (fails + holds) // 2
        fails, holds = (fails, middle) if above(middle) <= math.log(left) else (middle, holds)
    # between two places delta is a line in exp(epsilon)
    own = found[holds - low :]
    upper = share * float(own @ near[1 : len(own) + 1])
    lower = share * float(own @ (near * np.exp(-distances))[1 : len(own) + 1])
    more = upper + wrong - math.exp(math.log(left) - log_scale(fails))
    inside = min(step, math.log(more / lower)) if more > 0 and lower > 0 else step
    return step * (fails + first) + max(0.0, inside)


def _at_infinity(parts: Sequence[tuple[Any, int]]) -> float:
    """Mass of infinite loss."""
    return -math.expm1(math.fsum(count * math.log1p(-law._infinity_mass) for law, count in parts))


def _convolved(
    parts: Sequence[tuple[Any, int]], log_delta: float | None
) -> tuple[float, float, int, float, int, Vector, float, float]:
    """(t, not tilted without a delta; distance of places; the first place; K; the window's first place from there on;
    q there; what is wrong with q; the share).
    """
    dense, counts = [law.to_dense_pmf() for law, _ in parts], [count for _, count in parts]
    assert len({law._discretization for law in dense}) == 1, "places of all laws are equally far apart"
    step, first = dense[0]._discretization, sum(law._lower_loss * n for law, n in zip(dense, counts, strict=True))
    with np.errstate(divide="ignore"):
        laws = [np.log(np.maximum(law._probs, 0.0)) for law in dense]
    tilt = 0.0 if log_delta is None else _tilt(laws, counts, step, first, log_delta)
    known = [_log_sum(law, tilt * step) for law in laws]  # K_i, of losses counted from each law's own first
    tilted = [np.exp(law + tilt * step * np.arange(len(law)) - k) for law, k in zip(laws, known, strict=True)]
    total = math.fsum(n * k for k, n in zip(known, counts, strict=True))

    # the window of places, by Chernoff's bound
    places = [np.arange(len(law)) for law in laws]
    means = [float(law @ at) for law, at in zip(tilted, places, strict=True)]
    squares = [float(law @ (at - mean) ** 2) for law, at, mean in zip(tilted, places, means, strict=True)]
    width = math.sqrt(math.fsum(n * square for square, n in zip(squares, counts, strict=True))) + 1
    low, high = 0, sum(n * (len(law) - 1) for law, n in zip(laws, counts, strict=True))
    for power in (-8 / width, -3 / width, 3 / width, 8 / width):
        grown = math.fsum(
            n * (_log_sum(law, tilt * step + power) - k) for law, k, n in zip(laws, known, counts, strict=True)
        )
        bound = (grown - math.log(_OUTSIDE / 2)) / power
        low, high = (max(low, math.floor(bound)), high) if power < 0 else (low, min(high, math.ceil(bound)))
    size = fft.next_fast_len(max(high - low + 1, *map(len, laws)), real=True)
    product = np.ones(size // 2 + 1, complex)
    for law, n in zip(tilted, counts, strict=True):
        product *= fft.rfft(law, size) ** n
    found = np.maximum(np.roll(fft.irfft(product, size), -(low % size))[: high - low + 1], 0.0)

    many = sum(counts)
    wrong = _OUTSIDE + math.sqrt(len(found)) * (many + 1) * math.log2(2 * size) * _LEVEL
    share = 1 + many * 2.0**-50 * (2 + max(abs(k) + tilt * step * len(law) for k, law in zip(known, laws, strict=True)))
    return tilt, step, first, total, low, found, wrong, share


def _log_sum(law: Vector, power: float) -> float:
    """log sum exp(law_k + power k)."""
    terms = law + power * np.arange(len(law))
    most = float(terms.max())
    return most + math.log(float(np.exp(terms - most).sum()))


def _tilt(laws: Sequence[Vector], counts: Sequence[int], step: float, first: int, log_delta: float) -> float:
    """About the t of the least epsilon for which the largest (1 - exp(epsilon - l)) exp(K - t l) over l is delta (C.
    Canonne, G. Kamath, T. Steinke 2020, Proposition 12, of order 1 + t): any t is sound.
    """
    blocks = [max(1, len(law) // 2000) for law in laws]
    coarse = [
        np.logaddexp.reduceat(law, np.arange(0, len(law), block)) for law, block in zip(laws, blocks, strict=True)
    ]

    def epsilon(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        total = math.fsum(
            n * _log_sum(law, tilt * step * block) for law, block, n in zip(coarse, blocks, counts, strict=True)
        )
        return step * first + (total - log_delta - math.log1p(tilt)) / tilt - math.log1p(1 / tilt)

    low, high = math.log(1e-6), math.log(30 / step)
    for _ in range(40):
        third = (high - low) / 3
        low, high = (low, high - third) if epsilon(low + third) <= epsilon(high - third) else (low + third, high)
    return math.exp((low + high) / 2)
