"""The two-sample check of inputs, and bounds from coins: what they find, and how often they find what is not there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import attack_shifts
from fedpriv.attacks import member_inputs
from fedpriv.attacks.targets import Sides, choose
from fedpriv.privacy.canaries import audit_canaries, audit_pairs

RNG = np.random.default_rng


def pairs_of(shift: str) -> tuple[np.ndarray, np.ndarray, Sides]:
    """(images, labels, pairs) of digits whose members and non-members differ in one way."""
    sides = [getattr(attack_shifts, shift)(split) for split in ("train", "test")]
    images, labels = (np.concatenate(part) for part in zip(*sides, strict=True))
    members = np.arange(len(sides[0][1]))
    others = np.arange(len(members), len(labels))
    settings = {"by_coin": False, "most": 2000, "known_share": 0.25, "rng": RNG(0)}
    return images, labels, choose([members], others, labels, **settings).pairs


@pytest.mark.parametrize("shift", [shift for shift in attack_shifts.SHIFTS if shift != "nothing"])
def test_a_shift_is_seen(shift: str) -> None:
    found = member_inputs.compare(*pairs_of(shift), seed=0)
    assert found.differ and found.feature and "differ as inputs" in str(found)


def test_a_shift_of_one_column_of_a_table_is_seen() -> None:
    rows, labels = RNG(0).normal(size=(400, 30)).astype(np.float32), np.arange(400) % 2
    pairs = Sides(np.arange(0, 200), np.arange(200, 400))
    assert not member_inputs.compare(rows, labels, pairs, seed=0).differ
    rows[:200, 7] += 1
    found = member_inputs.compare(rows, labels, pairs, seed=0)
    assert found.differ and found.feature == "input 7"


def test_where_coins_chose_nothing_is_seen() -> None:
    """Slanted pairs that coins have turned: p values below 0.1 come one time in ten (60 trials, five deviations)."""
    images, labels, pairs = pairs_of("slant")
    few = pairs.first(150)
    found = [
        member_inputs.compare(images, labels, few.turned(RNG(seed).random(len(few)) < 0.5), seed=0).p_value
        for seed in range(60)
    ]
    assert sum(p <= 0.1 for p in found) <= 6 + 5 * math.sqrt(60 * 0.09) and np.median(found) > 0.25
    assert not member_inputs.compare(*pairs_of("nothing"), seed=0).differ


# --- bounds from coins -----------------------------------------------------------------------------------


def test_the_bound_of_a_perfect_attack_by_hand() -> None:
    """delta 0, all of r guesses right: P[Binomial(r, p) = r] = p^r, so epsilon is the logit of error^(1/r)."""
    found = audit_pairs(np.ones(64), np.zeros(64), delta=0.0, confidence=0.95)
    p = 0.01 ** (1 / 64)  # five numbers of guesses share 0.05
    assert found.epsilon_lower == pytest.approx(math.log(p / (1 - p)), abs=1e-6)
    assert found.attainable == found.epsilon_lower and (found.guesses, found.canaries) == (64, 64)
    canaries = audit_canaries(np.arange(64) % 2 == 1, np.arange(64.0) % 2, delta=0.0, confidence=0.99, guesses=[64])
    assert canaries.attainable == canaries.epsilon_lower == pytest.approx(found.epsilon_lower, abs=1e-6)
    nothing = audit_pairs(np.zeros(64), np.zeros(64), delta=0.0, confidence=0.95)
    assert nothing.epsilon_lower == 0 and nothing.attainable == found.attainable


def test_verdicts() -> None:
    perfect = audit_pairs(np.ones(64), np.zeros(64), delta=0.0, confidence=0.95)
    nothing = audit_pairs(np.zeros(64), np.ones(64), delta=0.0, confidence=0.95)
    assert perfect.attainable == pytest.approx(2.6, abs=0.1)
    assert [perfect.verdict(epsilon) for epsilon in (2.0, 3.0, math.inf)] == [
        "contradicts",
        "cannot tell",
        "cannot tell",
    ]
    assert [nothing.verdict(epsilon) for epsilon in (0.0, 2.0, 3.0)] == ["consistent", "consistent", "cannot tell"]


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_bounds_exceed_the_truth_rarely_and_come_near(epsilon: float) -> None:
    """Randomised response on every coin, scores of very different sizes: at most 5 % exceed (binomial, 80 trials)."""
    rng = RNG(1)
    found = []
    for _ in range(80):
        right = rng.random(1000) < 1 / (1 + math.exp(-epsilon))
        size = rng.exponential(size=1000)
        found.append(audit_pairs(np.where(right, size, 0), np.where(right, 0, size), delta=0.0, confidence=0.95))
    assert sum(one.epsilon_lower > epsilon for one in found) <= 11
    assert np.median([one.epsilon_lower for one in found]) >= epsilon - 0.3


def test_scores_that_depend_on_each_other_do_not_raise_the_bound() -> None:
    """One model, whose every score follows from a single number; the coins are independent of it."""
    rng = RNG(2)
    alarms = 0
    for _ in range(100):
        scores = rng.normal() * rng.normal(1, 0.1, (2, 400))
        coins = rng.random(400) < 0.5
        right, other = np.where(coins, scores[0], scores[1]), np.where(coins, scores[1], scores[0])
        alarms += audit_pairs(right, other, delta=0.0, confidence=0.95).epsilon_lower > 0
    assert alarms <= 14
