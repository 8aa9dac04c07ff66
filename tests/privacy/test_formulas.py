"""Every constant of a proof, one by one: each bound against the same formula computed otherwise, term by term (loops,
40 digits, laws written out). A test here fails where one constant or one term of the formula changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise, product

import making
import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf
from pytest import approx
from scipy import special, stats

from clients.dpsgd import DPSGDClient
from fedpriv.client.contract import PublicFacts
from fedpriv.mechanisms import laws, whole_numbers
from fedpriv.mechanisms.bookkeeping import DRIFT
from fedpriv.mechanisms.clipped_sums import excess
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.unit_vectors import unit_mechanism
from fedpriv.mechanisms.whole_numbers import rounded_square as most_square
from fedpriv.privacy.calibration import round_multiplier
from fedpriv.privacy.composition import ORDERS, Budget, compose, pure_epsilon, renyi_curve, renyi_to_epsilon
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    SECURE_SUM,
    ZCDP,
    ApproximateDP,
    Binomial,
    DiscreteGaussianSum,
    Gaussian,
    GumbelTopK,
    PairedQuantisation,
    RandomisedResponse,
    Shuffled,
    SkellamSum,
    Threat,
)
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, shifted_epsilon
from fedpriv.privacy.integer_laws import (
    binomial_curvature,
    binomial_renyi,
    binomial_window,
    closeness,
    nearly_gaussian,
    rounded_square,
    skellam_curvature,
    skellam_nearly_gaussian,
    skellam_renyi,
    skellam_window,
    sum_rho,
)
from fedpriv.privacy.private_selection import NegativeBinomial, Poisson, Trials, selection_epsilon, with_mean
from fedpriv.privacy.sum_grid import BinomialGrid, SumGrid, delta_share

DELTA = 1e-5
mp.dps = 40


# --- private selection ---------------------------------------------------------------------------------------------


def mean_of(eta: float, gamma: float) -> float:
    """E[K] from the law itself: P(K = k) ~ (1 - gamma)^k Gamma(k + eta)/k!, k >= 1."""
    k = np.arange(1, round(80 / gamma))
    logs = k * math.log1p(-gamma) + special.gammaln(k + eta) - special.gammaln(k + 1)
    weights = np.exp(logs - logs.max())
    return float((k * weights).sum() / weights.sum())


@pytest.mark.parametrize(("eta", "gamma"), [(1.0, 0.1), (1.0, 0.003), (0.0, 0.02), (3.0, 0.1), (-0.5, 0.01)])
@pytest.mark.parametrize("rho", [1e-4, 0.02, 2.0, 50.0])
def test_selection_by_a_negative_binomial_is_theorem_2(eta: float, gamma: float, rho: float) -> None:
    """e(l) + (1 + eta) min over l^ of ((1 - 1/l^) e(l^) + log(1/gamma)/l^) + log(E[K])/(l - 1), for e(l) = rho l."""
    least = min((1 - 1 / other) * rho * other + math.log(1 / gamma) / other for other in (1.0, *ORDERS))
    mean = mean_of(eta, gamma)
    found = NegativeBinomial(eta, gamma).curve(rho * ORDERS)
    for order, value in zip(ORDERS, found, strict=True):
        assert value == approx(rho * order + (1 + eta) * least + math.log(mean) / (order - 1), rel=1e-7)


@pytest.mark.parametrize("mean", [0.05, 0.7, 3.0, 40.0, 2000.0])
@pytest.mark.parametrize("rho", [1e-3, 0.05, 1.0])
def test_selection_by_a_poisson_is_theorem_6(mean: float, rho: float) -> None:
    """e(l) + E[K] d^ + log(E[K])/(l - 1), and the output "nothing", whose probability is e^-E[K] in both worlds."""
    found = Poisson(mean).curve(rho * ORDERS)
    for place in range(0, len(ORDERS), 7):
        order = float(ORDERS[place])
        # d^ at e^ = log(1 + 1/(l - 1)), the best order: Canonne, Kamath and Steinke 2020, Proposition 12
        delta = min(
            1.0,
            *(
                mpmath.exp((a - 1) * (rho * a - math.log(1 + 1 / (order - 1)))) / a * (1 - 1 / mpf(a)) ** (a - 1)
                for a in map(float, ORDERS)
            ),
        )
        something = rho * order + mean * delta + mpmath.log(mean) / (order - 1)
        wanted = mpmath.log(mpmath.exp(-mean) + mpmath.exp((order - 1) * something)) / (order - 1)
        assert found[place] == approx(float(max(0, wanted)), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("law", ["poisson", "geometric", "logarithmic"])
@pytest.mark.parametrize("mean", [1.5, 30.0, 1000.0])
def test_selection_pays_for_the_delta_of_all_trials(law: str, mean: float) -> None:
    """(1 + e^epsilon) E[K] d is at most half of delta: there is an answer just below that d and none just above."""
    trials = with_mean(law, mean)
    pure = RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.5)
    epsilon = float(renyi_to_epsilon(trials.curve(renyi_curve(pure)), DELTA / 2))
    most = DELTA / 2 / (mean * (1 + math.exp(epsilon)))

    def found(delta: float) -> float:
        return selection_epsilon([ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.5, delta=delta)], DELTA, trials)

    assert found(0.999 * most) == approx(epsilon) and found(1.001 * most) == math.inf


@pytest.mark.parametrize("trials", [with_mean("geometric", 50.0), with_mean("poisson", 50.0)], ids=str)
def test_a_trial_that_tells_all_is_found_as_often_as_it_is_tried(trials: Trials) -> None:
    """A bit of epsilon 0.3 that with probability d shows its input, and then has the best score: the law of what is
    chosen, in both worlds. Its delta is about E[K] d, which a price of d alone would not cover.
    """
    share, low = 5e-10, 1 / (1 + math.exp(0.3))
    bit = np.array([low, 1 - low]) * (1 - share)
    worlds = [np.array([*bit, share, 0.0]), np.array([*bit[::-1], 0.0, share])]
    laws = [np.diff(trials.generating(np.minimum(np.cumsum([0.0, *world]), 1.0))) for world in worlds]
    run = [ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.3, delta=share)]
    epsilon = selection_epsilon(run, DELTA, trials)
    exact = max(np.maximum(a - math.exp(epsilon) * b, 0.0).sum() for a, b in (laws, laws[::-1]))
    assert 0.8 * trials.mean * share < exact <= DELTA


# --- sums of discrete Gaussian noise -------------------------------------------------------------------------------


def off(sigma: float, k: int) -> mpf:
    """e_k = 2 sum_(j >= 1) exp(-2 pi^2 s^2 j^2 k/(k + 1))."""
    return 2 * mpmath.fsum(mpmath.exp(-2 * mp.pi**2 * mpf(sigma) ** 2 * j**2 * k / (k + 1)) for j in range(1, 60))


def tau_of(sigma: float, noises: int) -> mpf:
    """T = 2 sum_(k=1)^(u-1) ln((1 + e_k)/(1 - e_k))."""
    return 2 * mpmath.fsum(mpmath.log((1 + off(sigma, k)) / (1 - off(sigma, k))) for k in range(1, noises))


@pytest.mark.parametrize("sigma", [0.4, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("noises", [1, 2, 3, 40])
@pytest.mark.parametrize(("dimension", "l2"), [(1, 1.0), (1000, 0.5), (1000, 3.0), (7, 40.0), (10**6, 1.0)])
def test_the_sum_of_discrete_gaussians_is_the_proofs(sigma: float, noises: int, dimension: int, l2: float) -> None:
    """(1/2) (|v|^2/(u s^2) + 2 T |v|_1/(sqrt(u) s) + T^2 d), |v|_1 at most sqrt(d) |v| and |v|^2."""
    tau, deviation = tau_of(sigma, noises), mpmath.sqrt(noises) * sigma
    l1 = min(math.sqrt(dimension) * l2, l2**2)
    terms = (l2 / deviation) ** 2, 2 * tau * l1 / deviation, tau**2 * dimension
    assert closeness(sigma, noises) == approx(float(tau), rel=1e-9)
    assert sum_rho(sigma, noises, dimension, l2) == approx(float(mpmath.fsum(terms) / 2), rel=1e-9)


@pytest.mark.parametrize("sigma", [1.0, 2.5, 40.0])
@pytest.mark.parametrize("noises", [1, 3, 40])
@pytest.mark.parametrize(("dimension", "l2"), [(1, 1.0), (1000, 3.0), (7, 40.0), (10**6, 1000.0)])
def test_a_sums_gaussian_is_the_proofs(sigma: float, noises: int, dimension: int, l2: float) -> None:
    """V = m^2 (1 + t/s'^2) says which t was taken; the shift is m^2 t/(2 s'^2) + k (T + ln((1 + e)/(1 - e)))."""
    multiplier, shift = nearly_gaussian(sigma, noises, dimension, l2) or (0.0, 0.0)
    square = mpf(noises) * mpf(sigma) ** 2
    m2 = mpf(l2) ** 2 / square
    t = (1 / (mpf(multiplier) ** 2 * m2) - 1) * square
    inside = 2 * mp.pi**2 * t * square / (square + t)
    e = 2 * mpmath.fsum(mpmath.exp(-inside * j**2) for j in range(1, 60))
    each = tau_of(sigma, noises) + mpmath.log((1 + e) / (1 - e))
    wanted = m2 * t / (2 * square) + min(dimension, l2**2) * each
    # t is read off a number close to 1: it has as many digits fewer
    assert shift == approx(float(wanted), rel=1e-14 * float(square) ** 2 + 1e-9) and 0.1 < t < 3


def test_noise_of_less_than_a_step_has_no_gaussian() -> None:
    for sigma, noises, l2 in ((0.2, 1, 1.0), (0.25, 2, 1.0), (0.0, 3, 1.0), (1.0, 3, 0.0), (1e-200, 1, 1.0)):
        assert nearly_gaussian(sigma, noises, 5, l2) is None
    assert nearly_gaussian(1.0, 1, 5, math.inf) is None and nearly_gaussian(1e200, 1, 5, 1.0) is None


def test_a_shifted_gaussian_is_its_curve_moved_and_raised() -> None:
    """delta(epsilon) = exp(shift) delta_mu(epsilon - shift)."""
    for mu, shift, delta in ((0.3, 0.01, 1e-5), (2.0, 0.5, 1e-3)):
        found = mpf(shifted_epsilon(mu, shift, delta)) - shift
        curve = mpmath.ncdf(mpf(mu) / 2 - found / mu) - mpmath.exp(found) * mpmath.ncdf(-mpf(mu) / 2 - found / mu)
        assert float(mpmath.exp(shift) * curve) == approx(delta, rel=1e-7)
    assert shifted_epsilon(1.3, 0.0, 1e-5) == gaussian_epsilon(1.3, 1e-5)
    assert shifted_epsilon(1.0, math.inf, 1e-5) == math.inf


def test_the_terms_of_a_sum_that_are_left_out_are_counted() -> None:
    """The rest beyond j = 8 is a geometric one, and noise too small for the bound has none."""
    for sigma in (0.3, 0.31, 0.35):
        assert closeness(sigma, 5) >= float(tau_of(sigma, 5)) * (1 - 1e-14)
    for sigma, noises in ((0.3, 2), (0.38, 2), (0.25, 2), (0.3, 500)):
        known = max(off(sigma, k) for k in range(1, noises)) < 0.5
        assert math.isfinite(closeness(sigma, noises)) == known
    assert closeness(0.3, 1) == closeness(0.0, 1) == sum_rho(0.3, 4, 5, 0.0) * 0 == 0
    assert closeness(0.0, 2) == math.inf and sum_rho(0.0, 3, 5, 0.0) == 0 and sum_rho(0.0, 3, 5, 1.0) == math.inf


# --- Skellam -------------------------------------------------------------------------------------------------------


def chernoff(variance: float, reach: float) -> mpf:
    """max over t >= 0 of t R - m (cosh t - 1), searched for."""
    best = mpmath.findroot(lambda t: reach - variance * mpmath.sinh(t), math.asinh(reach / variance))
    return best * reach - variance * (mpmath.cosh(best) - 1)


CASES = [(3.0, 1, 0.7, 1e-3), (4.5, 100, 2.5, 1e-6), (50.0, 10**4, 7.0, 1e-9), (1e4, 10**6, 299.5, 1e-12)]


@pytest.mark.parametrize(("variance", "dimension", "l2", "delta"), CASES)
def test_skellam_is_charged_as_in_the_proof(variance: float, dimension: int, l2: float, delta: float) -> None:
    """orders L cosh(D/2)/2 |v|^2 + d tau/(orders - 1), L and D of the law, tau of the tails that replace it."""
    m, orders = mpf(variance), np.array([1.001, 1.5, 4.0, 64.0])
    window = skellam_window(variance, dimension, delta)
    assert 2 * dimension * mpmath.exp(-chernoff(variance, window)) <= delta * (1 + 1e-9)
    assert 2 * dimension * mpmath.exp(-chernoff(variance, window - 2)) > delta
    reach = window + math.ceil(l2 * (1 + 1e-9))  # a square root may have been rounded down
    second = -mpmath.log(1 - 1 / mpmath.sqrt(m**2 - 1))
    curvature = second * mpmath.cosh(mpmath.asinh((reach + 1) / m) / 2)
    slope = 1 / (2 * (reach + 1) / m + mpmath.exp(-mpmath.asinh((reach + 2) / m)))
    tau = 2 * mpmath.exp(-chernoff(variance, reach + 1)) / (1 - slope)
    assert skellam_curvature(variance, reach) == approx(float(curvature), rel=1e-9)
    found = skellam_renyi(variance, dimension, l2, delta, orders)
    for order, value in zip(orders, found, strict=True):
        wanted = order * curvature / 2 * mpf(l2) ** 2 + dimension * tau / (order - 1)
        assert value == approx(float(wanted), rel=1e-9)


@pytest.mark.parametrize(("variance", "delta"), [(3.0, 0.5), (5.0, 0.1), (30.0, 0.01)])
def test_the_mass_of_skellams_replaced_tails_is_charged(variance: float, delta: float) -> None:
    """Beyond reach + 1 the proof puts geometric tails in the place of the law: their mass, added up, is below tau."""
    reach = skellam_window(variance, 1, delta)
    law = [float(mpmath.exp(-variance) * mpmath.besseli(x, variance)) for x in range(reach + 3)]
    ratio = law[reach + 2] / law[reach + 1]
    tails = 2 * law[reach + 1] / (1 - ratio)
    order = np.array([2.0])
    charged = float(skellam_renyi(variance, 1, 0.0, delta, order)[0])
    assert tails <= charged * (1 + 1e-12) and charged < 20 * tails


def test_skellam_has_a_bound_from_its_least_variance_on() -> None:
    assert np.isinf(skellam_renyi(2.999, 1, 1.0, 1e-6, np.array([2.0]))).all()
    assert np.isfinite(skellam_renyi(3.0, 1, 1.0, 1e-6, np.array([2.0]))).all()
    assert np.isinf(skellam_renyi(9.0, 1, math.inf, 1e-6, np.array([2.0]))).all()


# --- filters and privacy loss distributions ------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1.5, 4.0, 16.0])
def test_a_renyi_filter_keeps_half_of_delta_for_pairs(order: float) -> None:
    """At one order a, a rho <= epsilon - log(1 - 1/a) + log(a delta/2)/(a - 1): pairs may use up the other half, and
    only they. (Prop. 12 of Canonne, Kamath and Steinke 2020, solved for the divergence.)
    """
    limit = 5.0 - math.log(1 - 1 / order) + math.log(order * DELTA / 2) / (order - 1)
    budget = Budget(5.0, DELTA, rule="rdp", order=order)
    if limit <= 0:
        limit = -1.0
    for share, admitted in ((0.999, limit > 0), (1.001, False)):
        rho = share * abs(limit) / order
        assert budget.admits([], [ZCDP(threat=CLIENT_TO_SERVER, rho=rho)]) == admitted
    for delta, admitted in ((0.49 * DELTA, limit > 0), (0.51 * DELTA, False)):
        pair = ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.0, delta=delta)
        assert budget.admits([], [pair]) == admitted
        assert not budget.admits([pair], [pair])


def test_a_filter_that_no_pair_can_open_has_all_of_delta() -> None:
    """order="opening": the account's own events decide, and pairs that come later find no half left."""
    order = float(ORDERS[np.argmax((5.0 - np.log1p(-1 / ORDERS) + np.log(DELTA * ORDERS) / (ORDERS - 1)) / ORDERS)])
    limit = 5.0 - math.log(1 - 1 / order) + math.log(order * DELTA) / (order - 1)
    budget, half = Budget(5.0, DELTA), limit - math.log(2) / (order - 1)
    spent = [ZCDP(threat=CLIENT_TO_SERVER, rho=0.999 * limit / order)]
    pair = ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.0, delta=0.4 * DELTA)
    assert budget.admits([], spent) and not budget.admits(spent, [pair])
    assert not budget.admits([], [ZCDP(threat=CLIENT_TO_SERVER, rho=1.001 * limit / order)])
    assert budget.admits([ZCDP(threat=CLIENT_TO_SERVER, rho=0.999 * half / order)], [pair])


