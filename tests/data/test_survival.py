"""Survival from a noisy sum: lengths, the life table without noise, bands and a test that hold both kinds of chance."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from fedpriv.common.errors import OptionError
from fedpriv.data.asked import Asks, answers, contributions
from fedpriv.data.questions import ROWS, Values, parse
from fedpriv.data.survival import CLEAR, Curve, LifeTable, Z, factor, log_rank
from fedpriv.data.table_rows import encode
from fedpriv.data.table_schema import schema_of
from fedpriv.privacy.gaussian_dp import gaussian_mu
from tools import inference_figure
from tools.inference_figure import ALL, ARMS, curves, patients, survival

SCHEMA: dict[str, Any] = {
    "target": {"column": "died", "task": "classification", "classes": ["no", "yes"]},
    "columns": {
        "months": {"range": [0, 120]},
        "delay": {"range": [-5, 120]},
        "arm": {"values": ["old", "new"]},
        "sex": {"values": ["f", "m", "x"]},
        "centre": {"values": ["one"]},
    },
}


def read(*texts: str, **target: Any) -> Any:
    return parse(texts, schema_of(SCHEMA | {"target": SCHEMA["target"] | target}, "test"))


def sums(table: LifeTable, *columns: Any) -> np.ndarray:
    return np.asarray(table.vectors(*map(np.asarray, columns)).sum(axis=0))


def counted(times: np.ndarray, events: np.ndarray, table: LifeTable) -> tuple[np.ndarray, np.ndarray]:
    """The plain twin: (events in each interval, at risk when each begins and at the end)."""
    edges = np.append(0.0, table.times)
    lives = times >= table.until
    at = [((times > low) | ((low == 0) & (times == 0))) & (times <= high) for low, high in pairwise(edges)]
    d = np.array([(one & (events == 1) & ~lives).sum() for one in at])
    gone = np.array([(one & ~lives).sum() for one in at])
    return d, len(times) - np.append(0, np.cumsum(gone))


# --- what a person adds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("intervals", "groups"), [(1, ()), (24, ()), (7, ("a", "b", "c")), (500, ())])
def test_no_person_is_longer_than_one_and_one_is_as_long(intervals: int, groups: tuple[str, ...]) -> None:
    table, rng = LifeTable(10.0, intervals, groups), np.random.default_rng(0)
    times = np.concatenate([[0.0, 10.0, 1e-9, 10 - 1e-9], rng.uniform(-2, 12, 800), [np.nan, np.inf]])
    vectors = table.vectors(times, rng.integers(-1, 3, len(times)), rng.integers(-1, 4, len(times)))
    lengths = np.linalg.norm(vectors, axis=1)
    assert vectors.shape == (len(times), table.size) and np.isfinite(vectors).all()
    assert lengths.max() <= 1 + 1e-12 and not lengths[-2:].any()
    assert np.linalg.norm(table.vectors(np.array([0.0]), np.array([1])), axis=1) == pytest.approx([1.0])
    assert np.linalg.norm(table.vectors(np.array([10.0]), np.array([0])), axis=1) == pytest.approx([1.0])


def test_the_factor_is_a_root_of_the_matrix_of_ones() -> None:
    for size in (1, 2, 25, 501):
        matrix, length = factor(size)
        assert matrix @ matrix == pytest.approx(np.tril(np.ones((size, size))))
        assert length**2 == pytest.approx(sum((math.comb(2 * k, k) / 4**k) ** 2 for k in range(size)))


@pytest.mark.parametrize("intervals", [1, 6, 24])
def test_without_noise_the_counts_are_those_of_the_persons(intervals: int) -> None:
    times, events, _ = patients(500, np.random.default_rng(0))
    times[:5], events[:5] = [0, 6, 6, 0.25, 5.75], [1, 1, 0, 1, 0]  # at ends of intervals
    table = LifeTable(6.0, intervals)
    d, at_risk = counted(times, events, table)
    to_events, to_risk = table.maps
    total = sums(table, times, events)
    assert to_events @ total == pytest.approx(np.cumsum(d)) and to_risk @ total == pytest.approx(at_risk)


def test_who_reaches_the_end_lives_on_and_others_count_for_nothing() -> None:
    table = LifeTable(6.0, 3, ("a", "b"))
    one = table.vectors(np.array([6.0, 6.0, 9.0]), np.array([1, 0, 1]), np.zeros(3, int))
    assert np.array_equal(one[0], one[1]) and np.array_equal(one[0], one[2])
    for times, event, group in ((np.nan, 1, 0), (1.0, -1, 0), (1.0, 2, 0), (1.0, 1, -1), (1.0, 1, 2)):
        assert not table.vectors(np.array([times]), np.array([event]), np.array([group])).any()


# --- the curve ---------------------------------------------------------------------------------------------


def test_without_noise_it_is_the_life_table_and_near_kaplan_meier() -> None:
    times, events, _ = patients(4000, np.random.default_rng(1))
    found = ALL.answer(sums(ALL, times, events), 0.0)
    d, at_risk = counted(times, events, ALL)
    gone = at_risk[:-1] - at_risk[1:] - d
    assert found["values"] == pytest.approx(np.cumprod(1 - d / (at_risk[:-1] - gone / 2)))
    every = np.sort(times[(events == 1) & (times < 6)])
    kaplan_meier = np.cumprod([1 - 1 / (times >= time).sum() for time in every])
    at_ends = np.append(1.0, kaplan_meier)[np.searchsorted(every, ALL.times, side="right")]
    assert found["values"] == pytest.approx(at_ends, abs=0.001)
    greenwood = np.sqrt(np.cumsum(d / (at_risk[:-1] * (at_risk[:-1] - d)))) * found["values"]
    assert (found["high"] - found["low"]) / (2 * Z) == pytest.approx(greenwood, rel=0.05)
    assert found["remarks"][0] == "about 4,000 rows (+-0)" and found["remarks"][1].startswith("median 5.25 (5 to")


@pytest.mark.parametrize(("together", "misses"), [(1, 1e-12), (3, 0.001)])
def test_whole_months_give_the_curve_of_kaplan_meier(together: int, misses: float) -> None:
    """together: months in an interval. Who is censored in a month is at risk in all of it."""
    rng = np.random.default_rng(2)
    died, gone = (np.ceil(rng.exponential(1 / rate, 20_000)) for rate in (0.02, 0.03))
    times, events = np.minimum(np.minimum(died, gone), 24), (died <= gone) & (np.minimum(died, gone) < 24)
    table = LifeTable(24.0, 24 // together, step=1.0)
    months = np.arange(1, 25)
    kaplan_meier = np.cumprod([1 - (events & (times == month)).sum() / (times >= month).sum() for month in months])
    wanted = kaplan_meier[together - 1 :: together]
    found = table.answer(sums(table, times, events.astype(int)), 0.0)
    assert np.abs(found["values"] - wanted).max() <= misses
    life_table = replace(table, step=None)
    assert np.abs(life_table.answer(sums(table, times, events.astype(int)), 0.0)["values"] - wanted).max() > 2.5 * max(
        misses, 0.001
    )
    assert ((found["low"] <= np.exp(-0.02 * table.times)) & (np.exp(-0.02 * table.times) <= found["high"]))[:-1].all()
    columns = SCHEMA["columns"] | {"months": {"range": [0, 120], "step": 1}}
    (asked,) = parse(("survival:months:died:24:8",), schema_of(SCHEMA | {"columns": columns}, "test"))
    assert (
        asked.read.__self__ == LifeTable(24.0, 8, step=1.0) and read("survival:months:died:24:8")[0].read != asked.read
    )


def test_the_noise_of_the_counts_is_as_it_says() -> None:
    rng, std = np.random.default_rng(2), 3.0
    curve = Curve.of(ALL, sums(ALL, *patients(5000, rng)[:2]), std)
    draws = rng.normal(0, std, (20_000, ALL.size))
    to_events, to_risk = ALL.maps
    d = np.diff(draws @ to_events.T, axis=1, prepend=0.0)
    at_risk = draws @ to_risk.T
    for own, other in ((curve.events_noise, d), (curve.risk_noise, (at_risk[:, :-1] + at_risk[:, 1:] + d) / 2)):
        assert np.linalg.norm(own, axis=1) == pytest.approx(other.std(axis=0), rel=0.03)
    assert curve.rows[1] == pytest.approx(at_risk[:, 0].std(), rel=0.03)


@pytest.mark.parametrize(("rows", "noises"), [(686, 1), (686, 5), (3000, 5)])
def test_bands_hold_the_truth_of_the_law_and_the_test_errs_as_it_says(rows: int, noises: int) -> None:
    """300 draws: 95 % within what these can tell."""
    held, _, clear, tests = curves(rows, 1.0, noises, 300)
    said = clear.mean(axis=0) > 0.99
    assert (held.mean(axis=0)[said] > 0.90).all() and held.mean() < 0.99
    assert 0.01 <= (tests[:, 0] < 0.05).mean() <= 0.08 and (tests[:, 1] < 0.05).mean() > 0.8


def test_a_band_without_the_noise_would_not_hold() -> None:
    """The same totals read as exact."""
    rng, std, true, held = np.random.default_rng(3), math.sqrt(5) / gaussian_mu(1.0, 1e-4), survival(ALL.times), []
    for _ in range(150):
        total = sums(ALL, *patients(686, rng)[:2]) + rng.normal(0, std, ALL.size)
        found = ALL.answer(total, 0.0)
        held.append((found["low"] <= true) & (true <= found["high"]))
    assert np.mean(held) < 0.8


def test_five_year_survival_of_a_trial_is_within_two_points() -> None:
    """Of the rows, 686 patients, secure sum, epsilon 1: the noise alone."""
    rng, std = np.random.default_rng(4), 1 / gaussian_mu(1.0, 1e-4)
    total = sums(ALL, *patients(686, rng)[:2])
    exact, place = ALL.answer(total, 0.0)["values"], int(np.searchsorted(ALL.times, 5.0))
    draws = [ALL.answer(total + rng.normal(0, std, ALL.size), std)["values"][place] for _ in range(200)]
    assert np.mean(np.abs(np.array(draws) - exact[place])) < 0.016


def test_rows_of_one_person_do_not_narrow_a_band() -> None:
    times, events, group = patients(800, np.random.default_rng(5))
    four = [np.repeat(one, 4) for one in (times, events, group)]
    once, wide = ALL.answer(sums(ALL, times, events), 0.0), ALL.answer(sums(ALL, *four[:2]), 0.0, 4)
    assert wide["low"] == pytest.approx(once["low"], abs=1e-9) and wide["high"] == pytest.approx(once["high"], abs=1e-9)
    p = [
        ARMS.answer(sums(ARMS, *one), 0.0, spread)["remarks"][-1]
        for one, spread in (((times, events, group), 1), (four, 4))
    ]
    assert p[0] == p[1]


# --- the log-rank test ---------------------------------------------------------------------------------------


def test_without_noise_it_is_the_log_rank_test_of_grouped_times() -> None:
    """The plain twin, over intervals, three groups."""
    rng, table = np.random.default_rng(6), LifeTable(6.0, 12, ("a", "b", "c"))
    times, events, _ = patients(900, rng)
    group = rng.integers(0, 3, 900)
    total = sums(table, times, events, group).reshape(3, -1)
    found = log_rank([Curve.of(table, part, 0.0) for part in total])
    score, variance = np.zeros(3), np.zeros((3, 3))
    counts = [counted(times[group == g], events[group == g], table) for g in range(3)]
    for interval in range(12):
        d = np.array([one[0][interval] for one in counts], float)
        y = np.array([(one[1][interval] + one[1][interval + 1] + one[0][interval]) / 2 for one in counts])
        score += d - d.sum() * y / y.sum()
        variance += d.sum() * (np.diag(y / y.sum()) - np.outer(y, y) / y.sum() ** 2)
    expected = score[:2] @ np.linalg.solve(variance[:2, :2], score[:2])
    assert found == pytest.approx((expected, stats.chi2.sf(expected, 2)))


def test_the_noise_in_the_variance_is_what_the_noise_does_to_the_score() -> None:
    """Groups of one law, many persons: of draws of the noise alone the statistic is chi-squared."""
    rng, std = np.random.default_rng(7), 60.0
    total = sums(ARMS, *patients(60_000, rng))
    parts = (2, -1)
    found = [
        log_rank([Curve.of(ARMS, one, std) for one in (total + rng.normal(0, std, ARMS.size)).reshape(parts)])[0]
        for _ in range(300)
    ]
    exact = log_rank([Curve.of(ARMS, one, 0.0) for one in total.reshape(parts)])[0]
    assert exact < 4 and 0.5 < np.mean(found) < 1.6
    naive = [
        log_rank([Curve.of(ARMS, one, 0.0) for one in (total + rng.normal(0, std, ARMS.size)).reshape(parts)])[1] < 0.05
        for _ in range(100)
    ]
    assert np.mean(naive) > 0.15


def test_the_figures_tool_runs(capsys: pytest.CaptureFixture[str]) -> None:
    inference_figure.main(["draws=3", "only=survival"])
    assert "| 686 | 1 | secure sum |" in capsys.readouterr().out


# --- what cannot be said -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["no event", "all at once", "nobody", "noise alone", "all at the end"])
def test_tables_without_a_curve_have_an_answer(case: str) -> None:
    rng, std = np.random.default_rng(8), 1 / gaussian_mu(1.0, 1e-4)
    times = {"all at once": np.zeros(400), "all at the end": np.full(400, 6.0)}.get(case, rng.uniform(0, 6, 400))
    events = np.full(400, int(case not in ("no event", "all at the end")))
    total = np.zeros(ALL.size) if case in ("nobody", "noise alone") else sums(ALL, times, events)
    total = total + (rng.normal(0, 50, ALL.size) if case == "noise alone" else rng.normal(0, std, ALL.size))
    found = ALL.answer(total, 50.0 if case == "noise alone" else std)
    assert (found["low"] <= found["values"] + 1e-9).all() and (found["values"] <= found["high"] + 1e-9).all()
    assert (found["low"] >= 0).all() and (found["high"] <= 1).all() and (np.diff(found["values"]) <= 1e-12).all()
    if case in ("no event", "all at the end"):
        assert found["high"][0] > 0.999 and found["low"][0] > 0.9
    elif case == "all at once":
        assert found["high"][0] < 0.3
    else:
        assert "nothing can be said" in found["remarks"][-1] and not found["low"].any()


def test_beyond_the_last_that_are_told_from_the_noise_a_band_says_nothing() -> None:
    rng, std = np.random.default_rng(9), 4.0
    times, events = rng.exponential(1.0, 600).clip(0, 6), np.ones(600, int)
    curve = Curve.of(ALL, sums(ALL, times, events) + rng.normal(0, std, ALL.size), std)
    clear, noise = curve.clear, np.linalg.norm(curve.risk_noise, axis=1)
    assert clear[0] and not clear[-1] and not curve.low[~clear].any()
    assert (curve.risk[clear] >= CLEAR * noise[clear]).all() and curve.low[clear].all()
    assert (np.diff(curve.high) <= 0).all()


def test_a_rare_group_takes_nothing_from_the_others() -> None:
    rng, std = np.random.default_rng(10), 1 / gaussian_mu(1.0, 1e-4)
    table = LifeTable(6.0, groups=("old", "new", "rare"))
    times, events, group = patients(3000, rng, 2.0)
    group[:4] = 2
    total = sums(table, times, events, group) + rng.normal(0, std, table.size)
    found = table.answer(total, std)
    assert found["low"][:24].all() and not found["low"][48:].any()
    assert "rare: too few are at risk" in " ".join(found["remarks"])
    assert "log-rank test: chi-squared" in found["remarks"][-1] and "p < 0.0001" in found["remarks"][-1]


def test_rows_that_can_say_nothing() -> None:
    """When that many are at risk throughout, the noise alone spans 0 to 1 at half of the time."""
    std = 3.0
    least = ALL.needs(std)
    half = Curve.of(ALL, sums(ALL, np.full(1000, 6.0), np.zeros(1000, int)), std)
    spans = 2 * Z * np.linalg.norm(np.cumsum(half.events_noise, axis=0)[11]) / least
    assert spans == pytest.approx(1.0, rel=0.15) and ARMS.needs(std) == pytest.approx(2 * least)


# --- as a question -------------------------------------------------------------------------------------------


def people(number: int) -> Values:
    rng = np.random.default_rng(0)
    months = rng.uniform(0, 120, number)
    columns: Values = {"months": months / 60 - 1, "died": rng.integers(0, 2, number), "arm": rng.integers(0, 2, number)}
    return columns | {ROWS: np.zeros(number)}


@pytest.mark.parametrize("positive", [None, "no"])
def test_the_event_is_the_positive_class(positive: str | None) -> None:
    values = people(2000)
    questions = read("survival:months:died:60:12", **({} if positive is None else {"positive": positive}))
    (found,) = answers(questions, contributions(questions, values, None).sum(axis=0), 0.0)
    months, event = (values["months"] + 1) * 60, values["died"] == (0 if positive == "no" else 1)
    d, at_risk = counted(months.clip(0, 60), event.astype(int), LifeTable(60.0, 12))
    gone = at_risk[:-1] - at_risk[1:] - d
    assert found.values == pytest.approx(np.cumprod(1 - d / (at_risk[:-1] - gone / 2)))
    assert found.names[0] == "at 5" and found.names[-1] == "at 60"


@pytest.mark.parametrize(
    "text", ["survival:months:died:60:24", "survival:months:died:60:60", "hazards:months:died:sex"]
)
def test_who_dies_at_the_end_of_an_interval_dies_in_it(text: str) -> None:
    """As float32 has the month 7.5: of 60 months by 2.5 every third death was counted in the interval behind it."""
    columns = {"months": {"range": [0, 60]}, "died": {"values": ["no", "yes"]}, "sex": {"values": ["f", "m"]}}
    target = {"task": "survival", "time": "months", "event": "died", "until": 60, "classes": ["no", "yes"]}
    of_a_target = {"columns": {"sex": columns["sex"]}, "target": target}
    months = np.arange(1, 61) if text.endswith("60") else np.arange(1, 25) * 2.5
    values = {"months": months / 30 - 1, "died": np.ones(len(months), int), "sex": np.arange(len(months)) % 2}
    table = pa.table({"months": months, "died": ["yes"] * len(months), "sex": [*"fm"] * (len(months) // 2)})
    for schema in (schema_of(one, "test") for one in ({"columns": columns}, of_a_target)):
        questions = parse((text,), schema)
        rows, asks = encode(table, schema, "test"), Asks(("",), questions, schema)
        assert rows.targets is not None
        found = contributions(questions, asks.values(rows.inputs, rows.targets), None)
        assert found == pytest.approx(contributions(questions, values, None), abs=1e-6)


def test_groups_have_curves_of_their_own() -> None:
    values = people(500)
    values["arm"][:100] = 2  # other
    questions = read("survival:months:died:arm")
    (found,) = answers(questions, contributions(questions, values, None).sum(axis=0), 0.0)
    assert len(found.values) == 48 and found.names[24] == "new at 5"
    rows = [(values["arm"] == place).sum() for place in (0, 1)]
    assert (
        found.remarks[0] == f"old: about {rows[0]} rows (+-0)" and f"new: about {rows[1]} rows (+-0)" in found.remarks
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("survival:months", "allowed: survival:TIME:EVENT"),
        ("survival:arm:died", "arm is no column of numbers with a range; these are: months, delay"),
        ("survival:months:months", "months is no column of two categories"),
        ("survival:months:sex", "sex is no column of two categories, the event the second; 3 are listed"),
        ("survival:delay:died", "the range of delay begins at -5; times begin at 0"),
        ("survival:months:died:ward", "ward is neither a column nor a number"),
        ("survival:months:died:months", "months is no column of at least two categories"),
        ("survival:months:died:died", "different columns"),
        ("survival:months:died:centre", "centre is no column of at least two categories"),
        ("survival:months:died:121", "the end 121 must be above 0 and at most 120"),
        ("survival:months:died:0", "the end 0 must be above 0"),
        ("survival:months:died:nan", "the end nan must be above 0"),
        ("survival:months:died:arm:60:0", "0 must be a whole number between 1 and 500"),
        ("survival:months:died:60:12:9", "the end 60 must be"),
    ],
)
def test_a_bad_question_is_refused(text: str, words: str) -> None:
    with pytest.raises(OptionError, match="questions") as caught:
        read(text)
    assert words in str(caught.value)
