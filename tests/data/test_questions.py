"""Questions about a table: what a unit adds is never longer than 1, and answers without noise are the true ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.common.errors import OptionError
from fedpriv.data.asked import contributions
from fedpriv.data.questions import ROWS, Values, parse, weights
from fedpriv.data.table_answers import answers
from fedpriv.data.table_schema import schema_of

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
    "quantiles:age:0.1:0.5:0.9", "covariance:age:weight", "table:sex:ill", "top:sex:2",
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
    assert found["table:sex:ill"] == pytest.approx(np.histogram2d(raw["sex"], raw["ill"], (3, 2))[0].ravel())
    assert found["quantiles:age:0.1:0.5:0.9"] == pytest.approx(np.quantile(age, (0.1, 0.5, 0.9)), abs=100 / 256)


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