def pairs_epsilon(epsilon: float, share: float, count: int, delta: float) -> float:
    """The least epsilon of ``count`` (epsilon, share)-pairs at delta: Kairouz, Oh and Viswanath 2015, Theorem 3.3.

    delta' = 1 - (1 - share)^k (1 - d(epsilon')), d of k randomised responses.
    """
    answers = stats.binom.pmf(np.arange(count + 1), count, 1 / (1 + math.exp(-epsilon)))
    loss = (2 * np.arange(count + 1) - count) * epsilon

    def exceeds(at: float) -> bool:
        pure = np.maximum(0.0, answers * (1 - np.exp(np.minimum(0.0, at - loss))))[loss > at].sum()
        return float(1 - (1 - share) ** count * (1 - pure)) > delta

    low, high = 0.0, count * epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


@pytest.mark.parametrize("share", [1e-8, 1.5e-7, 1.9e-7])
def test_a_loss_distribution_has_what_is_left_of_delta(share: float) -> None:
    """Fifty pairs use up a part of delta: what remains is for their composition."""
    found = compose([ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.3, delta=share, count=50)], DELTA)
    exact = pairs_epsilon(0.3, share, 50, DELTA)
    assert found.accountant == "pld" and exact <= found.epsilon <= 1.01 * exact + 1e-3


