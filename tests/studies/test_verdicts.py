"""Verdicts: one function of a claim's row and of the values of its cells, on numbers made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from made_up import PAPER
from scipy import stats

from fedpriv.studies import papers
from fedpriv.studies.papers import Paper, Place
from fedpriv.studies.results import Estimate
from fedpriv.studies.verdicts import (
    CANNOT,
    FAILS,
    HOLDS,
    OPEN,
    Kind,
    Outcome,
    Values,
    at_least,
    at_most,
    better,
    decide,
    grows,
    ordering,
    outcomes,
    settle,
    shown,
    similar,
)


def values(label: str, *numbers: float, **more: Any) -> Values:
    return Values(label, dict(enumerate(numbers)), unit="%", **more)


HIGH = values("high", 90.0, 91.0, 92.0)
LOW = values("low", 80.0, 81.1, 81.9)
LOWEST = values("lowest", 70.0, 71.2, 71.8)
NOISY = values("noisy", 70.0, 95.0, 85.0)
NEAR = values("near", 90.1, 91.0, 92.1)
FAR = values("far", 92.1, 93.0, 93.9)  # 1.9 to 2.1 above HIGH
FLAT = values("flat", *[81.0] * 4)
NOTHING = values("nothing", 81.1, 80.9, 81.2, 80.7)  # no effect against FLAT
LITTLE = values("little", 81.5, 81.4, 81.6, 81.5)  # a sure gain of half a point over FLAT
GUESS = values("guess", 10.0, 10.1, 10.2, guessing=10.0)
LEARNS = values("learns", 60.0, 61.0, 62.0, guessing=10.0)
BETWEEN = values("between", 59.5, 61.2, 61.9, guessing=10.0)


# --- what is measured over seeds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "margins", "verdict", "words"),
    [
        ([(HIGH, LOW)], [], HOLDS, "high − low: +10 points [+9.75, +10.25]"),
        ([(LOW, HIGH)], [], FAILS, "low − high: -10 points [-10.25, -9.75]"),
        ([(HIGH, NOISY)], [], OPEN, ""),
        ([(HIGH, LOW), (HIGH, NOISY)], [], OPEN, ""),
        ([(HIGH, LOW), (LOW, HIGH), (HIGH, NOISY)], [], FAILS, ""),
        ([(values("a", 99.0), values("b", 1.0))], [], OPEN, "one seed: no interval"),
        ([(HIGH, HIGH)], [], OPEN, "+0 points"),
        ([(Values("a", {9: 1.0}), HIGH)], [], OPEN, "no seed in common"),
        # M: surely within it is no effect; a sure sign counts alone.
        ([(NOTHING, FLAT)], [], OPEN, ""),
        ([(NOTHING, FLAT)], [1.0], FAILS, "within 1: no effect"),
        ([(NOTHING, FLAT)], [0.1], OPEN, ""),
        ([(LITTLE, FLAT)], [1.0], HOLDS, "a gain below 1"),
        ([(HIGH, LOW), (NOTHING, FLAT)], [1.0], OPEN, ""),  # of the second pair nothing counts
        ([(HIGH, LOW), (NOTHING, FLAT)], [1.0, 1.0], FAILS, ""),
        # Whoever guesses decides nothing as a rival, and fails as the claim's own.
        ([(LEARNS, GUESS)], [], CANNOT, "decides nothing: guess guesses (guessing gives 10 %)"),
        ([(values("other", 11.0, 11.1, 11.2, guessing=10.0), GUESS)], [], CANNOT, "neither learns"),
        ([(LEARNS, GUESS), (LEARNS, BETWEEN)], [], OPEN, "So it can fail here, and not hold"),
        ([(LEARNS, GUESS), (GUESS, LEARNS)], [], FAILS, ""),
        ([(GUESS, LEARNS)], [], FAILS, ""),
    ],
)
def test_better(pairs: Sequence[tuple[Values, Values]], margins: Sequence[float], verdict: str, words: str) -> None:
    found = better(pairs, margins=margins)
    assert found.verdict == verdict and words in found.words
    assert settle({0: found})[0].verdict == verdict
    assert (found.difference is not None) is (len(pairs) == 1)


@pytest.mark.parametrize(
    ("pair", "within", "level", "verdict"),
    [
        ((HIGH, NEAR), 1, True, HOLDS),
        ((HIGH, LOW), 1, True, FAILS),
        ((HIGH, LOW), 11, True, HOLDS),
        ((HIGH, NOISY), 1, True, OPEN),
        ((values("a", 1.0), values("b", 1.0)), 1, True, OPEN),  # one seed decides nothing
        ((LEARNS, GUESS), 100, True, CANNOT),
        # A printed size can be met in any setting, and missed in the paper's alone.
        ((HIGH, NEAR), 1, False, HOLDS),
        ((HIGH, LOW), 1, False, CANNOT),
        ((HIGH, NOISY), 1, False, CANNOT),
    ],
)
def test_similar(pair: tuple[Values, Values], within: float, level: bool, verdict: str) -> None:
    assert similar([pair], within, level).verdict == verdict


@pytest.mark.parametrize(
    ("bound", "level", "verdict"),
    [(88.0, False, HOLDS), (90.5, False, CANNOT), (99.0, False, CANNOT), (99.0, True, FAILS), (90.5, True, OPEN)],
)
def test_a_level_is_missed_only_in_the_papers_own_setting(bound: float, level: bool, verdict: str) -> None:
    """91 +- 2.5, and a point of slack: of accuracies alone."""
    assert at_least(HIGH, bound, level).verdict == verdict
    reached = Values("other", {0: 90.0, 1: 90.001, 2: 89.999})
    assert at_least(reached, 90.5, True).verdict == FAILS  # no accuracy: no slack


def test_pairs_of_one_claim_fail_together() -> None:
    """One of five is below 0 at 95 %, and at 99 % it is not: by chance alone one of many would be."""
    low = values("low", 89.0, 90.3, 90.5)  # 0.7 to 1.5 below HIGH: mean -1.07, half width 1.0 (95 %), 2.3 (99 %)
    near = [(values("near", 90.2, 90.9, 92.0), HIGH)] * 4
    assert better([(low, HIGH)]).verdict == FAILS and better([(low, HIGH), *near]).verdict == OPEN
    assert better([(LOW, HIGH), *near]).verdict == FAILS  # 10 below: in any company
    assert similar([(FAR, HIGH)], within=1.6).verdict == FAILS
    assert similar([(FAR, HIGH), *near], within=1.6).verdict == OPEN


def test_reported_gains_are_quoted() -> None:
    assert "reported +10" in better([(HIGH, LOW)], [10.0]).words
    for size, words in ((10.0, "reported +10"), (16.0, "reported +16 (not reached)"), (2.0, "reported +2 (exceeded)")):
        assert words in better([(HIGH, LOW)], [size]).words
    assert "reported" not in better([(HIGH, LOW), (HIGH, LOW)], [1.0]).words.partition(". ")[2]


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


def test_runs_that_learn_or_guess_are_compared_by_the_sign_test() -> None:
    """Of ten seeds the lucky ones differ by fifty points: their mean says little of the next ten."""
    lucky = {seed: 60.0 if seed < 6 else 11.0 for seed in range(10)}
    one = Values("one", {seed: value + 1 for seed, value in lucky.items()}, unit="%", guessing=10.0)
    other = Values("other", dict.fromkeys(range(10), 20.0), unit="%", guessing=10.0)
    assert one.two_kinds and not other.two_kinds
    found = better([(one, other)])
    assert "by the sign test: 6 of 10 against 10 of 10 runs learn" in found.words
    assert found.sides is not None and found.sides.holds == pytest.approx(386 / 1024)
    assert "sign test" not in better([(other, Values("low", dict.fromkeys(range(10), 18.0), unit="%"))]).words


def test_a_look_costs() -> None:
    """The same three seeds as the first of four looks: four times the p-value; seeds between two looks wait."""
    looks = (3, 6, 12, 24)
    first, other = (Values(v.row, v.by_seed, unit="%", looks=looks) for v in (HIGH, LOW))
    once = better([(HIGH, LOW)]).p
    assert once is not None and better([(first, other)]).p == pytest.approx(4 * once)
    five = Values("five", {**HIGH.by_seed, 3: 20.0, 4: 20.0}, looks=looks)
    low = Values("low", {**LOW.by_seed, 3: 80.0, 4: 80.0}, looks=looks)
    assert better([(five, low)]).p == pytest.approx(4 * once)


def test_claims_are_settled_together() -> None:
    """Of twenty claims one at p = 0.01 is what chance gives; at 0.001 it is more."""
    weak = better([(values("weak", 91.0, 91.9, 93.2), HIGH)])  # +1, 0.9, 1.2: p about 0.007, both sides
    assert weak.verdict == HOLDS and weak.p is not None and 0.005 < weak.p < 0.01
    many = {name: better([(HIGH, NOISY)]) for name in range(19)}
    among = settle({**many, "weak": weak})
    assert among["weak"].verdict == OPEN and among["weak"].p == pytest.approx(20 * weak.p)
    fixed = at_most(figure_of("exact", 2.0), 2.72)  # no chance in it: it counts for nothing
    assert settle({"fixed": fixed, "weak": weak}) == {"fixed": fixed, "weak": settle({0: weak})[0]}


def test_labels_and_widths() -> None:
    one, other = values("A (x)", 14.0, 15.0, column="σ = 1"), values("B", 10.0, 10.0, column="σ = 1")
    assert better([(one, other)]).words.startswith("A (x) − B (σ = 1): +4.5 points [-1.9, +10.9]")
    assert better([(one, values("B", 10.0, 10.0))]).words.startswith("A (x, σ = 1) − B: ")
    assert shown(Estimate(n=5, mean=0.0553, std=0.0, half_width=0.0002)) == "0.0553 ± 0.00020 (5 seeds)"
    assert shown(Estimate(n=2, mean=120.0, std=0.0, half_width=12.3), "%", seeds=False) == "120.0 ± 12 %"


# --- what is computed, audited or attacked -----------------------------------------------------------------


def figure_of(kind: Kind, *numbers: float, **more: Any) -> Values:
    return Values("epsilon", dict(enumerate(numbers)), kind=kind, **more)


def attack(low: float, high: float) -> Values:
    return figure_of("estimate", (low + high) / 2, intervals={0: (low, high)})


UPPER = Values("rival", {0: 2.72, 1: 9.0}, kind="upper")


@pytest.mark.parametrize(
    ("value", "bound", "decides", "verdict", "words"),
    [
        (figure_of("exact", 2.0, 2.7), 2.72, "", HOLDS, "epsilon: 2.7, at most 2.72"),
        (figure_of("exact", 2.0, 2.73), 2.72, "", FAILS, "more than 2.72"),
        (figure_of("exact", math.inf, reasons=("no noise",)), 2.72, "", FAILS, "∞, more than 2.72. No bound: no noise"),
        (figure_of("exact", math.inf), math.inf, "", HOLDS, ""),
        # A bound decides on its side only.
        (figure_of("upper", 2.0), 2.72, "", HOLDS, ""),
        (figure_of("upper", 20.0), 2.72, "", OPEN, "An upper bound: the truth may be less"),
        (figure_of("upper", 20.0), 2.72, "It is exact.", FAILS, "It is exact."),
        (figure_of("refuting", 20.0), 2.72, "", FAILS, ""),
        (figure_of("lower", 20.0), 2.72, "", OPEN, "The auditor does not hold this against the claim"),
        (figure_of("lower", 20.0), 2.72, "The claim is read so.", FAILS, ""),
        (figure_of("lower", 2.0), 2.72, "The claim is read so.", OPEN, ""),
        (figure_of("refuting", 2.0), 2.72, "The claim is read so.", OPEN, ""),
        # Another cell is a bound by its least value, and may be one too.
        (figure_of("exact", 2.0), UPPER, "", OPEN, "at most 2.72 (rival)"),
        (figure_of("upper", 2.0), UPPER, "Both are exact.", HOLDS, ""),
        (figure_of("exact", 3.0), UPPER, "", FAILS, ""),
        # An attack's accuracy is decided by its own interval.
        (attack(50.0, 51.0), 52, "", HOLDS, "[50, 51]"),
        (attack(53.0, 54.0), 52, "", FAILS, ""),
        (attack(51.0, 53.0), 52, "", OPEN, "The interval holds both"),
        (figure_of("estimate", 51.0), 52, "", OPEN, ""),  # a record without its interval
    ],
)
def test_at_most(value: Values, bound: float | Values, decides: str, verdict: str, words: str) -> None:
    found = at_most(value, bound, decides)
    assert found.verdict == verdict and words in found.words


def test_an_ordering_counts_its_pairs() -> None:
    rows = {"high": HIGH, "low": LOW, "noisy": NOISY, "learns": LEARNS, "guess": GUESS}

    def counts(**reported: float) -> tuple[int, int, int] | None:
        found = ordering("column", rows, reported)
        return found and (found.agreeing, found.contradicted, found.open)

    assert counts(high=99.0, low=98.0) == (1, 0, 0) and counts(high=98.0, low=99.0) == (0, 1, 0)
    assert counts(high=99.0, low=98.0, noisy=97.0) == (1, 0, 2)
    assert counts(learns=99.0, guess=98.0) == (0, 0, 1) and counts(learns=98.0, guess=99.0) == (0, 1, 0)
    assert counts(high=99.0) is None and counts(high=99.0, low=99.0) is None and counts(high=99.0, gone=98.0) is None


# --- rows of a paper ---------------------------------------------------------------------------------------


class Cells:
    """Values by cell, without runs."""

    scale = "small"

    def __init__(self, tests: Mapping[str, Any], cells: Mapping[str, Values], **tables: Any) -> None:
        rows = {name: {"label": name.upper()} for name in ("a", "b")}
        table = {"title": "T", "source": "s", "rows": rows, "columns": {"c": {"label": "c"}}}
        table["reported"] = {"a": {"c": 3.0}, "b": {"c": 1.0}}
        made = {name: {**table, **more} for name, more in {"t": {}, **tables}.items()}
        claims = {
            name: {"claim": name, "source": "s", **(test if "test" in test else {"test": test})}
            for name, test in tests.items()
        }
        self.paper = Paper.model_validate({**PAPER, "tables": made, "figures": {}, "claims": claims})
        self.cells, self.missing = cells, dict[Place, str]()

    def values(self, place: Place) -> Values:
        return self.cells["/".join(place[:2])]

    def why_missing(self, place: Place) -> str | None:
        return None if "/".join(place[:2]) in self.cells else "nothing was measured"

    @property
    def outcomes(self) -> dict[str, Outcome]:
        return outcomes(self)  # type: ignore[arg-type]


PAIR = [["t/a/c", "t/b/c"]]
A, B = "t/a", "t/b"


def test_an_effect_is_what_the_paper_prints_and_elsewhere_at_most_a_point() -> None:
    """NOTHING within the printed 3 of FLAT; in another setting within a point; other quantities need a printed one."""
    better_by_3 = {"kind": "better", "pairs": PAIR, "reported": [3.0]}
    half = {A: values("a", 82.1, 81.9, 82.2, 81.7), B: FLAT}  # +1
    two = {A: values("a", 83.1, 80.9, 83.2, 80.7), B: FLAT}  # +1 ± 2.2: within 3.5, not within 1
    assert Cells({"x": {**better_by_3, "reported": [3.5]}}, two).outcomes["x"].verdict == FAILS
    assert Cells({"x": {**better_by_3, "reported": [3.5]}}, two, t={"differs": "ours"}).outcomes["x"].verdict == OPEN
    assert (
        Cells({"x": better_by_3}, {A: NOTHING, B: FLAT}, t={"open": {"noise": "ours"}}).outcomes["x"].verdict == FAILS
    )
    smallest = {"kind": "better", "pairs": PAIR, "smallest": 0.01}
    assert Cells({"x": smallest}, {A: NOTHING, B: FLAT}).outcomes["x"].verdict == OPEN
    plain = [Values(one.row, one.by_seed) for one in (NOTHING, FLAT)]
    assert Cells({"x": {"kind": "better", "pairs": PAIR}}, {A: plain[0], B: plain[1]}).outcomes["x"].verdict == OPEN
    assert Cells({"x": {"kind": "better", "pairs": PAIR}}, half).outcomes["x"].verdict == HOLDS


@pytest.mark.parametrize(
    ("more", "verdict"), [({}, FAILS), ({"differs": "x"}, CANNOT), ({"open": {"clients": "x"}}, FAILS)]
)
def test_whose_setting_it_is_decides_a_level(more: dict[str, Any], verdict: str) -> None:
    """Open clients move no level."""
    tests = {"level": {"kind": "at_least", "cell": "t/a/c", "bound": 99.0}}
    tests["size"] = {"kind": "similar", "pairs": PAIR, "within": 1.0, "size": True}
    found = Cells(tests, {A: HIGH, B: LOW}, t=more).outcomes
    assert found["level"].verdict == found["size"].verdict == verdict


def test_printed_figures_are_set_against_the_tables() -> None:
    gain = [[["t/a/c"], ["t/b/c"]]]
    tests = {
        "right": {"kind": "printed", "gains": gain, "says": [2.0]},
        "wrong": {"kind": "printed", "gains": gain, "says": [2.8]},
        "alike": {"kind": "printed", "gains": gain, "says": [0.0], "within": 1.0},
        "order": {"kind": "ordered", "rows": [["t/a/c", "t/b/c"]]},
        "reverse": {"kind": "ordered", "rows": [["t/b/c", "t/a/c"]]},
        "equal": {"kind": "ordered", "rows": [["t/a/c", "t/a/c"]], "equal": True},
        "strict": {"kind": "ordered", "rows": [["t/a/c", "t/a/c"]]},
        "gaps": {"kind": "ordered", "gaps": [[gain[0], [["t/b/c"], ["t/a/c"]]]]},
        "cannot": {"kind": "cannot", "why": "it is not told"},
    }
    found = Cells(tests, {}).outcomes
    verdicts = {name: one.verdict for name, one in found.items()}
    assert {name for name, one in verdicts.items() if one == HOLDS} == {"right", "order", "equal", "gaps"}
    assert {name for name, one in verdicts.items() if one == FAILS} == {"wrong", "alike", "reverse", "strict"}
    assert found["wrong"].words == "By the text and by the tables: +2.8 and +2" and found["cannot"].verdict == CANNOT
    assert found["reverse"].words.endswith("0 of 1; not B 1, A 3") and "3 over 1" in found["order"].words
    assert not any(one.estimated for one in found.values())


def test_a_claim_whose_runs_failed_stays_in_the_family() -> None:
    """A run that was never to be made does not; a computed one never does."""
    tests = {"weak": {"kind": "better", "pairs": PAIR}, "gone": {"kind": "better", "pairs": [["u/a/c", "u/b/c"]]}}
    study = Cells(tests, {A: values("weak", 91.0, 91.9, 93.2), B: HIGH}, u={})
    alone = decide(study.paper.claims["weak"], study).p  # type: ignore[arg-type]
    found = study.outcomes
    assert alone is not None and found["weak"].p == pytest.approx(2 * alone)
    assert found["gone"].verdict == CANNOT and found["gone"].words == "Nothing was measured"
    study.missing["u", "a", "c"] = "at scale=literal only"
    assert study.outcomes["weak"].p == pytest.approx(alone)


def test_a_verdict_of_a_later_rule_needs_fresh_seeds() -> None:
    row = {"test": {"kind": "better", "pairs": PAIR}, "confirm": {"t": "fresh"}}
    tests = {
        "same": {**row, "before": "holds"},
        "moved": {**row, "before": "not decided"},
        "late": {**row, "before": "holds", "late": True},
        "alone": {**row, "before": "does not hold", "confirm": {}},
        "new": {**row, "before": "new"},
    }
    seeds = {A: HIGH, B: LOW}

    def verdicts(fresh: dict[str, Values]) -> dict[str, str]:
        found = Cells(tests, seeds | fresh, fresh={"first_seed": 100}).outcomes
        return {name: one.verdict for name, one in found.items()}

    held = dict.fromkeys(tests, HOLDS) | {"alone": OPEN}
    assert verdicts({"fresh/a": HIGH, "fresh/b": LOW}) == held
    late = dict.fromkeys(tests, OPEN) | {"same": HOLDS}
    assert verdicts({"fresh/a": LOW, "fresh/b": HIGH}) == late == verdicts({})
    fresh_alone = {"x": {"test": {"kind": "better", "pairs": [["f/a/c", "f/b/c"]]}, "before": "not decided"}}
    found = Cells(fresh_alone, {"f/a": HIGH, "f/b": LOW}, f={"first_seed": 100}).outcomes["x"]
    assert found.verdict == HOLDS  # made after the rule


def test_fresh_seeds_of_one_pair_can_confirm_that_a_claim_fails_and_no_more() -> None:
    row = {"before": "not decided", "confirm": {"t": "fresh"}, "confirm_pair": 0}
    test = {"kind": "better", "pairs": [PAIR[0], ["u/a/c", "u/b/c"]], "reported": [1.0, 2.0]}
    claims = {"x": {**row, "test": test}}

    def found(first: Values, **fresh: Values) -> Outcome:
        seeds = {A: first, B: LOW, "u/a": HIGH, "u/b": LOW} | {f"fresh/{name}": one for name, one in fresh.items()}
        return Cells(claims, seeds, fresh={"first_seed": 100}, u={}).outcomes["x"]

    failed = found(LOWEST, a=LOWEST, b=LOW)
    assert failed.verdict == FAILS and "reported +1" in failed.words.split("fresh seeds say so")[1]
    assert found(LOWEST, a=HIGH, b=LOW).verdict == OPEN == found(HIGH, a=HIGH, b=LOW).verdict
    with pytest.raises(ValueError, match="confirm_pair 2"):
        Cells({"x": claims["x"] | {"confirm_pair": 2}}, {}, fresh={}, u={})


def test_an_effect_is_asked_for_in_each_pairs_own_unit() -> None:
    """A point of accuracy is the least effect there; a length has none."""
    accuracies, lengths = values("a", 91.3, 91.4, 91.5), replace(values("b", 0.3, 0.4, 0.5), unit="")
    claims = {"x": {"test": {"kind": "better", "pairs": [["u/a/c", "u/b/c"], ["t/a/c", "t/b/c"]]}}}
    seeds = {"u/a": lengths, "u/b": replace(values("d", 0.1, 0.2, 0.3), unit=""), A: accuracies}
    words = Cells(claims, seeds | {B: values("e", 91.2, 91.3, 91.4)}, u={}).outcomes["x"].words
    assert words.count("a gain below 1") == 1


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((HIGH, LOW), (LOW, HIGH), HOLDS),
        ((LOW, HIGH), (HIGH, LOW), HOLDS),
        ((LOW, HIGH), (LOW, HIGH), FAILS),
        ((LOW, HIGH), (NOISY, HIGH), OPEN),
        ((NOISY, HIGH), (NOISY, LOW), OPEN),
        ((LEARNS, GUESS), (LOW, HIGH), OPEN),  # of the first nothing is known
        ((LEARNS, GUESS), (HIGH, LOW), HOLDS),
    ],
)
def test_of_two_readings_the_better_one_counts(
    first: tuple[Values, Values], second: tuple[Values, Values], verdict: str
) -> None:
    test, other = ({"kind": "better", "pairs": [[f"{table}/a/c", f"{table}/b/c"]]} for table in "tu")
    cells = dict(zip(("t/a", "t/b", "u/a", "u/b"), (*first, *second), strict=True))
    study = Cells({"x": {"test": test, "otherwise": other}}, cells, u={})
    assert study.outcomes["x"].verdict == verdict and "By the other reading: " in study.outcomes["x"].words
    alone = {
        name: decide(study.paper.claims["x"].model_copy(update={"test": one, "otherwise": None}), study).p
        for name, one in (("t", study.paper.claims["x"].test), ("u", study.paper.claims["x"].otherwise))
    }
    if verdict == HOLDS:  # two chances
        assert study.outcomes["x"].p == pytest.approx(2 * min(p for p in alone.values() if p is not None))


def test_a_second_reading_of_what_needs_no_seeds_is_refused() -> None:
    exact, pairs = {"kind": "at_most", "cell": "t/a/c", "bound": 1}, {"kind": "better", "pairs": PAIR}
    for test, other in ((exact, pairs), (pairs, exact)):
        with pytest.raises(ValueError, match="otherwise: readings over seeds are compared, not at_most"):
            Cells({"x": {"test": test, "otherwise": other}}, {})


def test_the_mean_of_cells_is_compared_seed_by_seed() -> None:
    pairs = [[["t/a/c", "t/b/c"], "u/a/c"]]
    cells = {A: HIGH, B: LOW, "u/a": values("between", 84.0, 85.2, 86.1), "u/b": FLAT}
    found = Cells({"x": {"test": {"kind": "better", "pairs": pairs}}}, cells, u={}).outcomes["x"]
    assert found.difference is not None and found.difference.mean == pytest.approx(0.9, abs=0.05)
    assert found.words.startswith("high (mean of 2) − ")


def test_findings_beyond_the_paper_are_in_no_family() -> None:
    weak = {"test": {"kind": "better", "pairs": PAIR}}
    cells = {A: values("weak", 91.0, 91.9, 93.2), B: HIGH}
    alone = Cells({"weak": weak}, cells).outcomes["weak"].p
    beside = Cells({"weak": weak, **{f"b{n}": {**weak, "beyond": "ours"} for n in range(9)}}, cells).outcomes
    assert beside["weak"].p == alone and beside["b0"].verdict == HOLDS


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ({"kind": "better", "pairs": PAIR, "bound": 1}, "better needs pairs: bound"),
        ({"kind": "at_most", "cell": "t/a/c"}, "at_most needs bound, cell: bound"),
        ({"kind": "printed", "gains": [[["t/a/c"], ["t/b/c"]]], "says": [1, 2]}, "as many figures as gains"),
        ({"kind": "better", "pairs": [["t/a/c", "t/x/c"]]}, "claims.x: no such cell: t/x/c"),
        ({"kind": "better", "pairs": [["x/a/c", "x/b/c"]]}, "claims.x: no such cell: x/a/c"),
        ({"kind": "better", "pairs": [["t/a", "t/b"]]}, "t/a: a cell is table/row/column"),
        ({"kind": "better", "pairs": ["t/a/c", "t/b/c"]}, "better: pairs are lists of two"),
        ({"kind": "better", "pairs": []}, "better: pairs is empty"),
        ({"kind": "grows", "pairs": PAIR}, "grows: pairs are lists of two pairs"),
        ({"kind": "better", "pairs": PAIR, "reported": [1, 2]}, "reported: at most one figure for each pair"),
        ({"kind": "at_least", "cell": "t/a/c", "bound": "t/b/c"}, "at_least: bound must be a number"),
        ({"kind": "cannot", "why": ""}, "cannot: why is empty"),
        ({"kind": "ordered"}, "ordered needs rows or gaps"),
    ],
)
def test_a_row_that_cannot_be_decided_is_refused(test: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Cells({"x": test}, {})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"confirm": {"t": "old"}}, "confirm: no fresh seeds in old"),
        ({"confirm": {"typo": "fresh"}}, "confirm: its tests have no table typo"),
        ({"confirm": {"t": "x"}}, "no such cell: x/a/c"),
        ({"before": None, "late": True}, "before: is missing"),
        ({"quote": ["a", "b"], "line": 3}, "quote: one part for each line, not 2 for 1"),
    ],
)
def test_no_seeds_of_the_time_before_a_rule_confirm_its_verdict(more: dict[str, Any], words: str) -> None:
    claim = {"test": {"kind": "better", "pairs": PAIR}, "before": "not decided"} | more
    with pytest.raises(ValueError, match=words):
        Cells({"x": claim}, {}, old={}, fresh={"first_seed": 100})


#: Claims that a bound above them refutes, and by what. Whoever adds one says why in the file (`decides`).
REFUTING = {
    "fedcad": {"epsilon_03", "epsilon_05", "epsilon_fmnist", "same_cost", "audited"},
    "adpfl": {"private", "private_run", "constant"},
    "coqfl": {"private_run"},
    "fedags": {"private", "theorem2", "dpfedavg_private", "dpfedavg_private_01", "dpfedavg_private_02"},
    "agn": {"epsilon_literal", "theorem1"},
}


@pytest.mark.parametrize("paper", sorted(REFUTING))
def test_a_bound_refutes_only_with_a_reason(paper: str) -> None:
    claims = papers.load(paper).claims
    assert {name for name, claim in claims.items() if claim.test.decides} == REFUTING[paper]


@pytest.mark.parametrize(
    ("test", "table", "kind"),
    [
        ({"kind": "printed", "gains": [[["t/a/c"], ["t/b/c"]]], "says": [1]}, {}, "tables"),
        ({"kind": "ordered", "rows": [["t/a/c", "t/b/c"]]}, {}, "tables"),
        ({"kind": "better", "pairs": PAIR}, {}, "training"),
        ({"kind": "at_most", "cell": "t/a/c", "bound": 1}, {"kind": "attack", "measure": "figure:x"}, "training"),
        ({"kind": "better", "pairs": PAIR}, {"kind": "dme"}, "mathematics"),
        ({"kind": "at_most", "cell": "t/a/c", "bound": 1}, {"kind": "plan"}, "mathematics"),
        ({"kind": "at_most", "cell": "t/a/c", "bound": 1}, {"kind": "audit"}, "mathematics"),
        ({"kind": "at_most", "cell": "t/a/c", "bound": 1}, {"kind": "computed"}, "mathematics"),
        (
            {"kind": "at_most", "cell": "t/a/c", "bound": 1},
            {"kind": "computed", "dataset": "mnist"},
            "training",
        ),  # from pictures
        ({"kind": "at_most", "cell": "t/a/c", "bound": 1}, {"measure": "bytes_up"}, "mathematics"),
        ({"kind": "at_most", "cell": "t/a/c", "bound": 1}, {"measure": "verified_epsilon"}, "mathematics"),
        ({"kind": "cannot", "why": "hours"}, {}, "training"),
        ({"kind": "cannot", "why": "no size", "beside": ["t/a/c"]}, {"kind": "plan"}, "mathematics"),
    ],
)
def test_the_kind_of_a_claim_follows_from_its_test_and_tables(test: Any, table: Any, kind: str) -> None:
    beside = test.pop("beside", [])
    found = Cells({"x": {"test": test, "beside": beside}}, {}, t=table).paper
    assert found.kind_of(found.claims["x"]) == kind
