"""Bounds from independent coins: held against exact laws, against brute force, and against the one-run bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, norm

from fedpriv.privacy.canaries import one_run_epsilon
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from fedpriv.privacy.independent_coins import (
    audit_independent,
    expected_independent,
    independent_epsilon,
    independent_mu,
    independent_p_value,
    planned_guesses,
)


@pytest.mark.parametrize(("coins", "guesses"), [(1, 1), (3, 2), (4, 4), (5, 1)])
def test_the_p_value_is_that_of_the_best_attack_on_the_worst_mechanism(coins: int, guesses: int) -> None:
    """All outcomes of the mechanism that reveals with probability delta, one by one: open coins are guessed first."""
    epsilon, delta = 0.7, 0.15
    p = float(expit(epsilon))
    chances = np.zeros(guesses + 1)
    for opened in itertools.product([False, True], repeat=coins):
        weight = math.prod(delta if one else 1 - delta for one in opened)
        sure = min(guesses, sum(opened))
        for right in range(guesses - sure + 1):
            chances[sure + right] += weight * binom.pmf(right, guesses - sure, p)
    for correct in range(guesses + 1):
        exact = chances[correct:].sum()
        assert independent_p_value(coins, guesses, correct, epsilon, delta) == pytest.approx(exact, abs=2e-9)


def test_without_delta_it_is_the_binomial_and_the_one_run_bound() -> None:
    assert independent_p_value(100, 50, 40, 1.0, 0.0) == pytest.approx(binom.sf(39, 50, expit(1.0)))
    assert independent_epsilon(100, 50, 40, 0.0, 0.05) == pytest.approx(
        one_run_epsilon(100, 50, 40, 0.0, 0.05), abs=1e-5
    )


def test_open_coins_cost_what_so_many_right_guesses_are_worth() -> None:
    """With delta m = 50 open coins of 1,000 all guessed, 50 right guesses more than half say nothing."""
    assert independent_epsilon(1000, 1000, 526 + 25, 0.05, 0.05) == 0.0
    assert independent_epsilon(1000, 1000, 526 + 60, 0.05, 0.05) > 0.0
    assert independent_epsilon(1000, 1000, 526 + 25, 0.0, 0.05) > 0.0


def test_many_coins_show_more_than_the_one_run_bound_does() -> None:
    found = independent_epsilon(100_000, 1562, 1551, 1e-5, 0.05)
    assert found > one_run_epsilon(100_000, 1562, 1551, 1e-5, 0.05) + 0.5


def exact_scores(mu: float, coins: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    took_part = rng.integers(0, 2, coins).astype(bool)
    return took_part, rng.standard_normal(coins) + np.where(took_part, mu / 2, -mu / 2)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_false_refutations_are_as_rare_as_stated(epsilon: float) -> None:
    """400 audits of an exact Gaussian at 80 % confidence: at most as many errors as 80 % allow, of either bound."""
    mu, rng, wrong = gaussian_mu(epsilon, 1e-3), np.random.default_rng(int(10 * epsilon)), np.zeros(2)
    true = gaussian_epsilon(mu, 1e-3)
    for _ in range(400):
        took_part, scores = exact_scores(mu, 150, rng)
        guesses = planned_guesses(150, mu, 1e-3, 0.2)
        found = audit_independent(took_part, scores, delta=1e-3, confidence=0.8, guesses=guesses)
        wrong += [found.epsilon_lower > true, found.sharper[0].epsilon_lower > true]
    assert (wrong <= binom.isf(0.001, 400, 0.2)).all()
    assert wrong[1] > 40  # the Gaussian bound uses the error that it is given


def test_what_is_expected_is_what_is_found() -> None:
    mu, rng = gaussian_mu(8.0, 1e-5), np.random.default_rng(5)
    plain, assuming = expected_independent(10_000, mu, 1e-5, 0.95)
    found = []
    for _ in range(9):
        took_part, scores = exact_scores(mu, 10_000, rng)
        guesses = planned_guesses(10_000, mu, 1e-5, 0.05)
        found.append(audit_independent(took_part, scores, delta=1e-5, confidence=0.95, guesses=guesses))
    assert np.median([one.epsilon_lower for one in found]) == pytest.approx(plain, abs=0.25)
    assert np.median([one.sharper[0].epsilon_lower for one in found]) == pytest.approx(assuming, abs=0.1)
    assert 3.6 < plain < 4.2 and 7.6 < assuming < 8.0


def test_the_gaussian_bound_is_clopper_and_pearson_at_the_middle() -> None:
    mu = independent_mu(1000, 800, 0.05)
    rate = norm.cdf(mu / 2)
    assert binom.sf(799, 1000, rate) == pytest.approx(0.05, rel=1e-6)
    assert independent_mu(1000, 500, 0.05) == 0.0 and independent_mu(10, 10, 0.05) > 0


def test_a_score_of_zero_is_no_right_guess_and_wrong_shapes_are_refused() -> None:
    took_part = np.ones(40, bool)
    found = audit_independent(took_part, np.zeros(40), delta=1e-5, confidence=0.95, guesses=10)
    assert found.sharper[0].epsilon_lower == 0.0
    for scores, guesses in ((np.zeros(39), 10), (np.full(40, np.nan), 10), (np.zeros(40), 41), (np.zeros(40), 0)):
        with pytest.raises(ValueError, match=r"finite score|guesses="):
            audit_independent(took_part, scores, delta=1e-5, confidence=0.95, guesses=guesses)
