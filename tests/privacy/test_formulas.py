"""Every constant of a proof, one by one: each bound against the same formula computed otherwise, term by term (loops,
40 digits, laws written out). A test here fails where one constant or one term of the formula changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf
from pytest import approx
from scipy import special, stats

from fedpriv.privacy.composition import ORDERS, Budget, compose, renyi_curve, renyi_to_epsilon
from fedpriv.privacy.events import CLIENT_TO_SERVER, ZCDP, ApproximateDP, Gaussian, RandomisedResponse
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, shifted_epsilon
from fedpriv.privacy.integer_laws import (
    closeness,
    nearly_gaussian,
    skellam_curvature,
    skellam_nearly_gaussian,
    skellam_renyi,
    skellam_window,
    sum_rho,
)
from fedpriv.privacy.private_selection import NegativeBinomial, Poisson, Trials, selection_epsilon, with_mean

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
