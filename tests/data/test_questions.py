"""Questions about a table: what a unit adds is never longer than 1, and answers without noise are the true ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm

from fedpriv.common.errors import OptionError
from fedpriv.data.asked import KEPT, Answer, Asks, answers, contributions
from fedpriv.data.questions import ALL_EDGES, MOST_BINS, OWN, ROWS, Bins, Values, parse, root, weights
from fedpriv.data.table_rows import encode
from fedpriv.data.table_schema import schema_of
from tools import quantile_figure

SCHEMA = schema_of(
    {
        "target": {"column": "ill", "task": "classification", "classes": ["no", "yes"]},
        "columns": {
            "age": {"range": [0, 100]},
            "weight": {"range": [-5, 20]},
            "sex": {"values": ["f", "m"]},
            "note": {"text": "hashed"},
        },
    },
    "test",
)
ALL = (
    "count", "count:sex:f", "sum:weight", "mean:age", "variance:age", "histogram:sex", "histogram:age:4",
    "quantiles:age:0.1:0.5:0.9", "covariance:age:weight", "table:sex:ill", "top:sex:2", "linear:weight:age:sex:ill",
    "survival:age:ill:sex", "logistic:ill:weight:sex", "poisson:age:weight",
)  # fmt: skip


def rows(n: int, seed: int = 0) -> tuple[Values, dict[str, np.ndarray]]:
    """A table as a schema scales it, and the same numbers as people wrote them."""
    rng = np.random.default_rng(seed)
    raw = {"age": rng.uniform(20, 80, n), "weight": rng.normal(5, 2, n).clip(-5, 20)}
    raw |= {"sex": rng.integers(0, 3, n), "ill": rng.integers(0, 2, n)}
    values = raw | {"age": raw["age"] / 50 - 1, "weight": (raw["weight"] + 5) / 12.5 - 1, ROWS: np.zeros(n)}
    return values, raw


def worst(n: int = 64) -> Values:
    """Every corner of the ranges."""
    rng = np.random.default_rng(1)
    corners = {name: rng.choice([-1.0, 1.0], n) for name in ("age", "weight")}
    return corners | {"sex": rng.integers(-1, 3, n), "ill": rng.integers(0, 2, n), ROWS: np.zeros(n)}


@pytest.mark.parametrize("texts", [*((text,) for text in ALL), ALL])
def test_a_units_vector_is_no_longer_than_one_and_can_be_as_long(texts: tuple[str, ...]) -> None:
    questions = parse(texts, SCHEMA)
    assert sum(weights(questions) ** 2) == pytest.approx(1)
    lengths = np.linalg.norm(contributions(questions, worst(), None), axis=1)
    assert lengths.max() <= 1 + 1e-12
    if len(texts) == 1:
        assert lengths.max() > 0.999  # nothing is given away
    unit = np.random.default_rng(2).integers(0, 9, 64)
    for cap in (None, 1, 3, 100):
        assert np.linalg.norm(contributions(questions, worst(), unit, cap), axis=1).max() <= 1 + 1e-12


def test_answers_without_noise_are_the_true_ones() -> None:
    values, raw = rows(3000)
    questions = parse(ALL, SCHEMA)
    found = {one.question: one.values for one in answers(questions, contributions(questions, values, None).sum(0), 0.0)}
    age, weight = raw["age"], raw["weight"]
    assert found["count"] == pytest.approx([3000])
    assert found["count:sex:f"] == pytest.approx([(raw["sex"] == 0).sum()])
    assert found["sum:weight"] == pytest.approx([weight.sum()])
    assert found["mean:age"] == pytest.approx([age.mean()])
    assert found["variance:age"] == pytest.approx([age.var()])
    assert found["histogram:sex"] == pytest.approx(np.bincount(raw["sex"], minlength=3))
    assert found["top:sex:2"] == pytest.approx(np.bincount(raw["sex"], minlength=3))
    assert found["histogram:age:4"] == pytest.approx(np.histogram(age, 4, (0, 100))[0])
    assert found["covariance:age:weight"] == pytest.approx(np.cov(age, weight, bias=True)[[0, 0, 1], [0, 1, 1]])
    known = raw["sex"] < 2
    design = np.stack([np.ones(3000), age, raw["sex"], raw["ill"]], axis=1)[known]
    assert found["linear:weight:age:sex:ill"] == pytest.approx(np.linalg.lstsq(design, weight[known])[0])
    assert found["table:sex:ill"] == pytest.approx(np.histogram2d(raw["sex"], raw["ill"], (3, 2))[0].ravel())
    assert found["quantiles:age:0.1:0.5:0.9"] == pytest.approx(np.quantile(age, (0.1, 0.5, 0.9)), abs=100 / 256)


@pytest.mark.parametrize(
    ("low", "high", "bins"), [(0, 100, 20), (18, 98, 10), (0, 250, 50), (-0.3, 0.6, 9), (-90, 90, 6)]
)
def test_a_number_at_an_edge_is_in_the_bin_that_begins_there(low: float, high: float, bins: int) -> None:
    """As float32 has it: 35 of 0 to 100 is a little less, and everybody of 35 was counted among the younger."""
    schema = schema_of({"columns": {"age": {"range": [low, high]}}}, "test")
    questions = parse((f"histogram:age:{bins}",), schema)
    table = pa.table({"age": np.linspace(low, high, bins + 1)[:-1].round(9)})
    rows = encode(table, schema, "test")
    asks = Asks(questions[0].names, questions, schema)
    counts = asks.total(rows.inputs, np.zeros(bins, np.float32), None)
    assert counts == pytest.approx(np.ones(bins), rel=1e-3)


def test_rows_with_a_missing_number_count_for_nothing() -> None:
    values, raw = rows(500)
    gone = np.arange(500) % 3 == 0
    values["age"] = np.where(gone, np.nan, values["age"])
    questions = parse(("mean:age", "quantiles:age:0.5", "histogram:age:2"), SCHEMA)
    found = answers(questions, contributions(questions, values, None).sum(0), 0.0)
    assert found[0].values == pytest.approx([raw["age"][~gone].mean()])
    assert found[1].values == pytest.approx([np.median(raw["age"][~gone])], abs=0.5)
    assert found[2].values.sum() == pytest.approx((~gone).sum())


def test_a_persons_many_rows_weigh_no_more() -> None:
    values, raw = rows(40)
    twice = {name: np.repeat(column, 2) for name, column in values.items()}
    person = np.arange(40)
    questions = parse(("count", "mean:age", "sum:weight"), SCHEMA)
    once = contributions(questions, values, person)
    assert np.allclose(contributions(questions, twice, np.repeat(person, 2)), once)
    capped = contributions(questions, twice, np.repeat(person, 2), rows_per_unit=2)
    found = answers(questions, capped.sum(0), 0.0, rows_per_unit=2)
    assert found[0].values == pytest.approx([80]) and found[2].values == pytest.approx([2 * raw["weight"].sum()])
    assert np.allclose(contributions(questions, twice, np.repeat(person, 2), rows_per_unit=1), once)


@pytest.mark.parametrize("std", [1.0, 5.0])
def test_intervals_hold_what_the_noise_did(std: float) -> None:
    """At least 90 % of the time over all answers, and not always: 95 % is what they say, of each by itself."""
    values, _ = rows(2000)
    texts = ("count", "mean:age", "variance:age", "histogram:sex", "quantiles:age:0.25:0.5:0.75")
    questions = parse(texts, SCHEMA)
    total, rng, trials = contributions(questions, values, None).sum(0), np.random.default_rng(3), 60
    true = answers(questions, total, 0.0)
    held: dict[str, list[float]] = {text: [] for text in texts}
    for trial in range(trials):
        for one, exact in zip(
            answers(questions, total + rng.normal(0, std, len(total)), std, seed=trial), true, strict=True
        ):
            held[one.question].append(float(((one.low <= exact.values) & (exact.values <= one.high)).mean()))
    for text, shares in held.items():
        assert 0.85 <= np.mean(shares) <= 1.0, (text, np.mean(shares))
    assert np.mean([np.mean(shares) for shares in held.values()]) < 0.995


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ((), "nothing is asked"),
        (("median:age",), "there is no such question; kinds: count"),
        (
            ("mean:agee",),
            "the schema has no column agee that is read; allowed: age, weight, sex, note, ill (did you mean age?)",
        ),
        (("mean",), "allowed: mean:COLUMN"),
        (("mean:sex",), "sex is no column of numbers with a range; these are: age, weight"),
        (("histogram:note",), "note is no column of numbers"),
        (("mean:height",), "the schema has no column height"),
        (("count:sex:d",), "sex has no value d; allowed: f, m, other"),
        (("quantiles:age:1.5",), "a share must be a number between 0 and 1"),
        (("quantiles:age:half",), "a share must be a number"),
        (("histogram:age:0",), "must be a whole number between 1"),
        (("histogram:age:9999999",), "must be a whole number between 1"),
        (("covariance:age:age",), "different columns of numbers"),
        (("table:sex",), "different columns of categories"),
        (("linear:age",), "allowed: linear:COLUMN:COLUMN..., different columns of numbers or categories"),
        (("linear:sex:age",), "sex is no column of numbers"),
        (("logistic:age:weight",), "age is no column of two categories, the event the second; 0 are listed"),
        (("poisson:weight:age",), "the range of weight begins at -5; counts begin at 0"),
        (("poisson:sex:age",), "sex is no column of numbers"),
        (("linear:age:note",), "note is no column of categories"),
        (("linear:age:weight:weight",), "different columns"),
        (("count", "count"), "is asked twice"),
        (("histogram:age:40000", "histogram:weight:40000"), "numbers in all"),
    ],
)
def test_a_bad_question_is_refused(texts: tuple[str, ...], words: str) -> None:
    with pytest.raises(OptionError, match="questions") as caught:
        parse(texts, SCHEMA)
    assert words in str(caught.value)


def test_one_question_costs_what_the_exact_gaussian_costs() -> None:
    """The error of a sum, a count and a histogram is the noise on a vector whose sensitivity is the question's own."""
    std = 3.0
    for text, sensitivity in (("sum:weight", 20.0), ("count", 1.0), ("histogram:sex", 1.0)):
        questions = parse((text,), SCHEMA)
        size = questions[0].size
        draws = np.random.default_rng(0).normal(0, std, (4000, size))
        errors = np.array([answers(questions, draw, 0.0)[0].values for draw in draws[:400]])
        assert np.std(errors) == pytest.approx(std * sensitivity, rel=0.1)
    assert math.isclose(weights(parse(("count",), SCHEMA))[0], 1.0)


