"""Bounds by trade-off curves: what they reach, what they assume, and that sound mechanisms are not refuted."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedpriv.privacy.auditor import NAME, audit, log_ratio, sampled_score
from fedpriv.privacy.canaries import one_run_bound, one_run_strength, refutes
from fedpriv.privacy.events import CLIENT_TO_SERVER, Gaussian, PoissonGaussian, Threat
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from fedpriv.privacy.scaled_noise import EPSILONS, PER_OCTAVE, ScaledNoise, family_of
from fedpriv.privacy.trade_offs import (
    GAUSSIAN,
    Approximate,
    Family,
    binomial_log_chances,
    binomial_quantile,
    rate_bounds,
    sharper_bound,
    strength_bound,
)

DELTA = 1e-5
EXAMPLE = Threat("example", "add-or-remove-one", "server")


def gaussian(mu: float) -> Callable[[bool, int, int], np.ndarray]:
    return lambda world, n, key: np.random.default_rng(key).normal(mu * world, size=(n, 1))


# --- errors of a rule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "least"), [(1.0, 0.6), (4.0, 3.5), (8.0, 7.3)])
def test_gaussian_noise_is_audited_sharply_from_few_trials(epsilon: float, least: float) -> None:
    """10^4 trials show 0.67, 3.61 and 7.57 in the middle of audits, where (epsilon, delta) alone shows 0.26, 1.67 and
    3.20.
    """
    mu = gaussian_mu(epsilon, DELTA)
    found = [
        audit(gaussian(mu), delta=DELTA, trials=10_000, confidence=0.95, seed=seed, families=[GAUSSIAN])
        for seed in range(15)
    ]
    bounds = [one.sharper[0].epsilon_lower for one in found]
    assert least <= np.median(bounds) <= epsilon
    assert np.median([one.epsilon_lower for one in found]) < 0.55 * np.median(bounds)
    assert "if all noise is Gaussian" in str(found[0].sharper[0]) and found[0].sharper[0].attainable > 20


def test_the_bound_under_no_assumption_is_unchanged_by_others() -> None:
    one, other = (
        audit(gaussian(1.0), delta=DELTA, trials=4000, confidence=0.95, seed=3, families=families)
        for families in ([], [GAUSSIAN])
    )
    assert one.sharper == () and (one.epsilon_lower, one.rule) == (other.epsilon_lower, other.rule)


def test_the_same_rates_give_the_same_bound_by_both_codes() -> None:
    """`Approximate` is the (epsilon, delta) bound of the auditor."""
    from fedpriv.privacy.auditor import epsilon_bound

    rng = np.random.default_rng(0)
    for _ in range(50):
        fp, tp = sorted(rng.integers(0, 1001, 2))
        expected, _, _ = epsilon_bound(fp, tp, 1000, 1e-3, 0.95)
        assert strength_bound(fp, tp, 1000, 0.95, Approximate(1e-3)) == pytest.approx(float(expected), abs=1e-12)


def test_a_gaussian_curve_and_its_inverse() -> None:
    for mu, tpr in product((0.0, 0.3, 2.0), (0.01, 0.5, 0.99)):
        fpr = GAUSSIAN.least_fpr(mu, tpr)
        assert norm.cdf(mu + norm.ppf(fpr)) == pytest.approx(tpr)
        assert float(GAUSSIAN.strength(np.array(fpr), np.array(tpr))) == pytest.approx(mu, abs=1e-9)
    for epsilon, tpr in product((0.0, 0.5, 3.0), (0.001, 0.2, 0.9, 1.0)):
        family = Approximate(0.01)
        fpr = family.least_fpr(epsilon, tpr)
        reached = min(math.exp(epsilon) * fpr + 0.01, 1 - math.exp(-epsilon) * (0.99 - fpr))
        assert reached >= tpr - 1e-12 and (fpr == 0 or reached == pytest.approx(tpr))


def test_no_rates_break_a_bound() -> None:
    for fp, tp in ((0, 0), (0, 100), (100, 100), (100, 0)):
        found = sharper_bound(fp, tp, 100, delta=DELTA, confidence=0.95)
        assert 0 <= found.epsilon_lower <= found.attainable < math.inf
    assert rate_bounds(100, 0, 100, 0.95) == (1.0, 0.0)
    with pytest.raises(ValueError, match="says nothing at 0"):
        sharper_bound(1, 50, 100, delta=0.0, confidence=0.95, family=Approximate(0.1))


def test_a_mechanism_that_is_not_gaussian_shows_what_is_assumed() -> None:
    """Randomised response at epsilon 1 beats the Gaussian curve of that epsilon: so the bound is named with its
    assumption, and the other one stays true.
    """
    share = 1 / (1 + math.e)

    def response(world: bool, n: int, key: int) -> np.ndarray:
        return (np.random.default_rng(key).random((n, 1)) < (1 - share if world else share)).astype(float)

    found = audit(response, delta=DELTA, trials=20_000, confidence=0.99, seed=0, families=[GAUSSIAN])
    assert found.epsilon_lower <= 1 < found.sharper[0].epsilon_lower and found.sharper[0].assumes


def test_sound_mechanisms_are_refuted_no_more_often_than_stated() -> None:
    """300 small audits at 90 %: more than 47 wrong ones would be seen once in a thousand times."""
    mu, exceeded = 1.0, 0
    for seed in range(300):
        found = audit(gaussian(mu), delta=DELTA, trials=200, confidence=0.9, seed=seed, families=[GAUSSIAN])
        exceeded += found.sharper[0].strength > mu
    assert exceeded <= binom.ppf(0.999, 300, 0.1)


def test_false_refutations_are_as_rare_as_the_level_says_for_every_rule() -> None:
    """For one fixed threshold the law of the bound is exact: summed over all counts."""
    trials, mu, confidence = 60, 0.8, 0.8
    false, true = norm.sf(mu / 2), norm.cdf(mu / 2)
    fp, tp = np.meshgrid(np.arange(trials + 1), np.arange(trials + 1), indexing="ij")
    refuted = strength_bound(fp, tp, trials, confidence) > mu
    chance = (refuted * binom.pmf(fp, trials, false) * binom.pmf(tp, trials, true)).sum()
    assert 0.0 < chance <= 1 - confidence


# --- sampled noise ---------------------------------------------------------------------------------------------------


def sampled(rounds: int, rate: float, shift: float) -> Callable[[bool, int, int], np.ndarray]:
    def draw(world: bool, n: int, key: int) -> np.ndarray:
        rng = np.random.default_rng(key)
        return rng.standard_normal((n, rounds)) + shift * world * (rng.random((n, rounds)) < rate)

    return draw


def test_the_likelihood_ratio_sees_more_of_sampled_noise_and_never_too_much() -> None:
    events = [PoissonGaussian(threat=EXAMPLE, multiplier=0.6, sampling_rate=0.1, count=20)]
    options = {"delta": DELTA, "trials": 20_000, "confidence": 0.95, "seed": 1}
    draw = sampled(20, 0.1, 1 / 0.6)
    plain = audit(draw, **options)  # type: ignore[arg-type]
    found = audit(draw, scores=sampled_score(events, 20), **options)  # type: ignore[arg-type]
    assert NAME in found.rule and found.epsilon_lower > 1.2 * plain.epsilon_lower
    from fedpriv.privacy.composition import compose

    assert found.epsilon_lower <= compose(events, DELTA).epsilon


def test_only_sampled_gaussians_have_that_score() -> None:
    sampled_one = PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.1, count=2)
    assert set(sampled_score([sampled_one], 2)) == {NAME}
    assert sampled_score([sampled_one], 3) == {} == sampled_score([], 0)
    assert sampled_score([Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)], 1) == {}


def test_the_score_of_a_release_of_several_steps_is_its_likelihood_ratio() -> None:
    """Against the densities themselves, and finite for values far out."""
    seen, sigma, rate, steps = np.array([-1.0, 0.3, 4.0]), 0.8, 0.2, 3
    shift = 1 / (sigma * math.sqrt(steps))
    mixture = sum(binom.pmf(j, steps, rate) * norm.pdf(seen, j * shift) for j in range(steps + 1))
    assert log_ratio(seen, sigma, rate, steps) == pytest.approx(np.log(mixture / norm.pdf(seen)))
    assert np.isfinite(log_ratio(np.array([-1e6, 1e6]), sigma, rate, steps)).all()
    assert log_ratio(np.array([1.0]), sigma, 1.0, 1) == pytest.approx(1 / sigma - 1 / (2 * sigma**2))


# --- coins in one run ------------------------------------------------------------------------------------------------


def test_one_coin_is_guessed_as_well_as_two_worlds_are_told_apart() -> None:
    """Pr[right] <= F(Pr[wrong]): Phi(mu / 2) for a Gaussian, e^epsilon / (1 + e^epsilon) for pure privacy."""
    for error in (0.7, 0.9):
        assert one_run_strength(1, 1, 1, error, GAUSSIAN) == pytest.approx(2 * norm.ppf(error), abs=1e-5)
        pure = one_run_strength(1, 1, 1, error, Approximate(0.0))
        assert pure == pytest.approx(math.log(error / (1 - error)), abs=1e-5)


def test_the_figures_of_a_thousand_coins() -> None:
    """Exact Gaussians of epsilon 1, 4, 8 at 1e-5, typical right guesses, beside Steinke et al."""
    from fedpriv.privacy.canaries import one_run_epsilon

    for guesses, correct, least in ((500, 292, 0.31), (125, 110, 1.65), (125, 123, 3.49)):
        found = one_run_bound(1000, [(guesses, correct)], delta=DELTA, confidence=0.95)
        assert found.epsilon_lower >= least > one_run_epsilon(1000, guesses, correct, DELTA, 0.05)
        assert found.epsilon_lower <= found.attainable


def laws(channel: np.ndarray, coins: int, guess: np.ndarray) -> np.ndarray:
    """Pr[N = n] of right guesses: channel [2^coins, outputs], guess [outputs, coins] of 0, 1, or -1 for none."""
    chances = np.zeros(coins + 1)
    for index, u in enumerate(product((0, 1), repeat=coins)):
        right = (guess == np.array(u)).sum(1)
        np.add.at(chances, right, channel[index] / 2**coins)
    return chances


def loss(channel: np.ndarray, coins: int) -> float:
    """The least pure epsilon of a channel between neighbouring coins."""
    worst = 0.0
    for index in range(2**coins):
        for j in range(coins):
            worst = max(worst, float(np.log(channel[index] / channel[index ^ (1 << j)]).max()))
    return worst


@pytest.mark.parametrize("coins", [1, 2, 3])
def test_no_channel_has_more_right_guesses_than_the_theorem_allows(coins: int) -> None:
    """Random channels from all coins to five outputs with every guessing rule of a fixed number of guesses, by their
    exact law: the p-value of c right guesses is at least their chance.
    """
    rng, outputs = np.random.default_rng(coins), 5
    for _ in range(60):
        channel = rng.dirichlet(np.ones(outputs) * rng.choice([0.5, 3.0]), 2**coins) + 1e-3
        channel /= channel.sum(1, keepdims=True)
        epsilon, guesses = loss(channel, coins), int(rng.integers(1, coins + 1))
        guess = np.full((outputs, coins), -1)
        for row in guess:
            row[rng.permutation(coins)[:guesses]] = rng.integers(0, 2, guesses)
        best = laws(channel, coins, guess)
        for correct in range(1, guesses + 1):
            chance, inverse = best[correct:].sum(), partial(Approximate(0.0).least_fpr, epsilon)
            if chance > 0:
                assert not refutes(coins, guesses, correct, chance * 0.999, inverse)


@pytest.mark.parametrize(("mu", "guesses"), [(0.5, 100), (1.5, 100), (0.5, 40)])
def test_coins_with_independent_noise_refute_no_more_often_than_stated(mu: float, guesses: int) -> None:
    """Where all coins are guessed, the law of right guesses is binomial, and the error of the bound exact."""
    rng, coins, error, refuted = np.random.default_rng(5), 100, 0.1, 0
    critical = next(c for c in range(guesses) if one_run_strength(coins, guesses, c, error, GAUSSIAN) > mu)
    if guesses == coins:
        assert critical > 0 and binom.sf(critical - 1, coins, norm.cdf(mu / 2)) <= error
    for _ in range(400):
        there = rng.random(coins) < 0.5
        score = np.where(there, mu / 2, -mu / 2) + rng.standard_normal(coins)
        clear = np.argsort(-np.abs(score))[:guesses]
        refuted += int(((score[clear] > 0) == there[clear]).sum()) >= critical
    assert refuted <= binom.ppf(0.999, 400, error)


@pytest.mark.parametrize("family", [GAUSSIAN, Approximate(1e-3)])
def test_more_right_guesses_never_show_less(family: Family) -> None:
    bounds = [one_run_strength(60, 40, correct, 0.05, family) for correct in range(41)]
    assert bounds == sorted(bounds) and bounds[0] == 0 < bounds[-1]


def test_a_gaussian_bound_is_in_epsilons_of_its_mu() -> None:
    found = one_run_bound(200, [(100, 90), (25, 25)], delta=DELTA, confidence=0.95)
    assert found.epsilon_lower == pytest.approx(gaussian_epsilon(found.strength, DELTA))


# --- by brute force, against a channel's own curve -------------------------------------------------------------------


def curve_of(channel: np.ndarray, coins: int) -> Callable[[float], float]:
    """The inverse of the least concave curve above all tests of all neighbouring rows, in both directions: for a tpr
    the least fpr. The tests of a pair are sums of outputs in the order of their likelihood ratio.
    """
    pairs = [(channel[i], channel[i ^ (1 << j)]) for i in range(2**coins) for j in range(coins)]
    curves = []
    for p, q in pairs:
        order = np.argsort(-q / p)
        curves.append((np.cumsum([0.0, *p[order]]), np.cumsum([0.0, *q[order]])))
    xs = np.unique(np.concatenate([false for false, _ in curves]))
    top = np.max([np.interp(xs, false, true) for false, true in curves], axis=0)
    hull: list[tuple[float, float]] = []
    for x, y in zip(xs, top, strict=True):
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-2][0]) <= (y - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    false, true = np.array(hull).T
    rising = np.concatenate([[True], np.diff(true) > 1e-15])
    return lambda tpr: float(np.interp(min(tpr, 1.0), true[rising], false[rising]))


def clearest(channel: np.ndarray, coins: int, guesses: int) -> np.ndarray:
    """[outputs, coins]: the best guesses, by posterior, of those coins that it says most of."""
    u = np.array(list(product((0, 1), repeat=coins)))
    ones = (channel[:, :, None] * u[:, None]).sum(0) / channel.sum(0)[:, None]
    guess = np.full(ones.shape, -1)
    for row, one in zip(guess, ones, strict=True):
        for j in np.argsort(-np.abs(one - 0.5))[:guesses]:
            row[j] = one[j] > 0.5
    return guess


@pytest.mark.parametrize("coins", [1, 2, 3, 4])
def test_the_best_guesses_never_beat_the_theorem_with_the_channels_own_curve(coins: int) -> None:
    """The sharpest curve that is true, and the best guesses: no chance of c right guesses is refuted, and what is
    nearly refuted shows that the test could fail.
    """
    rng, outputs, close = np.random.default_rng(coins), 6, 0
    for _ in range(40):
        channel = rng.dirichlet(np.ones(outputs) * rng.choice([0.3, 2.0]), 2**coins) + 1e-4
        channel /= channel.sum(1, keepdims=True)
        inverse, guesses = curve_of(channel, coins), int(rng.integers(1, coins + 1))
        law = laws(channel, coins, clearest(channel, coins, guesses))
        for correct in range(1, guesses + 1):
            chance = law[correct:].sum()
            assert not refutes(coins, guesses, correct, chance * (1 - 1e-9), inverse)
            close += refutes(coins, guesses, correct, min(0.999, chance * 1.5), inverse)
    assert close > 0 or coins > 3  # with more coins, few of so random channels say much of each


@pytest.mark.parametrize("delta", [0.02, 0.2])
def test_rare_disasters_that_touch_all_coins_at_once_are_within_the_theorem(delta: float) -> None:
    """With probability delta all coins are shown, else each by randomised response: (epsilon, delta)-private, and the
    number of right guesses is a mixture whose law is known.
    """
    epsilon, coins = 0.7, 12
    share = math.exp(epsilon) / (1 + math.exp(epsilon))
    inverse = partial(Approximate(delta).least_fpr, epsilon)
    for correct in range(1, coins + 1):
        chance = delta + (1 - delta) * binom.sf(correct - 1, coins, share)
        assert not refutes(coins, coins, correct, chance * (1 - 1e-9), inverse)


def test_the_recursion_is_the_least_law_that_the_theorem_allows() -> None:
    """Against the theorem's inequalities written out, solved from the top by bisection instead of by parts."""
    coins, guesses, correct, error, mu = 9, 6, 5, 0.3, 0.6

    def inverse(tpr: float) -> float:
        return GAUSSIAN.least_fpr(mu, tpr)

    tails = np.zeros(guesses + 2)
    tails[correct] = error
    for t in range(correct, 0, -1):
        low, high = tails[t], 50.0
        for _ in range(200):
            middle = (low + high) / 2
            some = tails.copy()
            some[t - 1] = middle
            each = some[:-1] - some[1:]
            number = np.arange(guesses + 1)
            right, wrong = (number * each)[t:].sum() / coins, ((guesses - number) * each)[t - 1 :].sum() / coins
            low, high = (low, middle) if wrong >= inverse(right) else (middle, high)
        tails[t - 1] = high
    from fedpriv.privacy.canaries import _least_total

    assert tails[0] <= 1 and _least_total(coins, guesses, correct, error, inverse) == pytest.approx(tails[0], abs=1e-9)