def test_the_first_bounds_have_what_is_left_of_delta_too() -> None:
    share, rho = 4e-6, 0.01
    pair = ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.0, delta=share)
    found = compose([pair, pair, ZCDP(threat=CLIENT_TO_SERVER, rho=rho)], DELTA)
    left = DELTA - 2 * share
    wanted = min(rho * a + math.log(1 - 1 / a) - math.log(left * a) / (a - 1) for a in map(float, ORDERS))
    assert found.epsilon == approx(wanted) and found.accountant == "rdp"


@pytest.mark.parametrize("releases", [1, 2, 30])
def test_an_unsampled_gaussian_in_a_mixture_is_one_mu(releases: int) -> None:
    """Gaussians beside a bit: the exact curve of both, by the bit's two outcomes."""
    from fedpriv.privacy.composition import make_history, refine

    multiplier, bit = 3.0, 0.4
    mu, high = math.sqrt(releases) / multiplier, 1 / (1 + math.exp(-bit))

    def gaussian(epsilon: float) -> float:
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu))

    def exact(epsilon: float) -> float:
        return high * gaussian(epsilon - bit) + (1 - high) * gaussian(epsilon + bit)

    events = [
        Gaussian(threat=CLIENT_TO_SERVER, multiplier=multiplier, count=releases),
        RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=bit),
    ]
    bound = compose(events, DELTA)
    assert refine(make_history(events), bound, DELTA).epsilon == bound.epsilon
    assert exact(bound.epsilon) <= DELTA < exact(bound.epsilon - 2e-3)