# --- Quantiles: what a row adds is no longer than 1 whatever the edges are, and intervals hold the r


SHARES = (0.01, 0.5, 0.9)


def scaled(values: Any, low: float, high: float) -> np.ndarray:
    """As a run has them: float32 in [-1, 1]."""
    found = 2 * (np.asarray(values, float).clip(low, high) - low) / (high - low) - 1
    return np.asarray(found.astype(np.float32).astype(np.float64))


def asked(
    values: Any, low: float, high: float, shares: str, step: float | None = None, std: float = 0.0, rounds: int = 2
) -> Answer:
    """The answer of a run of some rounds on one column."""
    column = {"range": [low, high]} | ({"step": step} if step else {})
    target = {"column": "y", "task": "classification", "classes": ["a", "b"]}
    (question,) = parse([f"quantiles:x:{shares}"], schema_of({"target": target, "columns": {"x": column}}, "test"))
    table: Values = {"x": scaled(values, low, high), ROWS: np.zeros(len(values))}
    asks = Asks(("n",) * question.size * rounds, (question,), sections=rounds, noise=std / KEPT)
    rng, theta = np.random.default_rng(5), np.zeros((rounds, question.size))
    for number in range(1, rounds + 1):
        (now,) = asks.at_round(number, theta.ravel())
        theta[number - 1] = now.vectors(table).sum(axis=0) * KEPT + rng.normal(0, std, question.size)
    last = asks.at_round(rounds, theta.ravel())
    return answers(last, asks.rounds(theta), np.full(rounds, std / KEPT))[0]