def test_what_is_attainable_is_that_every_guess_is_right() -> None:
    found, perfect = (one_run_bound(100, [(40, right)], delta=DELTA, confidence=0.95) for right in (30, 40))
    assert found.attainable == perfect.attainable == perfect.epsilon_lower > found.epsilon_lower


@pytest.mark.parametrize(("fp", "tp"), [(3, 50), (0, 99), (70, 80)])
def test_each_rate_is_bounded_with_half_of_the_error(fp: int, tp: int) -> None:
    """Clopper and Pearson: at the bound, as many errors, or as few, have a chance of half of the error."""
    upper, lower = rate_bounds(fp, tp, 100, 0.9)
    assert binom.cdf(fp, 100, upper) == pytest.approx(0.05) == binom.sf(tp - 1, 100, lower)


def test_two_tries_share_the_error() -> None:
    one = one_run_bound(100, [(40, 36)], delta=DELTA, confidence=0.975)
    two = one_run_bound(100, [(40, 36), (40, 36)], delta=DELTA, confidence=0.95)
    assert two.strength == pytest.approx(one.strength) and two.attainable == pytest.approx(one.attainable)
    assert two.confidence == 0.95
    rates = sharper_bound(5, 60, 100, delta=DELTA, confidence=0.95, looks=2)
    assert rates.strength == pytest.approx(sharper_bound(5, 60, 100, delta=DELTA, confidence=0.975).strength)