def every_order(formula: Callable[[float], float]) -> list[float]:
    return [formula(float(order)) for order in ORDERS]


def test_the_conversion_of_renyi_curves_is_proposition_12() -> None:
    for rho in (1e-5, 0.03, 4.0):
        for delta in (1e-9, 1e-5, 0.01):
            wanted = min(every_order(lambda a: rho * a + math.log(1 - 1 / a) - math.log(delta * a) / (a - 1)))  # noqa: B023
            assert float(renyi_to_epsilon(rho * ORDERS, delta)) == approx(max(0.0, wanted), rel=1e-12)


@pytest.mark.parametrize("variance", [3.0, 60.0, 1e4, 1e8])
@pytest.mark.parametrize(("dimension", "l2", "delta"), [(1, 1.0, 1e-9), (50, 3.0, 1e-7), (10**5, 70.0, 1e-9)])
def test_skellams_gaussian_is_the_proofs(variance: float, dimension: int, l2: float, delta: float) -> None:
    """G = L (exp(L/2) + D^2/3), V = G |v|^2, shift = (G - K) |v|^2/2 + k ln(1 + tau)."""
    multiplier, shift = skellam_nearly_gaussian(variance, dimension, l2, delta) or (0.0, 0.0)
    m, r = mpf(variance), skellam_window(variance, dimension, delta) + math.ceil(l2 * (1 + 1e-9))
    most, steepest = -mpmath.log(1 - 1 / mpmath.sqrt(m**2 - 1)), mpmath.asinh((r + 1) / m)
    gaussian = most * (mpmath.exp(most / 2) + steepest**2 / 3)
    assert multiplier == approx(float(1 / (mpmath.sqrt(gaussian) * l2)), rel=1e-9)
    slope = 1 / (2 * (r + 1) / m + mpmath.exp(-mpmath.asinh((r + 2) / m)))
    tau = 2 * mpmath.exp(-chernoff(variance, r + 1)) / (1 - slope)
    least = ((r + 1) ** 2 + m**2 + 3) ** mpf(-0.5)
    wanted = (gaussian - least) * mpf(l2) ** 2 / 2 + min(dimension, l2**2) * mpmath.log(1 + tau)
    assert shift == approx(float(wanted), rel=1e-6)
    assert skellam_nearly_gaussian(2.9, 5, 1.0, 1e-9) is None and skellam_nearly_gaussian(9.0, 5, 0.0, 1e-9) is None