# --- what a row adds ---------------------------------------------------------------------------------------


def test_the_root_of_the_matrix_of_ones() -> None:
    for size in (1, 2, 7, MOST_BINS):
        matrix, length = root(size)
        assert matrix[1:] @ matrix[1:] == pytest.approx(np.tril(np.ones((size, size)))) and not matrix[0].any()
        # |f|^2 by the central binomials: f_k = binom(2k, k) / 4^k
        squares = sum((math.comb(2 * k, k) / 4**k) ** 2 for k in range(size))
        assert length == pytest.approx(math.sqrt(squares), rel=1e-12)
        assert np.linalg.norm(matrix, axis=0).max() <= length * (1 + 1e-12)


@pytest.mark.parametrize("step", [None, 1.0, 0.25])
def test_no_theta_makes_a_rows_vector_longer_than_one(step: float | None) -> None:
    """Brute force: thetas that no run gives, every row, and what a row more changes."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.uniform(-1, 1, 300), [-1, 1, 0, np.nan, 1e30, -1e30]])
    for trial in range(60):
        bins = Bins.of_range(-50, 500, step, SHARES)
        for _ in range(3):
            size = rng.choice([1e-3, 1.0, 1e5, 1e300])
            total = rng.choice([rng.normal(0, 1, bins.size) * size, np.zeros(bins.size)])
            total[rng.integers(0, bins.size, 3)] = rng.choice([0, np.nan, np.inf, -np.inf], 3)
            bins = bins.zoomed(total, float(rng.choice([0, 1, 1e4])))
            assert np.isfinite(bins.edges).all() and (np.diff(bins.edges) > 0).all()
            assert 2 <= len(bins.edges) <= bins.size + 1, trial
            vectors = bins.vectors(rows)
            lengths = np.linalg.norm(vectors, axis=1)
            assert lengths.max() <= 1 + 1e-12 and not vectors[np.isnan(rows)].any()


def test_rounds_before_are_all_that_edges_depend_on() -> None:
    """The sum of a round changes the next rounds' bins, not its own; the first round's are those of the schema."""
    (question,) = parse(["quantiles:x:0.5"], schema_of({
        "target": {"column": "y", "task": "classification", "classes": ["a", "b"]},
        "columns": {"x": {"range": [0, 1000]}},
    }, "test"))  # fmt: skip
    asks = Asks(("n",) * question.size * 3, (question,), sections=3, noise=0.1)
    theta = np.random.default_rng(0).normal(0, 5, (3, question.size)).cumsum(axis=1)
    for number in (1, 2, 3):
        (first,), other = asks.at_round(number, theta.ravel()), theta.copy()
        other[number - 1 :] = 1e9
        (second,) = asks.at_round(number, other.ravel())
        assert first.bins is not None and second.bins is not None
        assert np.array_equal(first.bins.edges, second.bins.edges)
        assert (number == 1) == np.array_equal(first.bins.edges, np.linspace(0, 1000, MOST_BINS + 1))


# --- intervals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*quantile_figure.columns()])
def test_intervals_hold_at_least_as_often_as_they_say(name: str) -> None:
    """4 shares, 3 epsilons, 2 trust models, 40 draws: the standard error of a row's mean is below 0.02."""
    means = []
    for epsilon in quantile_figure.EPSILONS:
        for noises in quantile_figure.MODELS.values():
            held, _ = quantile_figure.trials(name, epsilon, noises, 40)
            assert held.mean(axis=0).min() >= 0.86, (epsilon, noises, held.mean(axis=0))
            means.append(held.mean())
    assert np.mean(means) >= 0.95


