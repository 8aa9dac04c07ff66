"""Looking several times and deciding many claims together: how often that is wrong, by simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedpriv.studies.evidence import (
    FAMILY_ERROR,
    Sides,
    above,
    both_sides,
    holm,
    sequential,
    t_test,
    together,
    two_sided,
)

LOOKS = (3, 6, 12, 24)


def drawn(seed: int, studies: int, means: np.ndarray, shared: float) -> np.ndarray:
    """Differences [studies, claims, seeds] with these means (in standard deviations). The claims of a study share a
    part of their luck.
    """
    rng = np.random.default_rng(seed)
    luck = rng.standard_normal((studies, 1, LOOKS[-1])) * math.sqrt(shared)
    return means[:, None] + luck + rng.standard_normal((studies, len(means), LOOKS[-1])) * math.sqrt(1 - shared)


def ended(data: np.ndarray) -> list[tuple[dict[int, Sides], int]]:
    """Of each study, whose looks are added until every claim is decided: adjusted sides, and the seeds used."""
    looked = {seeds: sequential(data[..., :seeds], LOOKS) for seeds in LOOKS}
    found = []
    for study, claims in enumerate(data):
        for seeds in LOOKS:
            one = looked[seeds]
            sides = {n: Sides(one.holds[study, n], one.fails[study, n]) for n in range(len(claims))}  # type: ignore[index]
            end = both_sides(sides)
            if all(min(claim.holds, claim.fails) <= FAMILY_ERROR for claim in end.values()):
                break
        found.append((end, seeds))
    return found


@pytest.mark.parametrize("shared", [0.0, 0.7])
def test_a_study_without_any_effect_is_seldom_wrong(shared: float) -> None:
    """Six claims whose difference is nothing: in at most 5 % of studies is any of them said to hold or to fail."""
    studies = 1500
    found = ended(drawn(int(10 * shared), studies, np.zeros(6), shared))
    wrong = sum(any(min(one.holds, one.fails) <= FAMILY_ERROR for one in end.values()) for end, _ in found)
    assert stats.binomtest(wrong, studies, FAMILY_ERROR, alternative="greater").pvalue > 0.001
    assert wrong > 0.005 * studies  # it is a bound that is used, not a test that never decides


def test_without_the_correction_it_would_be_wrong_often() -> None:
    """The same claims looked at four times at 95 %, each for itself: what the two corrections are for."""
    data = drawn(7, 400, np.zeros(6), 0.0)
    least = np.min([t_test(data[..., :seeds]) for seeds in LOOKS], axis=(0, 1))
    assert np.mean((least <= 0.025).any(1)) > 0.3


def test_a_real_effect_is_found_early() -> None:
    """Three claims that hold by two standard deviations, one that fails by as much, two without effect."""
    means = np.array([2.0, 2.0, 2.0, -2.0, 0.0, 0.0])
    found = [end for end, _ in ended(drawn(3, 150, means, 0.0))]
    for claim, mean in enumerate(means[:4]):
        right = sum((one[claim].holds if mean > 0 else one[claim].fails) <= FAMILY_ERROR for one in found)
        assert right > 0.95 * len(found)
    assert np.mean([seeds for _, seeds in ended(drawn(4, 100, np.full(3, 6.0), 0.0))]) < 8  # and it stops there


def test_the_sequential_value_only_falls() -> None:
    data = drawn(0, 50, np.array([0.5]), 0.0)[:, 0]
    values = np.array([sequential(data[:, :seeds], LOOKS).holds * np.ones(50) for seeds in (2, *LOOKS)])
    assert (values[0] == 1.0).all() and (np.diff(values, axis=0) <= 0).all()
    assert values[-1] == pytest.approx(np.minimum(1.0, 4 * np.min([t_test(data[:, :n])[0] for n in LOOKS], axis=0)))


@pytest.mark.parametrize("by_sign", [False, True])
def test_an_effect_that_is_there_is_seldom_called_none(by_sign: bool) -> None:
    """However small M is, whoever looks; and what is less is refuted more often than by its sign."""
    for effect in (0.1, 0.5, 2.0):
        studies = drawn(5, 2000, np.array([effect]), 0.0)[:, 0]
        assert np.mean(np.asarray(sequential(studies, LOOKS, effect, by_sign).fails) <= 0.05) < 0.065
    none = drawn(6, 300, np.array([-0.1]), 0.0)[:, 0]
    by_zero, by_effect = (np.mean(np.asarray(sequential(none, LOOKS, m, by_sign).fails) <= 0.05) for m in (0.0, 2.0))
    assert by_effect > 0.8 and by_zero < 0.4


def test_no_effect_is_two_one_sided_tests_and_a_sure_sign_counts_alone() -> None:
    nothing = [0.3, -0.1, -0.2, 0.1, -0.2]
    ends = [stats.ttest_1samp(nothing, end, alternative=side).pvalue for end, side in ((1, "less"), (-1, "greater"))]
    assert sequential(nothing, margin=1.0).fails == pytest.approx(max(ends))
    assert sequential(nothing, margin=1.0).holds == sequential(nothing).holds
    loss = [value - 9.0 for value in nothing]
    assert sequential(loss, margin=1.0) == sequential(loss)
    little = [value + 0.5 for value in nothing]  # surely a gain, surely below 1
    assert sequential(little, margin=1.0) == sequential(little) and sequential(little).holds < 0.05


def test_the_sign_test_is_a_binomial() -> None:
    """Five of six above 0: 7 of 64; a tie is left out; size does not matter."""
    for data in ([1.0, 2.0, 3.0, 99.0, 1.0, -50.0], [1.0, 2.0, 3.0, 99.0, 1.0, -50.0, 0.0]):
        assert sequential(data, by_sign=True) == Sides(pytest.approx(7 / 64), pytest.approx(63 / 64))
    assert sequential([0.0, 0.0], by_sign=True) == Sides()
    lucky = [60.0, 55.0, 0.1, 0.2, -0.1, 58.0, -0.2, 0.1]
    assert sequential(lucky, by_sign=True).holds > sequential(lucky).holds


def test_one_look_is_the_t_test() -> None:
    data = [1.0, 2.5, 0.5, 3.0]
    expected = stats.ttest_1samp(data, 0.0, alternative="greater").pvalue
    found = sequential(data)
    assert found.holds == pytest.approx(expected) and found.fails == pytest.approx(1 - expected)
    assert sequential([5.0]) == Sides() and sequential([]) == Sides()
    assert sequential([math.inf, 1.0, 2.0]) == Sides()
    assert sequential([2.0, 2.0, 2.0]) == Sides(0.125, 1.0) and sequential([0.0, 0.0]) == Sides()


def test_holm_against_its_table() -> None:
    """0.01, 0.02, 0.03 and 0.04: times 4, 3, 2 and 1, never falling; then both sides. What is missing counts as 1."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, None, 0.001]) == [1.0, None, pytest.approx(0.003)] and holm([]) == []
    found = both_sides({name: Sides(value, 1.0) for name, value in zip("dacb", (0.04, 0.01, 0.03, 0.02), strict=True)})
    assert [found[name].holds for name in "abcd"] == pytest.approx([0.08, 0.12, 0.12, 0.12])
    assert all(one.fails == 1.0 for one in found.values()) and both_sides({}) == {}


def test_two_sided_values() -> None:
    values = [0.3, 0.1, 0.7, -0.2, 0.5]
    assert two_sided(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert two_sided([1.0]) is None and two_sided([1.0, 1.0]) == 0.5 and two_sided([0.0, 0.0]) == 1.0


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