# --- ---------------------------------------------------------------------------------------------------------------
# As test_formulas.py, for the laws of single releases: binomial noise, cpSGD's theorem, shuffling, pairs of bits,
# top-k, and the grid of whole-number sums.


SHUFFLER = Threat("client", "replace-one", "trusted-server")


# --- binomial noise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trials", "dimension", "l2", "linf", "distance", "delta"),
    [
        (200, 1, 1.0, 1.0, 0.4, 0.5),
        (4000, 10, 3.0, 2.0, 0.9, 1e-3),
        (4000, 10, 3.0, 2.0, math.inf, 1e-3),
        (10**6, 1000, 40.0, 6.0, 25.0, 1e-9),
        (10**6, 1000, 90.0, 6.0, 12.0, 1e-9),
        (10**5, 7, 0.3, 0.3, 0.3, 0.4),
    ],
)
def test_binomial_noise_is_charged_as_in_the_proof(
    trials: int, dimension: int, l2: float, linf: float, distance: float, delta: float
) -> None:
    """a L cosh(D/2)/2 S + d tau/(a - 1), L, D, tau at r = R + max |v|, S the smaller of |v|^2 and its average over the
    rounding, times (e^A - 1)/A.
    """
    m, half = mpf(trials), mpf(trials) / 2
    window = mpmath.sqrt(m / 2 * mpmath.log(2 * mpf(dimension) / delta))
    assert 2 * dimension * mpmath.exp(-2 * mpf(binomial_window(trials, dimension, delta)) ** 2 / m) == approx(delta)
    r = window + mpf(linf) * (1 + mpf(10) ** -9)
    second = mpmath.log(1 + (m + 1) / (m**2 / 4 - r**2))
    steepest = mpmath.log((half + r + 1) / (half - r))
    curvature = second * mpmath.cosh(steepest / 2)
    ratio = (half - r + 1) / (half + r)  # of neighbours, one step before r
    tau = 2 * mpmath.exp(-2 * r**2 / m) / (1 - ratio)
    orders = np.array([1.001, 1.7, 4.0, 32.0])
    found = binomial_renyi(trials, dimension, l2, linf, distance, delta, orders)
    for order, value in zip(orders, found, strict=True):
        scale = order * (order - 1) * curvature / 2
        largest = scale * max(2 * linf * (1 + mpf(10) ** -9) - 1, mpf(10) ** -9)
        if math.isinf(distance):
            average = mp.inf
        elif 2 * distance >= math.sqrt(dimension):
            average = mpf(distance) ** 2 + mpf(dimension) / 4
        else:
            average = mpf(distance) * mpmath.sqrt(dimension)
        square = min(mpf(l2) ** 2, mpmath.expm1(largest) / largest * average)
        assert value == approx(float(order * curvature / 2 * square + dimension * tau / (order - 1)), rel=1e-8)


@pytest.mark.parametrize(("trials", "delta"), [(60, 0.5), (400, 0.1), (5000, 0.01)])
def test_the_mass_of_binomial_tails_is_charged(trials: int, delta: float) -> None:
    """Beyond r the proof puts geometric tails in the place of the law: with its own mass, they are below tau."""
    law = stats.binom(trials, 0.5)
    reach = math.ceil(binomial_window(trials, 1, delta))
    at = trials // 2 + reach
    ratio = law.pmf(at + 1) / law.pmf(at)
    tails = 2 * law.pmf(at) / (1 - ratio)
    window = binomial_window(trials, 1, delta)
    charged = float(binomial_renyi(trials, 1, 0.0, reach - window, math.inf, delta, np.array([2.0]))[0])
    assert tails <= charged * (1 + 1e-6)


def test_binomial_noise_has_a_bound_only_within_its_support() -> None:
    assert binomial_curvature(100, 49.0) == binomial_curvature(100, 49.5) == math.inf
    assert math.isfinite(binomial_curvature(100, 48.99))
    for reach in (0.0, 10.0, 40.0):
        law = [stats.binom.logpmf(50 + x, 100, 0.5) for x in range(-50, 51)]
        x = int(reach) + 50
        second, step = 2 * law[x] - law[x - 1] - law[x + 1], law[x] - law[x + 1]
        assert binomial_curvature(100, reach) == approx(second * math.cosh(step / 2), rel=1e-9)
    for l2, linf in ((math.inf, 1.0), (1.0, math.inf)):
        assert np.isinf(binomial_renyi(100, 1, l2, linf, 1.0, 0.1, np.array([2.0]))).all()


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_the_average_square_after_rounding_is_bounded(dimension: int) -> None:
    """Of all vectors at that distance: n + 1 with probability f, else n, in each coordinate."""
    grid = np.linspace(0, 2.5, 26)
    for point in product(grid, repeat=dimension):
        t = np.array(point)
        n, f = np.floor(t), t - np.floor(t)
        average = float((n**2 + f * (2 * n + 1)).sum())
        distance = float(np.linalg.norm(t))
        bound = rounded_square(distance, dimension)
        assert average <= bound * (1 + 1e-9) + 1e-12
    root = math.sqrt(dimension)
    for distance in (0.1 * root, 0.49 * root, 0.5 * root, 0.51 * root, 4 * root):
        lower, upper = distance * root, distance**2 + dimension / 4
        assert rounded_square(distance, dimension) == approx(lower if 2 * distance < root else upper)


