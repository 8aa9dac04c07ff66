"""Verdicts on hand-made numbers: signs, intervals, what one seed cannot decide, orderings."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from fedpriv.studies.printed_claims import ordered, printed
from fedpriv.studies.results import Estimate
from fedpriv.studies.study_words import order_words
from fedpriv.studies.verdicts import (
    CANNOT,
    FAILS,
    HOLDS,
    OPEN,
    Kind,
    Values,
    at_least,
    at_most,
    better,
    compared,
    confirmed_by,
    estimate,
    grows,
    ordering,
    paired_difference,
    settle,
    shown,
    similar,
)


def values(label: str, *numbers: float) -> Values:
    return Values(label, dict(enumerate(numbers)), unit="%")


HIGH = values("high", 90.0, 91.0, 92.0)
LOW = values("low", 80.0, 81.1, 81.9)
NOISY = values("noisy", 70.0, 95.0, 85.0)


def test_a_difference_is_taken_seed_by_seed() -> None:
    found = paired_difference(HIGH, LOW)
    # differences 10, 9.9, 10.1: mean 10, standard deviation 0.1, t(2, 0.975) = 4.302653
    assert found.n == 3 and found.mean == pytest.approx(10) and found.std == pytest.approx(0.1)
    assert found.half_width == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    other_seeds = Values("other", {1: 80.0, 7: 10.0})
    assert paired_difference(HIGH, other_seeds).n == 1  # seed 1 is the only one in common


def test_better_knows_the_sign_and_what_is_open() -> None:
    assert better([(HIGH, LOW)]).verdict == HOLDS
    assert better([(LOW, HIGH)]).verdict == FAILS
    assert better([(HIGH, NOISY)]).verdict == OPEN
    assert better([(HIGH, LOW), (HIGH, NOISY)]).verdict == OPEN
    assert better([(HIGH, LOW), (LOW, HIGH), (HIGH, NOISY)]).verdict == FAILS
    one_seed = better([(values("a", 99.0), values("b", 1.0))])
    assert one_seed.verdict == OPEN and "one seed: no interval" in one_seed.words


def test_better_says_whether_the_reported_gain_is_reached() -> None:
    assert "reported +10" in better([(HIGH, LOW)], [10.0]).words
    assert "not reached" not in better([(HIGH, LOW)], [10.0]).words
    assert "reported +16, which is not reached" in better([(HIGH, LOW)], [16.0]).words
    assert "reported +2, which is exceeded" in better([(HIGH, LOW)], [2.0]).words
    undecided = better([(HIGH, NOISY)], [200.0])
    assert undecided.verdict == OPEN and "reported +200, which is not reached" in undecided.words
    difference = better([(HIGH, LOW)]).difference
    assert difference is not None and difference.mean == pytest.approx(10)
    assert better([(HIGH, LOW), (LOW, HIGH)]).difference is None


def test_no_effect_fails_where_it_is_surely_within_what_counts() -> None:
    none = values("none", 81.1, 80.9, 81.2, 80.7), values("rival", 81.0, 81.0, 81.0, 81.0)
    assert better([none]).verdict == OPEN
    found = better([none], margins=[1.0])
    assert found.verdict == FAILS and "within 1, which counts as no effect" in found.words
    assert better([none], margins=[0.1]).verdict == OPEN
    little = values("little", 81.5, 81.4, 81.6, 81.5), none[1]
    found = better([little], margins=[1.0])
    assert found.verdict == HOLDS and "a gain below 1" in found.words
    assert better([(HIGH, LOW), none], margins=[1.0]).verdict == OPEN  # of the second pair nothing counts
    assert better([(HIGH, LOW), none], margins=[1.0, 1.0]).verdict == FAILS


def test_runs_that_learn_or_guess_are_compared_by_the_sign_test() -> None:
    """Of ten seeds the lucky ones differ by fifty points: their mean says little of the next ten."""
    lucky = {seed: 60.0 if seed < 6 else 11.0 for seed in range(10)}
    one = Values("one", {seed: value + 1 for seed, value in lucky.items()}, unit="%", guessing=10.0)
    other = Values("other", dict.fromkeys(range(10), 20.0), unit="%", guessing=10.0)
    assert one.two_kinds and not other.two_kinds
    found = better([(one, other)])
    assert "by the sign test: 6 of 10 runs learn, against 10 of 10" in found.words
    assert found.sides is not None and found.sides.holds == pytest.approx(386 / 1024)
    assert "sign test" not in better([(other, Values("low", dict.fromkeys(range(10), 18.0), unit="%"))]).words


def test_a_comparison_is_a_sentence() -> None:
    def named(one: str, other: str, *more: str) -> str:
        first, second = (Values(label, found.by_seed, unit="%") for label, found in ((one, HIGH), (other, LOW)))
        return compared(first, second, paired_difference(first, second), *more)

    assert named("High", "Low") == "High is 10 points above Low (95 % interval +9.75 to +10.25)"
    assert named("High (σ = 1)", "Low (σ = 1)", "; wanted") == (
        "High is 10 points above Low (σ = 1; 95 % interval +9.75 to +10.25; wanted)"
    )
    assert named("A, big (σ = 1)", "B, small (σ = 2)") == (
        "A, big (σ = 1), is 10 points above B, small (σ = 2): 95 % interval +9.75 to +10.25"
    )
    assert named("by losses, all", "γ = 0").startswith("“by losses, all” is 10 points above γ = 0 (")
    assert named("cpSGD", "DP").startswith("cpSGD is 10 points above DP (")
    below = compared(LOW, HIGH, paired_difference(LOW, HIGH))
    assert below == "“low” is 10 points below “high” (95 % interval -10.25 to -9.75)"
    assert compared(HIGH, HIGH, paired_difference(HIGH, HIGH)).startswith("“high” equals “high”")
    apart = Values("A", {9: 1.0})
    assert compared(apart, HIGH, paired_difference(apart, HIGH)) == "A and “high” have no seed in common"
    assert "A is 1 above B" in compared(*(Values(n, {0: v}) for n, v in (("A", 2.0), ("B", 1.0))), estimate([1.0]))


def test_a_bounds_name_stands_beside_it() -> None:
    found = figure_of("exact", 2.0)
    assert at_most(found, 2.72, "claimed").words == "epsilon: 2, at most 2.72 (claimed)"
    assert at_most(found, 2.72, "claimed (one round)").words == "epsilon: 2, at most 2.72, “claimed (one round)”"


def test_printed_figures_are_set_against_the_tables() -> None:
    found = printed([0.92, 1.49], [2.8, 1.49], 0.005)
    assert found.verdict == FAILS
    assert found.words == "Of the printed figures: +2.8 by the text and +0.92 by the tables; +1.49 and +1.49"


def test_pairs_of_one_claim_fail_together() -> None:
    """One of five is below 0 at 95 %, and at 99 % it is not: by chance alone one of many would be."""
    low = values("low", 89.0, 90.3, 90.5)  # 0.7 to 1.5 below HIGH: mean -1.07, half width 1.0 (95 %), 2.3 (99 %)
    near = [(values("near", 90.2, 90.9, 92.0), HIGH)] * 4
    assert better([(low, HIGH)]).verdict == FAILS
    assert better([(low, HIGH), *near]).verdict == OPEN
    assert better([(LOW, HIGH), *near]).verdict == FAILS  # 10 below: in any company
    far = values("far", 92.1, 93.0, 93.9)  # 1.9 to 2.1 above HIGH
    assert similar([(far, HIGH)], within=1.6).verdict == FAILS
    assert similar([(far, HIGH), *near], within=1.6).verdict == OPEN


def test_what_does_not_learn_decides_nothing() -> None:
    guess, other = (Values(name, dict(enumerate(v)), unit="%", guessing=10.0) for name, v in (
        ("guess", (10.0, 10.1, 10.2)), ("other", (11.0, 11.1, 11.2)),
    ))  # fmt: skip
    found = better([(other, guess)])
    assert found.verdict == CANNOT and "neither learns (guessing gives 10 %)" in found.words
    assert similar([(other, guess)], within=2).verdict == CANNOT
    learns = Values("learns", {0: 60.0, 1: 61.0, 2: 62.0}, unit="%", guessing=10.0)
    empty = better([(learns, guess)])
    assert empty.verdict == CANNOT and "decides nothing: guess guesses (guessing gives" in empty.words
    assert settle({"empty": empty})["empty"].verdict == CANNOT
    between = Values("between", {0: 59.5, 1: 61.2, 2: 61.9}, unit="%", guessing=10.0)
    may_fail = better([(learns, guess), (learns, between)])
    assert may_fail.verdict == OPEN and may_fail.words.endswith(". So it can fail here, and not hold")
    assert "So it can" not in better([(learns, between)]).words + empty.words
    assert better([(learns, guess), (guess, learns)]).verdict == FAILS
    assert better([(guess, learns)]).verdict == FAILS  # the paper's own method guesses where its rival learns
    assert similar([(learns, guess)], within=100).verdict == CANNOT
    order = ordering("column", {"learns": learns, "guess": guess}, {"learns": 99.0, "guess": 98.0})
    assert order is not None and (order.agreeing, order.contradicted, order.open) == (0, 0, 1)
    order = ordering("column", {"learns": learns, "guess": guess}, {"learns": 98.0, "guess": 99.0})
    assert order is not None and (order.agreeing, order.contradicted, order.open) == (0, 1, 0)


def test_claims_are_settled_together() -> None:
    """Of twenty claims one at p = 0.01 is what chance gives; at 0.001 it is more."""
    weak = better([(values("weak", 91.0, 91.9, 93.2), HIGH)])  # +1, 0.9, 1.2: p about 0.007, both sides
    assert weak.verdict == HOLDS and weak.p is not None and 0.005 < weak.p < 0.01
    many = {name: better([(HIGH, NOISY)]) for name in range(19)}
    among = settle({**many, "weak": weak})
    assert among["weak"].verdict == OPEN and among["weak"].p == pytest.approx(20 * weak.p)
    assert settle({0: better([(HIGH, NOISY)]), "weak": weak})["weak"].verdict == HOLDS
    fixed = at_most(figure_of("exact", 2.0), 2.72)  # no chance in it: it counts for nothing
    assert settle({"fixed": fixed, "weak": weak})["fixed"] == fixed
    assert settle({"fixed": fixed, "weak": weak})["weak"].p == weak.p


def test_a_look_costs() -> None:
    """The same three seeds as the first of four looks: four times the p-value; seeds between two looks wait."""
    first, other = (Values(v.label, v.by_seed, unit="%", looks=(3, 6, 12, 24)) for v in (HIGH, LOW))
    once = better([(HIGH, LOW)]).p
    assert once is not None and better([(first, other)]).p == pytest.approx(4 * once)
    five = Values("five", {**HIGH.by_seed, 3: 20.0, 4: 20.0}, looks=(3, 6, 12, 24))
    low = Values("low", {**LOW.by_seed, 3: 80.0, 4: 80.0}, looks=(3, 6, 12, 24))
    assert better([(five, low)]).p == pytest.approx(4 * once)


def test_similar_needs_the_whole_interval() -> None:
    near = values("near", 90.1, 91.0, 92.1)
    assert similar([(HIGH, near)], within=1).verdict == HOLDS
    assert similar([(HIGH, LOW)], within=1).verdict == FAILS
    assert similar([(HIGH, LOW)], within=11).verdict == HOLDS
    assert similar([(HIGH, NOISY)], within=1).verdict == OPEN
    assert similar([(values("a", 1.0), values("b", 1.0))], within=1).verdict == OPEN  # one seed decides nothing


def test_a_printed_size_can_be_met_in_any_setting_and_missed_in_the_papers_alone() -> None:
    near = values("near", 90.1, 91.0, 92.1)
    assert similar([(HIGH, near)], within=1, decided=False).verdict == HOLDS
    missed = similar([(HIGH, LOW)], within=1, decided=False)
    assert missed.verdict == CANNOT and missed.sides is not None and missed.sides.fails == 1
    assert similar([(HIGH, NOISY)], within=1, decided=False).verdict == CANNOT


def test_a_half_width_has_two_digits_too() -> None:
    assert shown(Estimate(n=5, mean=0.0553, std=0.0, half_width=0.0002)) == "0.0553 ± 0.00020 (5 seeds)"
    assert shown(Estimate(n=2, mean=120.0, std=0.0, half_width=12.3)) == "120 ± 12 (2 seeds)"


@pytest.mark.parametrize(
    ("differences", "interval"),
    [
        ((0.001, 0.0012, 0.0014), "+0.00070 to +0.00170"),  # 0.0012 ± 0.00050
        ((3.0, 5.0, 4.0), "+1.5 to +6.5"),  # 4 ± 2.5
        ((10.0, 40.0, 25.0), "-12 to +62"),  # 25 ± 37
        ((2.0, 2.0), "+2.0 to +2.0"),
    ],
)
def test_an_interval_has_two_digits_of_its_half_width(differences: tuple[float, ...], interval: str) -> None:
    one, other = Values("A", dict(enumerate(differences))), Values("B", dict.fromkeys(range(len(differences)), 0.0))
    assert f"95 % interval {interval})" in compared(one, other, paired_difference(one, other))


def figure_of(kind: Kind, *numbers: float, **more: Any) -> Values:
    return Values("epsilon", dict(enumerate(numbers)), kind=kind, **more)


def test_an_exact_figure_is_held_against_the_bound_by_its_largest_value() -> None:
    assert at_most(figure_of("exact", 2.0, 2.7), 2.72).verdict == HOLDS
    assert at_most(figure_of("exact", 2.0, 2.73), 2.72).verdict == FAILS
    infinite = figure_of("exact", math.inf, reasons=("98 % of coordinates are sent without noise",))
    outcome = at_most(infinite, 2.72)
    assert outcome.verdict == FAILS
    assert outcome.words == "epsilon: ∞, more than 2.72. No bound: 98 % of coordinates are sent without noise"
    assert at_most(infinite, math.inf).verdict == HOLDS


def test_a_bound_decides_on_its_side_only() -> None:
    assert at_most(figure_of("upper", 2.0), 2.72).verdict == HOLDS
    above = at_most(figure_of("upper", 20.0), 2.72)
    assert above.verdict == OPEN and "An upper bound: the truth may be less" in above.words
    infinite = at_most(figure_of("upper", math.inf, reasons=("nothing is known",)), 2.72)
    assert infinite.verdict == OPEN and "No bound: nothing is known" in infinite.words
    proved = at_most(figure_of("upper", 20.0), 2.72, decides="It is exact.")
    assert proved.verdict == FAILS and "It is exact." in proved.words
    assert at_most(figure_of("upper", 2.0), 2.72, decides="It is exact.").verdict == HOLDS


def test_an_audit_decides_where_the_auditor_does() -> None:
    """At another scope or delta a larger lower bound contradicts nothing; a smaller one never confirms."""
    assert at_most(figure_of("refuting", 20.0), 2.72).verdict == FAILS
    unlike = at_most(figure_of("lower", 20.0), 2.72)
    assert unlike.verdict == OPEN and "The auditor does not hold this against the claim" in unlike.words
    assert at_most(figure_of("lower", 20.0), 2.72, decides="The claim is read so.").verdict == FAILS
    for kind in ("lower", "refuting"):
        assert at_most(figure_of(kind, 2.0), 2.72, decides="The claim is read so.").verdict == OPEN  # type: ignore[arg-type]


def test_what_a_figure_is_held_against_may_be_a_bound_too() -> None:
    assert at_most(figure_of("exact", 2.0), 2.72, "rival", "upper").verdict == OPEN
    assert at_most(figure_of("upper", 2.0), 2.72, "rival", "upper", "Both are exact.").verdict == HOLDS
    assert at_most(figure_of("exact", 3.0), 2.72, "rival", "upper").verdict == FAILS


def test_an_attacks_accuracy_is_decided_by_its_own_interval() -> None:
    def found(low: float, high: float) -> Values:
        return figure_of("estimate", (low + high) / 2, intervals={0: (low, high)})

    assert at_most(found(50.0, 51.0), 52).verdict == HOLDS
    assert at_most(found(53.0, 54.0), 52).verdict == FAILS
    assert at_most(figure_of("estimate", 51.0), 52).verdict == OPEN  # a record without its interval
    both = at_most(found(51.0, 53.0), 52)
    assert both.verdict == OPEN and "51" in both.words and "53" in both.words


def test_a_level_is_missed_only_in_the_papers_own_setting() -> None:
    assert at_least(HIGH, 88.0, decided=False).verdict == HOLDS  # 91 +- 2.5
    assert at_least(HIGH, 90.5, decided=False).verdict == CANNOT
    assert at_least(HIGH, 99.0, decided=False).verdict == CANNOT
    assert at_least(HIGH, 99.0, decided=True).verdict == FAILS
    assert at_least(HIGH, 90.5, decided=True).verdict == OPEN
    assert at_least(HIGH, 92.0, decided=True).verdict == OPEN


def test_an_ordering_counts_its_pairs() -> None:
    rows = {"high": HIGH, "low": LOW, "noisy": NOISY}
    found = ordering("column", rows, {"high": 99.0, "low": 98.0})
    assert found is not None and found.holds and (found.agreeing, found.contradicted, found.open) == (1, 0, 0)
    found = ordering("column", rows, {"high": 98.0, "low": 99.0})
    assert found is not None and not found.holds and (found.agreeing, found.contradicted, found.open) == (0, 1, 0)
    assert found.reported == ("low", "high") and found.measured == ("high", "low")
    found = ordering("column", rows, {"high": 99.0, "low": 98.0, "noisy": 97.0})
    assert found is not None and not found.holds and (found.agreeing, found.contradicted, found.open) == (1, 0, 2)
    assert "It is not decided: of 3 pairs 1 agree" in order_words(found)
    assert "It does not hold as a whole" in order_words(found.model_copy(update={"contradicted": 1}))
    assert "It holds: " in order_words(found.model_copy(update={"holds": True}))
    lucky = {"high": values("high", 90.0, 91.0), "low": values("low", 89.0, 90.0, 97.0, 98.0)}  # two have no rival
    found = ordering("column", lucky, {"high": 99.0, "low": 98.0})
    assert found is not None and found.measured == ("high", "low")
    assert ordering("column", rows, {"high": 99.0}) is None
    assert ordering("column", rows, {"high": 99.0, "low": 99.0}) is None
    assert ordering("column", {"high": HIGH}, {"high": 99.0, "gone": 98.0}) is None


def test_a_gain_that_grows_is_a_difference_of_differences() -> None:
    """By hand: the gains are 4, 5, 6, 5 and 1, 1, 2, 2; their differences 3, 4, 4, 3."""
    large = values("a", 14.0, 15.0, 16.0, 15.0), values("b", 10.0, 10.0, 10.0, 10.0)
    small = values("c", 11.0, 11.0, 12.0, 12.0), values("d", 10.0, 10.0, 10.0, 10.0)
    found = grows([(large, small)])
    assert found.verdict == HOLDS and found.difference is not None and found.difference.mean == pytest.approx(3.5)
    assert found.sides is not None
    assert found.sides.holds == pytest.approx(stats.ttest_1samp([3, 4, 4, 3], 0, alternative="greater").pvalue)
    assert grows([(small, large)]).verdict == FAILS
    guesses = Values("d", dict.fromkeys(range(4), 10.0), unit="%", guessing=10.0)
    assert grows([(large, (small[0], guesses))]).verdict == CANNOT
    assert grows([(large, small), (large, large)]).verdict == OPEN  # the second has no difference


def test_printed_orders_name_what_is_not_so() -> None:
    rows = [[("a", 3.0), ("b", 2.0), ("c", 1.0)], [("d", 2.0), ("e", 2.0)]]
    found = ordered(rows, equal=True)
    said = "Of 3 comparisons of printed figures 3 are as the text says"
    assert found.verdict == HOLDS and found.words == f"{said} (3 over 2 over 1, 2 over 2)"
    strict = ordered(rows, equal=False)
    assert strict.verdict == FAILS and strict.words.endswith("2 are as the text says; not d 2, e 2")
    assert ordered([[("a", 1.0), ("b", 2.0)]], equal=True).verdict == FAILS


def test_what_a_text_calls_alike_has_no_figure_by_the_text() -> None:
    found = printed([0.2, -0.3], [0.0, 0.0], 1.0)
    assert found.verdict == HOLDS and found.words == "By the printed figures the differences are +0.2, -0.3"
    assert printed([4.33], [0.0], 1.0).words == "By the printed figures the difference is +4.33"
    assert printed([4.33], [0.0], 1.0).verdict == FAILS


def test_many_printed_figures_are_counted() -> None:
    found = printed([0.0] * 9 + [0.2], [0.0] * 10, 0.1)
    assert found.verdict == FAILS and found.words == "Of 10 printed figures 9 are as the text says, within 0.1"
    assert printed([0.0] * 10, [0.0] * 10, 0.1).verdict == HOLDS


def test_a_verdict_of_a_later_rule_needs_fresh_seeds() -> None:
    found = better([(HIGH, LOW)])
    assert found.verdict == HOLDS
    again = confirmed_by(found, found)
    assert again.verdict == HOLDS and "fresh seeds say so as well" in again.words
    other = confirmed_by(found, better([(LOW, HIGH)]))
    assert other.verdict == OPEN and other.blocked and "which fresh seeds do not confirm" in other.words
    none = confirmed_by(found, None)
    assert none.verdict == OPEN and "open until fresh seeds say so as well" in none.words