@pytest.mark.parametrize(("name", "most"), [("weight", 2.5), ("income", 4000.0), ("sensor", 40.0), ("score", 0.1)])
def test_intervals_are_of_use(name: str, most: float) -> None:
    """At epsilon 1 in a secure sum, between the quartiles: not the whole range, which would always hold."""
    _, widths = quantile_figure.trials(name, 1.0, 1, 20)
    assert np.median(widths, axis=0)[1:].max() < most


def test_what_may_go_wrong_is_five_per_cent_together() -> None:
    assert pytest.approx(0.05) == OWN + ALL_EDGES
    bins, std = Bins.of_range(0, 1, None, (0.3,)), 2.0
    noise = np.random.default_rng(0).normal(0, std, (4000, bins.size))
    excess = np.array([bins._excess(draw, std, 0.3)[0] for draw in noise])
    _, deviation = bins._excess(noise[0], std, 0.3)
    assert excess.std(axis=0) == pytest.approx(deviation, rel=0.06)
    missed = [bins._window(draw, deviation) != (0, MOST_BINS) for draw in excess]  # an empty column: nothing is certain
    assert np.mean(missed) <= ALL_EDGES
    far = 1 + norm.isf(ALL_EDGES / (MOST_BINS + 1))
    for limit, first in ((-far - 0.01, 1), (-far + 0.01, 0)):
        steps = np.concatenate([[0, limit], np.zeros(MOST_BINS - 1)])
        assert bins._window(steps, np.ones(MOST_BINS + 1)) == (first, MOST_BINS)


@pytest.mark.parametrize("std", [2.0, 9.0])
def test_an_interval_ends_where_the_noise_alone_rules_a_bin_out(std: float) -> None:
    bins, z = Bins.of_range(0, 1, None, (0.5,)), norm.isf(0.0475 / 2)
    total = bins.vectors(np.linspace(-1, 1, 4001)).sum(axis=0)
    _, low, high, _ = bins.answer(total, std)
    excess, noise = bins._excess(total, std, 0.5)
    first = int(np.flatnonzero(excess[1:] + z * noise[1:] >= -1)[0])
    last = int(np.flatnonzero(excess[:-1] - z * noise[:-1] <= 1)[-1])
    assert 0 < first < last < MOST_BINS - 1
    assert [low[0], high[0]] == pytest.approx([bins.edges[first], bins.edges[last + 1]], abs=1e-6)