# --- the family of scaled noise --------------------------------------------------------------------------------------

SAMPLED = PoissonGaussian(threat=EXAMPLE, multiplier=0.6, sampling_rate=0.02, count=200)


def test_a_strength_states_no_more_than_the_ledger_says_of_it() -> None:
    """A coarse loss distribution is an upper bound on delta, and would state up to 2 % too much."""
    from dataclasses import replace

    from fedpriv.privacy.composition import compose

    family = family_of([SAMPLED])
    assert isinstance(family, ScaledNoise)
    for strength in (0.5, 1.0):
        true = compose([replace(SAMPLED, multiplier=0.6 / strength)], DELTA).epsilon
        assert family.epsilon(strength, DELTA) <= true * (1 + 1e-9)
        assert family.epsilon(strength * 1.01, DELTA) <= true * (1 + 1e-9)  # rounded down to the grid
    assert family.epsilon(0.0, DELTA) == 0


def test_curves_of_scaled_noise_lie_above_every_test_of_the_mechanism() -> None:
    """One sampled release: the likelihood-ratio test's exact rates in both directions, at strength 1 refute nothing
    and are near the curve; a stronger mechanism's rates refute it.
    """
    one = PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.3, count=1)
    family = family_of([one])
    assert isinstance(family, ScaledNoise)
    strengths = []
    for cut in (-1.0, 0.0, 1.0, 2.0):
        p, q = norm.sf(cut), 0.7 * norm.sf(cut) + 0.3 * norm.sf(cut - 1)
        for fpr, tpr in ((p, q), (1 - q, 1 - p)):
            assert family.least_fpr(1.0, tpr) <= fpr + 1e-9
            strengths.append(float(family.strength(np.array(fpr), np.array(tpr))))
    assert 0.9 < max(strengths) <= 1.0
    p, q = norm.sf(1.0), 0.7 * norm.sf(1.0) + 0.3 * norm.sf(1 - 2.0)  # half of the noise
    assert 1.5 < float(family.strength(np.array(p), np.array(q))) <= 2.0
    assert family.least_fpr(1.02, 0.4) <= family.least_fpr(1.0, 0.4)  # between two curves, the larger one


