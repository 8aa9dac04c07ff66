"""Looking several times and deciding many claims together: how often that is wrong, by simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedpriv.studies.looks import FAMILY_ERROR, Sides, above, holm, sequential, t_test, together

LOOKS = (3, 6, 12, 24)


def study(rng: np.random.Generator, means: np.ndarray, shared: float) -> tuple[dict[int, Sides], int]:
    """A paper with a claim per mean (in standard deviations), whose seeds share a part of their luck. Looks are added
    until every claim is decided, as the reproduction does. Adjusted sides, and the seeds used.
    """
    luck = rng.standard_normal((LOOKS[-1], 1)) * math.sqrt(shared)
    data = means + luck + rng.standard_normal((LOOKS[-1], len(means))) * math.sqrt(1 - shared)
    for seeds in LOOKS:
        found = holm({claim: sequential(list(data[:seeds, claim]), LOOKS) for claim in range(len(means))})
        if all(min(one.holds, one.fails) <= FAMILY_ERROR for one in found.values()):
            break
    return found, seeds


@pytest.mark.parametrize("shared", [0.0, 0.7])
def test_a_study_without_any_effect_is_seldom_wrong(shared: float) -> None:
    """Six claims whose difference is nothing: in at most 5 % of studies is any of them said to hold or to fail."""
    rng = np.random.default_rng(int(10 * shared))
    studies = 1500
    wrong = sum(
        any(min(one.holds, one.fails) <= FAMILY_ERROR for one in study(rng, np.zeros(6), shared)[0].values())
        for _ in range(studies)
    )
    assert stats.binomtest(wrong, studies, FAMILY_ERROR, alternative="greater").pvalue > 0.001
    assert wrong > 0.005 * studies  # it is a bound that is used, not a test that never decides


def test_without_the_correction_it_would_be_wrong_often() -> None:
    """The same claims looked at four times at 95 %, each for itself: what the two corrections are for."""
    rng = np.random.default_rng(7)
    data = rng.standard_normal((400, 6, LOOKS[-1]))
    wrong = sum(any(min(t_test(list(claim[:seeds]))) <= 0.025 for claim in one for seeds in LOOKS) for one in data)
    assert wrong > 0.3 * len(data)


def test_a_real_effect_is_found_early() -> None:
    """Three claims that hold by two standard deviations, one that fails by as much, two without effect."""
    rng = np.random.default_rng(3)
    means = np.array([2.0, 2.0, 2.0, -2.0, 0.0, 0.0])
    found = [study(rng, means, 0.0)[0] for _ in range(150)]
    for claim, mean in enumerate(means[:4]):
        right = sum((one[claim].holds if mean > 0 else one[claim].fails) <= FAMILY_ERROR for one in found)
        assert right > 0.95 * len(found)
    large = [study(rng, np.full(3, 6.0), 0.0)[1] for _ in range(100)]
    assert np.mean(large) < 8  # and it stops there


def test_the_sequential_value_only_falls() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        data = list(rng.standard_normal(24) + 0.5)
        values = [sequential(data[:seeds], LOOKS).holds for seeds in (2, *LOOKS)]
        assert values[0] == 1.0 and values == sorted(values, reverse=True)
        assert values[-1] == pytest.approx(min(1.0, 4 * min(t_test(data[:n])[0] for n in LOOKS)))


def test_a_claim_that_is_true_with_its_size_is_seldom_refuted() -> None:
    """However small the size is, whoever looks; and what is surely less is refuted more often than by its sign."""
    rng = np.random.default_rng(5)
    for size in (0.1, 0.5, 2.0):
        studies = rng.standard_normal((2000, LOOKS[-1])) + size
        assert np.mean([sequential(list(one), LOOKS, size).fails <= 0.05 for one in studies]) < 0.065
    below = rng.standard_normal((300, LOOKS[-1])) - 0.3
    by_sign, by_size = (np.mean([sequential(list(one), LOOKS, g).fails <= 0.05 for one in below]) for g in (0.0, 1.0))
    assert by_size > 0.8 and by_sign < 0.4


def test_a_size_counts_only_where_no_gain_is_seen() -> None:
    gain, loss = [0.3, -0.1, 0.2, 0.1], [-0.3, 0.1, -0.2, -0.1]
    assert sequential(gain, size=9.0) == sequential(gain)
    found = sequential(loss, size=9.0)
    assert found.holds == sequential(loss).holds
    assert found.fails == pytest.approx(stats.ttest_1samp(loss, 9.0, alternative="less").pvalue)
    assert sequential(loss, size=-9.0) == sequential(loss, size=0.0) == sequential(loss)


def test_a_size_is_refuted_while_the_whole_sample_has_no_gain() -> None:
    """The first three differences fall short of the size for sure; the later ones bring the sign back."""
    data = [-0.5, -0.2, 0.3, 0.8, 0.7, 0.9, 0.8, 0.9, 1.0, 0.8, 0.9, 1.0]
    assert sequential(data[:3], LOOKS, size=10.0).fails < 0.01
    for seeds in (6, 12):
        found = sequential(data[:seeds], LOOKS, size=10.0)
        assert found == sequential(data[:seeds], LOOKS) and found.fails > 0.5


def test_one_look_is_the_t_test() -> None:
    data = [1.0, 2.5, 0.5, 3.0]
    expected = stats.ttest_1samp(data, 0.0, alternative="greater").pvalue
    found = sequential(data)
    assert found.holds == pytest.approx(expected) and found.fails == pytest.approx(1 - expected)
    assert sequential([5.0]) == Sides() and sequential([]) == Sides()
    assert sequential([math.inf, 1.0, 2.0]) == Sides()
    assert sequential([2.0, 2.0, 2.0]) == Sides(0.125, 1.0) and sequential([0.0, 0.0]) == Sides()


def test_holm_against_its_table() -> None:
    """0.01, 0.02, 0.03 and 0.04: times 4, 3, 2 and 1, never falling; then both sides."""
    found = holm({name: Sides(value, 1.0) for name, value in zip("dacb", (0.04, 0.01, 0.03, 0.02), strict=True)})
    assert [found[name].holds for name in "abcd"] == pytest.approx([0.08, 0.12, 0.12, 0.12])
    assert all(one.fails == 1.0 for one in found.values()) and holm({}) == {}


def test_several_parts_hold_together_and_fail_alone() -> None:
    assert together([Sides(0.01, 0.9), Sides(0.2, 0.004), Sides(0.03, 0.5)]) == Sides(0.2, pytest.approx(0.012))


def test_an_estimate_with_its_own_interval() -> None:
    """[47, 53] around 50 against 52.51: 1.64 standard errors of 1.53, which is 5 % on one side."""
    found = above(50.0, 47.0, 53.0, 50.0 + 1.644854 * 6 / (2 * 1.959964))
    assert found.holds == pytest.approx(0.05, rel=1e-4) and found.fails == pytest.approx(0.95, rel=1e-4)
    assert above(50.0, math.nan, math.nan, 52.0) == Sides()


def test_equal_differences_decide_no_more_than_their_signs() -> None:
    """Three seeds that agree to the last digit are three coins that fell alike."""
    assert sequential([0.5] * 3).holds == 0.5**3 and sequential([-0.5] * 3).fails == 0.5**3
    assert sequential([0.5] * 3).fails == sequential([0.0] * 3).holds == 1.0
    assert sequential([0.5] * 12).holds < FAMILY_ERROR
