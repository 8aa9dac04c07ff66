"""What an audit would have shown of the verified mechanism: verdicts stand on it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedpriv.privacy.auditor import audit, best_rates, epsilon_bound, expected_bound, verdict, verified_curve
from fedpriv.privacy.events import CLIENT_TO_SERVER, Gaussian, NoBound
from fedpriv.privacy.gaussian_dp import gaussian_mu

DELTA, CONFIDENCE = 1e-5, 0.95


def gaussian(epsilon: float) -> list[Gaussian]:
    return [Gaussian(threat=CLIENT_TO_SERVER, multiplier=1 / gaussian_mu(epsilon, DELTA))]


def gaussian_audit(epsilon: float, seed: int, trials: int = 200_000) -> object:
    mu = gaussian_mu(epsilon, DELTA)
    return audit(
        lambda world, n, key: np.random.default_rng(key).normal(mu * world, size=(n, 1)),
        delta=DELTA,
        trials=trials,
        confidence=CONFIDENCE,
        seed=seed,
    )


@pytest.mark.parametrize(("true", "claimed"), [(8.0, 5.0), (4.0, 3.0), (2.0, 1.5), (1.99, 1.5)])
def test_a_false_claim_that_the_audit_cannot_see_is_not_called_consistent(true: float, claimed: float) -> None:
    expected = expected_bound(verified_curve(gaussian(true), DELTA), 100_000, DELTA, CONFIDENCE)
    assert expected < claimed
    for seed in range(2):
        found = gaussian_audit(true, seed)
        words = verdict(found, claimed, same_scope=True, verified=true, expected=expected)  # type: ignore[arg-type]
        assert words != "consistent with the claim"


def test_a_loose_bound_whose_mechanism_would_have_been_seen_leaves_the_claim_consistent() -> None:
    """Verified 8, in truth 2: of a mechanism of 8 the audit would have shown more than 3."""
    expected = expected_bound(verified_curve(gaussian(8.0), DELTA), 100_000, DELTA, CONFIDENCE)
    found = gaussian_audit(2.0, 0)
    words = verdict(found, 3.0, same_scope=True, verified=8.0, expected=expected)  # type: ignore[arg-type]
    assert words == "consistent with the claim"
    assert verdict(found, 5.0, same_scope=True, verified=8.0, expected=expected) == "cannot tell"  # type: ignore[arg-type]


def test_more_than_is_verified_is_a_contradiction_whatever_is_claimed() -> None:
    found = gaussian_audit(8.0, 0)
    for claimed, same in ((1.0, True), (50.0, True), (1.0, False), (None, False)):
        words = verdict(found, claimed, same_scope=same, verified=3.0, expected=1.0)  # type: ignore[arg-type]
        assert words == "contradicts the verified epsilon"
    assert verdict(found, None, same_scope=False, verified=8.0, expected=4.0) == "nothing is claimed"  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [2.0, 4.0, 8.0])
def test_gaussian_audits_reach_what_is_expected_of_them(epsilon: float) -> None:
    expected = expected_bound(verified_curve(gaussian(epsilon), DELTA), 100_000, DELTA, CONFIDENCE)
    bounds = [gaussian_audit(epsilon, seed).epsilon_lower for seed in range(4)]  # type: ignore[attr-defined]
    assert expected <= np.median(bounds) <= 1.25 * expected


def test_the_curve_of_a_gaussian_is_its_trade_off() -> None:
    """best_rates against Phi(Phi^-1(fpr) + mu)."""
    fpr = np.array([1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.7])
    mu = gaussian_mu(4.0, DELTA)
    exact = norm.cdf(norm.ppf(fpr) + mu)
    found = best_rates(verified_curve(gaussian(4.0), DELTA), fpr)
    assert (found >= exact - 1e-9).all() and (found <= exact * 1.03 + 1e-9).all()


def test_the_rates_of_randomised_response() -> None:
    """(epsilon, delta) alone: the two lines of the theorem."""
    epsilon, delta = 2.0, 0.01
    fpr = np.array([0.0, 0.01, 0.1, 0.5, 1.0])
    lines = np.minimum(math.e**2 * fpr + delta, 1 - math.e**-2 * (1 - delta - fpr))
    assert best_rates([(epsilon, delta)], fpr) == pytest.approx(np.minimum(1, np.maximum(lines, fpr)))


def test_the_expected_bound_is_reached_in_that_share_of_audits() -> None:
    """One threshold of randomised response at epsilon 2, against simulated counts."""
    trials, confidence, rng = 5000, 0.9, np.random.default_rng(1)
    low = 1 / (1 + math.e**2)
    expected = expected_bound([(2.0, 0.0)], trials, 0.0, confidence)
    bounds, _, _ = epsilon_bound(
        rng.binomial(trials, low, 4000), rng.binomial(trials, 1 - low, 4000), trials, 0.0, confidence
    )
    assert confidence <= (bounds >= expected * (1 - 1e-9)).mean() < 0.999
    assert expected < float(
        epsilon_bound(binom.median(trials, low), binom.median(trials, 1 - low), trials, 0.0, confidence)[0]
    )


@pytest.mark.parametrize("looks", [1, 3, 20])
def test_what_is_expected_of_one_of_several_looks_has_its_part_of_the_error(looks: int) -> None:
    """The best threshold of randomised response at epsilon 1, with an unlucky draw at the confidence of all looks and
    the bound at the confidence of one.
    """
    trials, unlucky, sure, bounds = 5000, (1 - CONFIDENCE) / 2, 1 - (1 - CONFIDENCE) / looks, list[float]()
    for share in np.concatenate([np.geomspace(0.01 / trials, 0.5, 256), 1 - np.geomspace(0.01 / trials, 0.5, 256)]):
        power = max(share, min(1.0, math.e * share, 1 - (1 - share) / math.e))
        false, true = binom.ppf(1 - unlucky, trials, share), binom.ppf(unlucky, trials, power)
        bounds.append(float(epsilon_bound(false, true, trials, 0.0, sure)[0]))
    assert expected_bound([(1.0, 0.0)], trials, 0.0, CONFIDENCE, looks) == pytest.approx(max(bounds), rel=1e-9)


def test_of_an_infinite_bound_nothing_is_expected() -> None:
    events = [NoBound(threat=CLIENT_TO_SERVER, reason="why")]
    assert verified_curve(events, DELTA) == [] and expected_bound([], 1000, DELTA, CONFIDENCE) == 0.0


def test_a_split_confidence_stays_split() -> None:
    """The most that could have been shown counts on the error that each of several looks has."""
    one = gaussian_audit(1.0, 0, 2000)
    several = audit(
        lambda world, n, key: np.random.default_rng(key).normal(size=(n, 1)),
        delta=DELTA,
        trials=2000,
        confidence=CONFIDENCE,
        seed=0,
        looks=5,
    )
    assert several.confidence == CONFIDENCE and several.looks == 5
    assert several.attainable == pytest.approx(float(epsilon_bound(0, 1000, 1000, DELTA, 0.99)[0]))
    assert several.attainable < one.attainable  # type: ignore[attr-defined]
