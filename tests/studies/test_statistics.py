"""Looking several times, deciding many claims together, and a board's ranks: how often that is wrong, by simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from pytest import approx
from scipy import stats

from fedpriv.studies.statistics import (
    FAMILY_ERROR,
    Contender,
    Contenders,
    Sides,
    below,
    better_at,
    blocks_that_differ,
    both_sides,
    difference,
    duels,
    estimate,
    holm,
    outcome,
    paired,
    ranked,
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
    found = below(50.0, 47.0, 53.0, 50.0 + 1.644854 * 6 / (2 * 1.959964))
    assert found.holds == pytest.approx(0.05, rel=1e-4) and found.fails == pytest.approx(0.95, rel=1e-4)
    assert below(50.0, math.nan, math.nan, 52.0) == Sides()


def test_equal_differences_decide_no_more_than_their_signs() -> None:
    """Three seeds that agree to the last digit are three coins that fell alike."""
    assert sequential([0.5] * 3).holds == 0.5**3 and sequential([-0.5] * 3).fails == 0.5**3
    assert sequential([0.5] * 3).fails == sequential([0.0] * 3).holds == 1.0
    assert sequential([0.5] * 12).holds < FAMILY_ERROR


# --- boards ----------------------------------------------------------------------------------------------


def contender(name: str, values: list[float], idea: str = "paper") -> Contender:
    return Contender(name, idea, dict(enumerate(values)))


def by_name(boards: dict[float, list[Contender]]) -> Contenders:
    return {target: {one.method: one for one in here} for target, here in boards.items()}


def test_the_order_is_by_mean_and_what_no_pair_decides_is_tied() -> None:
    a = contender("a", [80.0, 81.0, 82.0])
    b = contender("b", [84.0, 85.0, 86.0])  # 4 above a with every seed, though their own intervals overlap (± 2.48)
    c = contender("c", [88.0, 80.0, 86.0])  # 84.7: below b by -4 to 5
    found = [(rank, tied, one.method) for rank, tied, one in ranked([a, b, c])]
    assert found == [(1, True, "b"), (2, True, "c"), (3, False, "a")] and ranked([]) == []
    assert estimate(b.accuracies.values()).half_width == approx(4.302653 / 3**0.5)
    same = ranked([contender("x", [50.0, 52.0]), contender("y", [52.0, 50.0])])
    assert [rank for rank, _, _ in same] == [1, 1]
    assert [tied for _, tied, _ in ranked([contender("x", [50.0]), contender("y", [10.0])])] == [True, True]


def test_differences_are_paired_by_seed() -> None:
    """Runs that move together differ beyond doubt although their intervals overlap; and the other way round."""
    low, high = contender("low", [70.0, 80.0, 90.0]), contender("high", [71.0, 81.2, 91.1])
    found = difference(high, low)
    assert found.mean == approx(1.1) and found.n == 3 and found.half_width == approx(4.302653 * 0.1 / 3**0.5)
    assert outcome(found) == "beats" and outcome(difference(low, high)) == "loses to"
    assert outcome(estimate(paired({0: 1.0, 1: 3.0}, {0: 3.0, 1: 1.0}))) == "not decided"
    assert outcome(estimate(paired({0: 9.0}, {0: 1.0}))) == "not decided"  # one seed has no interval
    assert paired({0: 1.0, 1: 5.0}, {1: 2.0, 2: 7.0}) == [3.0]


def test_ideas_meet_the_plain_methods_and_nobody_else() -> None:
    plain = contender("plain", [80.0, 80.2, 80.4], "plain")
    worse = contender("worse", [60.0, 60.2, 60.4], "plain")
    guesser = contender("guesser", [10.0, 10.2, 10.4], "plain")
    rival = contender("rival", [99.0, 99.1, 99.2], "rival")
    idea, bad = contender("idea", [85.0, 85.1, 85.5]), contender("bad", [70.0, 70.1, 70.5])
    everybody = by_name({8.0: [worse, plain, guesser, rival, idea, bad]})
    found = {(one.method, one.against): one.outcome for one in duels(everybody, 10.0)}
    assert found == {
        ("idea", "plain"): "beats", ("bad", "plain"): "loses to", ("idea", "worse"): "beats", ("bad", "worse"): "beats",
    }  # fmt: skip
    own = replace(contender("own", [85.0, 85.1, 85.5]), against=("rival", "absent"))
    assert {(one.method, one.against) for one in duels(by_name({8.0: [plain, rival, own]}), 10.0)} == {("own", "rival")}


def test_whoever_is_behind_has_its_runs_at_smaller_epsilons_too() -> None:
    """A badly searched opponent is no win, and a badly searched idea no loss: what keeps 1 keeps 8, not the reverse."""
    good, bad = contender("plain", [80.0, 80.2, 80.4], "plain"), contender("plain", [70.0, 70.2, 70.4], "plain")
    idea, poor = contender("idea", [79.0, 79.1, 79.5]), contender("idea", [50.0, 50.1, 50.2])
    at_1, at_8 = duels(by_name({1.0: [good, idea], 8.0: [bad, idea]}), 10.0)
    assert at_1.outcome == "loses to" and at_8.outcome == "not decided"
    assert at_8.against_at == 1.0 and at_8.p == 1.0 and at_8.difference == at_1.difference
    larger = duels(by_name({1.0: [bad, idea], 8.0: [good, idea]}), 10.0)
    assert [one.against_at for one in larger] == [None, None] and larger[0].outcome == "beats"
    (_, helped) = duels(by_name({1.0: [bad, idea], 8.0: [good, poor]}), 10.0)
    assert helped.method_at == 1.0 and helped.outcome == "loses to" and helped.difference.mean == approx(-1.0)


def test_no_win_is_due_to_runs_that_happen_to_spread_less() -> None:
    """Not told apart at its own target, told apart from its tight runs at a smaller one: that is no win."""
    tight, wide = contender("plain", [89.7, 89.75, 89.8, 89.75], "plain"), contender("plain", [90, 90, 90, 86], "plain")
    idea = contender("idea", [90.0, 90.05, 90.1, 90.05])
    assert outcome(difference(idea, tight)) == "beats"
    (_, at_8) = duels(by_name({1.0: [tight, idea], 8.0: [wide, idea]}), 10.0)
    assert at_8.outcome == "not decided" and at_8.p == two_sided(paired(idea.accuracies, wide.accuracies))


def test_a_search_chose_badly_only_for_sure() -> None:
    tight, wide = contender("a", [89.7, 89.75, 89.8, 89.75]), contender("a", [90, 90, 90, 86])
    worse = contender("a", [80.0, 80.1, 80.0, 80.1])
    found = by_name({1.0: [tight], 2.0: [wide], 8.0: [worse]})
    assert better_at(wide, 2.0, found) is None and better_at(tight, 1.0, found) is None
    assert better_at(worse, 8.0, found) == 1.0 and better_at(worse, 0.5, found) is None


def test_of_equal_methods_few_are_ever_told_apart() -> None:
    """Five targets, eight seeds, everybody alike: any verdict at all in one board of twenty."""
    rng = np.random.default_rng(0)
    wrong, boards = 0, 40
    for _ in range(boards):
        board = {
            float(target): [contender(name, list(rng.normal(50.0, 1.0, 8)), idea) for name, idea in
                            (("plain", "plain"), ("other", "plain"), ("idea", "paper"))]
            for target in range(1, 6)
        }  # fmt: skip
        wrong += any(one.outcome != "not decided" for one in duels(by_name(board), 10.0))
    assert wrong <= 0.12 * boards


def test_a_boards_duels_are_decided_together() -> None:
    """p = 0.03 decides one duel; of two at p = 0.03 none."""
    plain, near = contender("plain", [80.0] * 4, "plain"), contender("near", [80.6, 81.4, 81.0, 80.4])
    (one,) = duels(by_name({8.0: [plain, near]}), 10.0)
    assert one.p == one.adjusted == two_sided(paired(near.accuracies, plain.accuracies)) and one.outcome == "beats"
    both = duels(by_name({1.0: [plain, near], 8.0: [plain, near]}), 10.0)
    assert [duel.adjusted for duel in both] == [approx(2 * (one.p or 0))] * 2
    assert {duel.outcome for duel in both} == {"not decided"}


# --- blocks of seeds ---------------------------------------------------------------------------------------

#: By hand: means 1 and 5, 1 within each block; F = 24 on (1, 4) degrees of freedom, t = 4.899, p = 0.008.
APART = {0: 0.0, 1: 1.0, 2: 2.0, 10: 4.0, 11: 5.0, 12: 6.0}
BLOCKS = {seed: "early" if seed < 10 else "late" for seed in APART}


def test_blocks_that_differ_are_told_and_others_are_not() -> None:
    """Half widths by hand: t(2, 0.975) = 4.302653, over the root of 3."""
    words = "; blocks of seeds differ (p = 0.008): 1.0 ± 2.5 on seeds 0 to 2, 5.0 ± 2.5 on seeds 10 to 12"
    assert blocks_that_differ(APART, BLOCKS) == words
    alone = {**BLOCKS, 11: "later", 12: "latest"}  # one seed is no block
    near = {0: 0.0, 1: 1.0, 10: 1.2, 11: 2.3}  # t = 1.68, p = 0.23
    equal = {0: 1.0, 1: 1.0, 10: 2.0, 11: 2.0}  # no spread to compare with
    for differences, blocks in ((APART, {}), (APART, alone), (near, BLOCKS), (equal, BLOCKS)):
        assert blocks_that_differ(differences, blocks) == ""


@pytest.mark.parametrize("count", [2, 3, 4])
def test_gains_that_are_equal_but_for_rounding_prove_no_more_than_equal_ones(count: int) -> None:
    """The same gain of k pictures in 360: its differences of accuracies have a spread of 1e-17, and p was 1e-15."""
    rng = np.random.default_rng(0)
    gains = [[(one + k) / 360 - one / 360 for one in rng.integers(250, 340, count)] for k in range(1, 8) for _ in "ab"]
    assert any(len(set(own)) > 1 for own in gains)
    assert [two_sided(own) for own in gains] == [2 * 0.5**count] * len(gains)