@pytest.mark.parametrize(("trials", "dimension", "delta"), [(10**6, 50, 1e-5), (10**5, 3, 1e-7)])
def test_theorem_1_of_cpsgd_term_by_term(trials: int, dimension: int, delta: float) -> None:
    """Agarwal et al. 2018, Theorem 1 at p = 1/2: b_p = 1/3, c_p = 7 sqrt(2)/4, d_p = 2/3."""
    step, l1, l2, linf = 0.01, 0.5, 0.13, 0.07
    variance, log = trials / 4, math.log
    first = l2 * math.sqrt(2 * log(1.25 / delta)) / (step * math.sqrt(variance))
    second = (l2 * 7 * math.sqrt(2) / 4 * math.sqrt(log(10 / delta)) + l1 / 3) / (step * variance * (1 - delta / 10))
    third = (2 / 3 * linf * log(1.25 / delta) + linf * 2 / 3 * log(20 * dimension / delta) * log(10 / delta)) / (
        step * variance
    )
    found = laws.binomial_epsilon(step, trials, dimension, l1, l2, linf, delta)
    assert found == approx(first + second + third, rel=1e-12)


def test_theorem_1_holds_from_its_least_variance_on() -> None:
    for dimension, delta, ratio in ((50, 1e-5, 1.0), (1000, 1e-9, 1.0), (2, 0.01, 5000.0)):
        least = max(23 * math.log(10 * dimension / delta), 2 * ratio)
        for trials, known in ((math.ceil(4 * least), True), (math.floor(4 * least) - 1, False)):
            found = laws.binomial_epsilon(0.5, trials, dimension, 1.0, 1.0, 0.5 * ratio, delta)
            assert math.isfinite(found) == known
    assert laws.binomial_epsilon(0.0, 10**9, 1, 1.0, 1.0, 1.0, 1e-5) == math.inf


def test_sensitivities_of_rounded_vectors() -> None:
    """2 C and one step in each coordinate; L1 by Cauchy and Schwarz; Linf the whole range of levels."""
    l1, l2, linf = laws.binomial_sensitivities(0.7, 0.01, 9, 400)
    assert (l1, l2, linf) == (approx(20 * 1.6), approx(1.4 + 0.2), approx(0.08))


# --- shuffling, bits, top-k ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-5, 1e-9])
@pytest.mark.parametrize("users", [400, 10_000])
def test_shuffling_is_theorem_3_1_within_its_condition(delta: float, users: int) -> None:
    most = math.log(users / (16 * math.log(2 / delta)))
    assert most > 0 or laws.shuffled_epsilon(1e-3, users, delta) is None
    for share in (0.3, 0.999):
        epsilon = share * max(most, 0.01)
        found = laws.shuffled_epsilon(epsilon, users, delta)
        if most <= 0:
            assert found is None
            continue
        root = 8 * math.sqrt(math.exp(epsilon) * math.log(4 / delta) / users)
        bound = math.log(1 + math.tanh(epsilon / 2) * (root + 8 * math.exp(epsilon) / users))
        assert found == approx(min(epsilon, bound), rel=1e-12)
    if most > 0:
        assert laws.shuffled_epsilon(1.001 * most, users, delta) is None


def test_every_shuffled_coordinate_uses_up_its_delta() -> None:
    event = Shuffled(threat=SHUFFLER, epsilon=0.5, users=10_000, delta=1e-9, dimension=7)
    assert event.delta_share == approx(7e-9)
    each = laws.shuffled_epsilon(0.5, 10_000, 1e-9)
    assert each is not None and pure_epsilon(event) == approx(7 * each)
    few = Shuffled(threat=SHUFFLER, epsilon=0.5, users=10, delta=1e-9, dimension=7)
    assert few.delta_share == 0 and pure_epsilon(few) == approx(3.5)


@pytest.mark.parametrize(("epsilon", "weight"), [(0.3, 0.1), (1.0, 0.5), (3.0, 0.9)])
def test_the_symmetric_loss_of_a_pair_has_the_curve_of_the_proof(epsilon: float, weight: float) -> None:
    """max(0, high - g low, c - g b) for g >= 1, and both laws are laws."""
    low = 1 / (1 + math.exp(epsilon))
    high = 1 - low
    b, c = weight * high * low, (1 - weight) * (high - low) + weight * high**2
    first, second = laws.pair_symmetric_loss(epsilon, weight)
    assert first.sum() == approx(1) and second.sum() == approx(1) and (first > 0).all()
    for gamma in np.geomspace(1, 2 * c / b, 60):
        exact = np.maximum(first - gamma * second, 0).sum()
        assert exact == approx(max(0, high - gamma * low, c - gamma * b), abs=1e-12)


def test_a_skellam_tail_is_chernoffs() -> None:
    for reach, variance in product((0.5, 7.0, 300.0), (0.4, 30.0, 1e5)):
        t = mpmath.asinh(mpf(reach) / variance)
        wanted = t * reach - variance * (mpmath.cosh(t) - 1)
        assert laws.skellam_exponent(reach, variance) == approx(float(wanted), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 7.0])
def test_renyi_curves_of_pure_mechanisms(epsilon: float) -> None:
    """A bit's divergence written out; top-k: k picks of range epsilon, epsilon^2/8-zCDP each and epsilon-private."""
    high = 1 / (1 + math.exp(-epsilon))
    for order, bit, picked in zip(
        ORDERS,
        renyi_curve(RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=epsilon, dimension=5)),
        renyi_curve(GumbelTopK(threat=CLIENT_TO_SERVER, k=3, epsilon=epsilon)),
        strict=True,
    ):
        a, p = mpf(float(order)), mpf(high)
        moment = p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)
        assert bit == approx(float(5 * mpmath.log(moment) / (a - 1)), rel=1e-6)
        assert picked == approx(min(3 * epsilon**2 / 8 * order, 3 * epsilon))
    assert pure_epsilon(GumbelTopK(threat=CLIENT_TO_SERVER, k=3, epsilon=epsilon)) == approx(3 * epsilon)
    assert (laws.pure_renyi(601.0, ORDERS) == 601.0).all()