@pytest.mark.parametrize(("mu", "count"), [(1.0, 4), (3.0, 1000), (4.0, 1000)])
def test_curves_of_scaled_noise_are_never_below_the_exact_one(mu: float, count: int) -> None:
    """Everybody sampled: a Gaussian of mu in all; at every epsilon, down to deltas that rounding would hide."""
    one = PoissonGaussian(threat=EXAMPLE, multiplier=count**0.5 / mu, sampling_rate=1.0, count=count)
    found, at = ScaledNoise((one,))._curve(0), EPSILONS
    exact = norm.cdf(mu / 2 - at / mu) - np.exp(at + norm.logcdf(-mu / 2 - at / mu))
    assert (found >= exact).all() and (found <= exact + 3e-3).all()


def test_the_largest_strength_of_scaled_noise_is_refuted_and_the_next_is_not() -> None:
    family = family_of([SAMPLED])
    assert isinstance(family, ScaledNoise)
    found = family.largest(lambda strength: strength < 1.3)
    assert found < 1.3 <= found * 2 ** (1 / PER_OCTAVE) * (1 + 1e-12)
    assert family.largest(lambda strength: False) == 0.0


def test_a_curve_is_of_all_releases_together() -> None:
    """Nearly everybody sampled, four times: close to the Gaussian curve of mu = 2, and never below it by more than a
    sample hides.
    """
    family = family_of([PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.999, count=4)])
    assert isinstance(family, ScaledNoise)
    for tpr in (0.2, 0.5, 0.9):
        true = GAUSSIAN.least_fpr(2.0, tpr)
        assert 0.8 * true <= family.least_fpr(1.0, tpr) <= 1.05 * true


def test_which_ledgers_have_a_family() -> None:
    plain = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
    assert family_of([plain, plain]) is GAUSSIAN
    assert isinstance(family_of([SAMPLED]), ScaledNoise)
    assert family_of([]) is None is family_of([SAMPLED, plain])


@pytest.mark.parametrize("trials", [1, 7, 400, 100_000])
@pytest.mark.parametrize("rate", [0.0, 1e-6, 0.01, 0.3, 0.999, 1.0])
def test_a_binomial_law_is_that_of_scipy_stats(trials: int, rate: float) -> None:
    """Importing scipy.stats would make each run a second longer."""
    number = np.unique(np.linspace(0, trials, 300).astype(int))
    chances = binomial_log_chances(number, trials, rate)
    np.testing.assert_allclose(chances, binom.logpmf(number, trials, rate), rtol=1e-12, atol=1e-9)
    for chance in (1e-9, 0.025, 0.5, 0.975, 1 - 1e-9):
        assert binomial_quantile(chance, trials, rate) == binom.ppf(chance, trials, rate)