def test_a_number_that_float32_moves_over_an_edge_is_in_the_interval() -> None:
    value = 1 - 1 / MOST_BINS - 1e-9
    found = asked(np.full(100, value), 0, 1, "0.5", rounds=1)
    assert found.low[0] <= value < 1 - 1 / MOST_BINS <= found.high[0]


@pytest.mark.parametrize("std", [0.0, 0.5])
@pytest.mark.parametrize(
    ("values", "low", "high", "step"),
    [
        (np.full(400, 7.25), 0, 10, None),
        (np.full(400, 7), 0, 10, 1),
        ([3.5], 0, 10, None),
        (np.linspace(-900, -800, 500), -1000, -10, None),
        (np.linspace(-1, 1, 501), -5, 5, None),
        (np.random.default_rng(0).normal(0, 1, 800), -5e11, 5e11, None),
        (np.random.default_rng(0).normal(40, 9, 800).round(), 0, 100000, 1),
        (np.random.default_rng(0).lognormal(3, 1, 800).round(2), 0, 1e7, 0.01),
        (np.random.default_rng(0).integers(17000, 19000, 800), 0, 25000, 1),  # dates are days
        (np.random.default_rng(0).normal(50, 60, 800), 0, 100, None),  # clipped at both ends
        (np.random.default_rng(0).normal(0.5, 0.2, 800).round(1), -1, 2, 0.1),
        (np.repeat([1, 2], 400), 0, 3, 1),  # a tie: the quantile 0.5 is 1 and 2
    ],
)
def test_edge_cases_hold(values: np.ndarray, low: float, high: float, step: float | None, std: float) -> None:
    shares = (0.0, 0.01, 0.25, 0.5, 0.75, 1.0)
    found = asked(values, low, high, ":".join(map(str, shares)), step, std)
    true = np.quantile(np.clip(values, low, high), shares, method="inverted_cdf")
    assert (found.low <= true).all() and (true <= found.high).all(), (found, true)
    assert (found.low <= found.values).all() and (found.values <= found.high).all()
    assert low <= found.low.min() and found.high.max() <= high
    if step:
        for numbers in (found.values, found.low, found.high):
            assert numbers / step == pytest.approx(np.round(numbers / step), abs=1e-6)
    if not std and len(values) > 1:
        inside = slice(1, -1)  # the ends are those of the range: that one row is beyond is not to be known
        finest = max((high - low) * 2.0**-15, 2 * (step or 0))
        assert (found.high - found.low)[inside].max() <= finest + 4 * np.diff(np.sort(np.clip(values, low, high))).max()


def test_an_empty_column_says_nothing() -> None:
    found = asked(np.full(50, np.nan), 0, 10, "0.5", std=1.0)
    assert (found.low[0], found.high[0]) == (0, 10)


def test_three_rounds_see_more_than_two_and_two_more_than_one() -> None:
    values = np.random.default_rng(0).normal(4e5, 100, 3000)
    found = [asked(values, 0, 1e6, "0.5", std=1.0, rounds=rounds) for rounds in (1, 2, 3)]
    widths = [float((one.high - one.low)[0]) for one in found]
    assert widths[0] > 50 * widths[1] and widths[2] <= widths[1] * 2


def test_the_answer_says_how_finely_it_tells_values_apart() -> None:
    rng = np.random.default_rng(0)
    coarse = asked(rng.lognormal(10, 0.5, 900), 0, 1e8, "0.5", rounds=1).remarks
    assert coarse[0].startswith("quantile 0.5: values are told apart to 1.95e+05, and about 100%")
    fine = asked(rng.uniform(0, 10, 900), 0, 10, "0.5", rounds=1).remarks
    assert fine == ("quantile 0.5: values are told apart to 0.0195",)
    whole = asked(np.full(900, 7), 0, 10, "0.5", 1).remarks  # a value of its own is told apart from all others
    assert whole == ("quantile 0.5: values are told apart to 1",)


def test_values_that_all_have_a_bin_are_asked_in_the_same_way_in_every_round() -> None:
    bins = Bins.of_range(0, 120, 1, (0.5,))
    assert bins.final and bins.size == 121 and bins.zoomed(np.full(121, 9.0), 0.1) is bins
    assert not Bins.of_range(0, MOST_BINS, 1, (0.5,)).final and Bins.of_range(1, MOST_BINS, 1, (0.5,)).final
    one, two = (asked(np.arange(121.0), 0, 120, "0.5", 1, 3.0, rounds) for rounds in (1, 8))
    assert (two.high - two.low)[0] < 0.7 * (one.high - one.low)[0]