def test_a_binomial_pays_half_of_its_delta_twice_where_it_is_a_pair() -> None:
    event = Binomial(
        threat=CLIENT_TO_SERVER, step=0.01, trials=10**7, dimension=20, l1=1.0, l2=0.2, linf=0.1, delta=1e-6
    )
    curve = binomial_renyi(10**7, 20, 20.0, 10.0, math.inf, 5e-7, ORDERS)
    assert pure_epsilon(event) == approx(float(renyi_to_epsilon(curve, 5e-7)))
    assert event.delta_share == 1e-6
    assert renyi_curve(event) == approx(
        np.minimum.accumulate(binomial_renyi(10**7, 20, 20.0, 10.0, math.inf, 1e-6, ORDERS)[::-1])[::-1]
    )


def test_the_weight_of_independent_bits() -> None:
    """lambda: that at least one of two uses a uniform of its own."""
    event = PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=0.3)
    assert event.independent_weight == approx(1 - 0.7 * 0.7)


# --- sums ------------------------------------------------------------------------------------------------------------


def test_noises_add_up_by_their_squares() -> None:
    one = Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.7)
    assert one.in_sum(9).multiplier == approx(2.1) and one.in_sum(9).threat == SECURE_SUM
    gaussian = DiscreteGaussianSum(threat=SECURE_SUM, sigma=2.0, noises=25, dimension=3, l2=4.0)
    skellam = SkellamSum(threat=SECURE_SUM, variance=4.0, noises=25, dimension=3, l2=4.0, delta=1e-9)
    assert gaussian.multiplier == approx(2.5) and skellam.multiplier == approx(2.5)
    assert compose([one, one], DELTA).epsilon == approx(
        compose([Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.7 / math.sqrt(2))], DELTA).epsilon
    )


@pytest.mark.parametrize("law", ["gaussian", "skellam"])
@pytest.mark.parametrize(("clients", "bits"), [(100, 18), (300, 9), (20, 7)])
def test_the_events_of_a_grid_are_those_of_its_numbers(law: str, clients: int, bits: int) -> None:
    """The vector moves by twice the longest rounded one, in steps; the number beside it by its range."""
    grid = SumGrid(law, 650, clients, bits, 0.5, (3.0,))  # type: ignore[arg-type]
    variance = clients**2 / grid.padded + clients * 0.5**2 + clients * grid.step**2 / 4
    assert 2.0 ** (bits - 1) * grid.step == approx(5 * math.sqrt(variance))
    assert grid.numbers == grid.padded + 1 == 1025
    g, d = 1 / grid.step, grid.padded
    longest = min((g + math.sqrt(d)) ** 2, g * g + d / 4 + math.sqrt(2 * 0.5) * (g + math.sqrt(d) / 2))
    assert grid.most_square == math.floor(longest) == most_square(g, d)
    event = grid.event(SECURE_SUM, 11, 1e-9)
    assert (event.noises, event.dimension) == (11, d) and event.l2 == approx(2 * math.sqrt(grid.most_square))
    assert event.multiplier == approx(math.sqrt(11) * 0.5 / grid.step / event.l2)
    steps = int(min(2.0 ** (bits - 1) / (clients / 2 + 15 * math.sqrt(clients)), 2.0**16 / 3)) // 2 * 2
    if steps >= 2:
        beside = grid.statistic_event(SECURE_SUM, 3.0, 11, 1e-9)
        assert beside.l2 == steps and beside.dimension == 1
        assert beside.multiplier == approx(math.sqrt(11) * 3.0)
        alone = grid.statistic_event(CLIENT_TO_SERVER, 3.0, 11, 1e-9)
        assert alone.noises == 1 and alone.multiplier == approx(3.0)


@pytest.mark.parametrize(("dimension", "levels", "clients"), [(100, 16, 1), (650, 2, 20)])
def test_the_event_of_a_binomial_grid_is_the_grids(dimension: int, levels: int, clients: int) -> None:
    """Neighbours are 2 C apart before rounding and at most a step in each coordinate more after it."""
    grid = BinomialGrid(dimension, 0.7, levels, 4000)
    d = 2 ** math.ceil(math.log2(dimension))
    bound = 0.7 * min(1.0, math.sqrt(2 * math.log(2 * d / 0.01) / d))
    step = 2 * bound / (levels - 1)
    event = grid.event(SECURE_SUM, 1e-9, clients)
    l2 = 1.4 * (1 + 1e-9) + step * math.sqrt(d)
    assert (event.step, event.trials, event.dimension) == (approx(step), 4000 * clients, d)
    assert event.distance == 1.4 * (1 + 1e-9) and event.distance > 1.4
    assert (event.l1, event.l2, event.linf) == (approx(math.sqrt(d) * l2), approx(l2), approx(2 * bound))
    assert grid.std == approx(step * math.sqrt(4000) / 2) and grid.largest == levels - 1 + 4000
    assert delta_share(1e-5, 20) == approx(0.01 * 1e-5 / 20)
    assert 2 ** (grid.sum_bits(clients) - 1) <= clients * (grid.largest + 1) < 2 ** grid.sum_bits(clients)


@pytest.mark.parametrize(("epsilon", "bits"), [(0.5, 1), (2.0, 4), (9.0, 16)])
def test_the_law_of_a_symbol_is_randomised_response_among_all(epsilon: float, bits: int) -> None:
    """l = (e^eps - 1)/(e^eps + 2^b - 1); the true symbol has l + (1 - l)/2^b, e^eps times any other."""
    law = unit_mechanism("sqkr", 32, epsilon, projections=bits, bits=bits, std=0.5).law
    kept = (mpmath.exp(epsilon) - 1) / (mpmath.exp(epsilon) + 2**bits - 1)
    true, other = kept + (1 - kept) / 2**bits, (1 - kept) / 2**bits
    assert law is not None and law.inside == approx(float(true), rel=1e-12)
    assert true / other == approx(mpmath.exp(epsilon), rel=1e-12)
    assert law.epsilon == epsilon + 2.0**-48 and law.delta == 0


@pytest.mark.parametrize(("epsilon", "delta", "rho"), [(0.5, 1e-5, 0.5), (4.0, 1e-6, 2.0), (20.0, 1e-3, 3.7)])
def test_a_rounds_multiplier_is_what_its_gaussians_need(epsilon: float, delta: float, rho: float) -> None:
    """Gaussians of rho/z^2 in all are one of mu = sqrt(2 rho)/z, whose exact delta at epsilon is the one asked for."""
    z = round_multiplier(epsilon, delta, rho)
    mu = math.sqrt(2 * rho) / z
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta * (1 - 1e-6) <= exact <= delta * (1 + 1e-9)
    other = round_multiplier(epsilon, delta, rho, 0.4)
    total = (rho + 0.4) / other**2
    best = min(total * a + math.log(1 - 1 / a) - math.log(delta * a) / (a - 1) for a in map(float, ORDERS))
    assert 0.999 * epsilon <= best <= epsilon


@pytest.mark.parametrize("examples", [10, 65_536, 65_537, 80_000])
@pytest.mark.parametrize("sigma", [0.5, 255.0, 257.0, 5000.0])
def test_a_step_is_worth_its_noise_less_what_rounding_moves(examples: int, sigma: float) -> None:
    """sigma over 1 and what exceeds the share held back: 2^-12 of the bound pays for 2^-20 sigma of the noise's grid,
    up to 65,536 examples' rounding is paid for too.
    """
    facts = PublicFacts(examples, examples, 8, num_rounds=2, clients_per_round=2)
    client = making.client(DPSGDClient, noise_multiplier=1.0, clip_norm=1.0, facts=facts)
    grid = max(0.0, sigma / 2**20 - 1 / 2**12)
    rounding = 2 * max(0, examples - 2**16) * (DRIFT + 2**-33)
    assert client.multiplier(sigma) == approx(sigma / (1 + grid + rounding), rel=1e-14)
    assert excess(examples) == approx(rounding)


@pytest.mark.parametrize(("epsilon", "share"), [(0.5, 0.05), (2.0, 0.4)])
def test_the_law_against_members_is_that_of_a_uniform_they_know(epsilon: float, share: float) -> None:
    """The bit is u < p for the shared u, or with probability mu a coin of p; u below, between and above p's ends."""
    low = 1 / (1 + math.exp(epsilon))
    ends = (0.0, low, 1 - low, 1.0)
    for p, found in zip((1 - low, low), laws.pair_against_members(epsilon, share), strict=True):
        ones = [(b - a) * (share * p + (1 - share) * ((a + b) / 2 < p)) for a, b in pairwise(ends)]
        both = np.diff(ends)
        assert found == approx(np.concatenate([ones, both - ones]))


def test_a_grid_draws_the_law_that_it_charges_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """P(0) and the variance of one client's noise, and of several clients' together, whole or in parts."""
    sigma, draws = 0.6, 40_000
    zero = {
        "gaussian": 1 / sum(math.exp(-k * k / (2 * sigma**2)) for k in range(-20, 21)),
        "skellam": float(mpmath.exp(-(sigma**2)) * mpmath.besseli(0, sigma**2)),
    }
    assert zero["skellam"] - zero["gaussian"] > 0.05
    for law, share in zero.items():
        grid = SumGrid(law, 650, 100, 18, 0.5)  # type: ignore[arg-type]
        found = grid.noise(sigma, (draws,), SeededNoise(law))
        assert float((found == 0).double().mean()) == approx(share, abs=5 * math.sqrt(0.25 / draws))
        assert grid.sigma == approx(0.5 / grid.step)
    for most, clients in ((4.0, 9), (4.0, 10), (1e9, 9)):  # nine parts of 4 steps, twelve of less, one
        monkeypatch.setattr(whole_numbers, "MOST_STEPS", most)
        for law in zero:
            together = SumGrid(law, 650, 100, 18, 0.5).noise(4.5, (draws,), SeededNoise(law), clients)  # type: ignore[arg-type]
            assert float(together.double().var()) == approx(clients * 4.5**2, rel=5 * math.sqrt(2 / draws))


def test_the_curve_of_a_sum_is_that_of_all_its_noises() -> None:
    skellam = SkellamSum(threat=SECURE_SUM, variance=40.0, noises=25, dimension=3, l2=4.0, delta=1e-9)
    assert renyi_curve(skellam) == approx(skellam_renyi(1000.0, 3, 4.0, 1e-9, ORDERS))
    gaussian = DiscreteGaussianSum(threat=SECURE_SUM, sigma=0.5, noises=25, dimension=3, l2=4.0)
    assert renyi_curve(gaussian) == approx(sum_rho(0.5, 25, 3, 4.0) * ORDERS)
