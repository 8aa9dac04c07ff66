"""A model's score from a noisy sum: lengths whatever the model says, figures without noise, intervals that hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import special
from sklearn import metrics

from fedpriv.common.errors import OptionError
from fedpriv.data.asked import answers
from fedpriv.data.questions import SCORES, parse
from fedpriv.data.regressions import CRITICAL
from fedpriv.data.scores import MOST_SLOPE, NEAREST, SHAPE, USELESS, Counts, Residuals, Scores
from fedpriv.data.survival import Z
from fedpriv.data.table_schema import schema_of
from fedpriv.privacy.gaussian_dp import gaussian_mu
from tools import inference_figure
from tools.inference_figure import errors, judged, law, risks

TWO, FOUR = Scores(("no", "yes")), Scores(("a", "b", "c", "d"))
NUMBERS = Residuals(0.0, 100.0, 50.0)


def named(found: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """name -> (value, low, high)."""
    return dict(zip(found["names"], zip(found["values"], found["low"], found["high"], strict=True), strict=True))


def said(scores: Scores, p: np.ndarray, y: np.ndarray, std: float = 0.0) -> dict[str, tuple[float, float, float]]:
    return named(scores.answer(scores.vectors(p, y).sum(axis=0), std))


def of(texts: tuple[str, ...], **target: Any) -> Any:
    whole = {"target": {"column": "ill", "task": "classification", "classes": ["no", "yes"]} | target}
    return parse(texts, schema_of(whole | {"columns": {"age": {"range": [0, 100]}}}, "test"))


# --- what a row adds: whoever chooses the model is hostile -----------------------------------------------------

ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(arrays.arrays(np.float64, (7, 4), elements=ANY), st.lists(st.integers(-3, 9), min_size=7, max_size=7))
@settings(max_examples=200, deadline=None)
def test_no_row_is_longer_than_one_whatever_a_model_says(p: np.ndarray, y: list[int]) -> None:
    targets = np.array(y)
    for scores in (TWO, FOUR, Scores(("no", "yes"), 0, 0.999, 4), Scores(("no", "yes"), 1, 0.01, 500)):
        vectors = scores.vectors(p[:, : len(scores.classes)], targets)
        lengths = np.linalg.norm(vectors, axis=1)
        assert vectors.shape == (7, scores.size) and lengths.max() <= 1 + 1e-12
        assert not lengths[(targets < 0) | (targets >= len(scores.classes))].any()
    for residuals in (NUMBERS, Residuals(-5.0, 5.0, 0.01)):
        for numbers in (p[:, 1], p[:, 1] / 1e300):
            vectors = residuals.vectors(p[:, :1], numbers)
            assert np.isfinite(vectors).all() and np.linalg.norm(vectors, axis=1).max() <= 1 + 1e-12


def test_the_lengths_are_reached() -> None:
    """The bound is the least: the noise is no larger than it need be."""
    assert np.linalg.norm(TWO.vectors(np.array([[1.0, 0.0]]), np.array([0]))) == pytest.approx(1)
    assert np.linalg.norm(TWO.vectors(np.array([[0.0, 1.0]]), np.array([1]))) == pytest.approx(1)
    assert np.linalg.norm(FOUR.vectors(np.array([[0.0, 0, 0, 1]]), np.array([3]))) == pytest.approx(1)
    assert np.linalg.norm(NUMBERS.vectors(np.array([[0.0]]), np.array([1.0]))) == pytest.approx(1)


def test_scores_that_are_none_count_as_zero() -> None:
    strange = np.array([[0.0, math.nan], [0.0, math.inf], [0.0, -math.inf], [0.0, -7.0]])
    zero = TWO.vectors(np.zeros((4, 2)), np.array([0, 1, 0, 1]))
    assert np.array_equal(TWO.vectors(strange, np.array([0, 1, 0, 1])), zero)
    assert np.array_equal(
        TWO.vectors(np.array([[0.0, 1e300]]), np.ones(1, int)), TWO.vectors(np.ones((1, 2)), np.ones(1, int))
    )


# --- figures without noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("threshold", [0.5, 0.17])
def test_without_noise_figures_are_those_of_scikit_learn(positive: int, threshold: float) -> None:
    p, y = risks(6000, np.random.default_rng(0))
    scores = Scores(("no", "yes"), positive, threshold)
    risk, ill = p[:, positive], y == positive
    predicted = risk >= threshold
    found = said(scores, p, y)
    name, other = scores.classes[positive], scores.classes[1 - positive]
    assert found["rows"] == pytest.approx((6000, 6000, 6000))
    exact = {
        f"share of {name}": ill.mean(),
        "accuracy": metrics.accuracy_score(ill, predicted),
        "sensitivity": metrics.recall_score(ill, predicted),
        "specificity": metrics.recall_score(~ill, ~predicted),
        "precision": metrics.precision_score(ill, predicted),
        "Brier score of the share alone": ill.mean() * (1 - ill.mean()),
    }
    table = metrics.confusion_matrix(ill, predicted, normalize="all")
    exact |= {
        f"{a} predicted {b}": table[i, j] for i, a in enumerate((other, name)) for j, b in enumerate((other, name))
    }
    for figure, value in exact.items():
        assert found[figure][0] == pytest.approx(value, abs=1e-12), figure
        assert found[figure][1] < value < found[figure][2]
    assert found["AUC"][0] == pytest.approx(metrics.roc_auc_score(ill, risk), abs=0.001)
    assert found["Brier score"][0] == pytest.approx(metrics.brier_score_loss(ill, risk), abs=0.001)


def test_the_auc_does_not_suffer_from_bins_where_scores_are_low() -> None:
    p, y = risks(400_000, np.random.default_rng(1), share=0.01)
    assert said(TWO, p, y)["AUC"][0] == pytest.approx(metrics.roc_auc_score(y, p[:, 1]), abs=0.005)


def test_of_few_different_scores_it_is_said_that_no_interval_holds() -> None:
    """0.2 and 0.25 lie in one bin, 0.6 and 0.65 in another: the AUC is 0.75, and bins of 500 scores say so."""
    rng, scores = np.random.default_rng(3), np.array([0.2, 0.25, 0.6, 0.65])
    y = (rng.random(20_000) < 0.3).astype(int)
    p = np.where(
        y == 1, rng.choice(scores, 20_000, p=[0.1, 0.2, 0.3, 0.4]), rng.choice(scores, 20_000, p=[0.4, 0.3, 0.2, 0.1])
    )
    both = np.stack([1 - p, p], axis=1)
    assert said(TWO, both, y)["AUC"][2] < 0.72 < 0.74 < metrics.roc_auc_score(y, p)
    remarks = TWO.answer(TWO.vectors(both, y).sum(axis=0), 0.0)["remarks"]
    assert "of a model that says few different ones no interval holds the AUC" in remarks[0]
    low, high = said(Scores(("no", "yes"), bins=500), both, y)["AUC"][1:]
    assert low < metrics.roc_auc_score(y, p) < high


def test_a_model_without_use_has_an_auc_of_a_half_and_a_perfect_one_of_one() -> None:
    y = np.random.default_rng(2).integers(0, 2, 900)
    alike = said(TWO, np.full((900, 2), 0.3), y)
    assert alike["AUC"][0] == pytest.approx(0.5)
    sure = said(TWO, np.stack([1.0 - y, y], axis=1), y)
    assert sure["AUC"][0] > 0.999 and 0.98 < sure["AUC"][1] < 1 and sure["AUC"][2] == pytest.approx(1)
    assert sure["accuracy"][0] == pytest.approx(1) and 0.99 < sure["accuracy"][1] < 1


def test_the_calibration_curve_is_the_share_in_each_bin() -> None:
    p, y = risks(5000, np.random.default_rng(3))
    scores, found = Scores(("no", "yes"), bins=40), said(Scores(("no", "yes"), bins=40), p, y)
    curve = {name: value for name, value in found.items() if name.startswith("observed")}
    assert 6 <= len(curve) <= 10
    for name, (value, low, high) in curve.items():
        ends = [float(part) for part in name.removeprefix("observed at ").partition(",")[0].split(" to ")]
        first, last = (int(np.abs(scores.edges - end).argmin()) for end in ends)
        inside = (p[:, 1] >= scores.edges[first]) & ((p[:, 1] < scores.edges[last]) | (last == 40))
        assert inside.mean() >= 0.09 and value == pytest.approx(y[inside].mean()) and low < value < high
        assert float(name.rpartition(" ")[2]) == pytest.approx(p[inside, 1].mean(), abs=0.01)
    edge = float(next(name for name in found if name.startswith("sensitivity at")).rpartition(" ")[2])
    edge = scores.edges[np.abs(scores.edges - edge).argmin()]
    assert found[f"sensitivity at {edge:.3g}"][0] == pytest.approx((p[y == 1, 1] >= edge).mean())
    assert found[f"specificity at {edge:.3g}"][0] == pytest.approx((p[y == 0, 1] < edge).mean())


@pytest.mark.parametrize("slope", [0.5, 1.0, 1.6])
def test_the_slope_is_that_of_a_logistic_regression_on_logits(slope: float) -> None:
    p, y = risks(20_000, np.random.default_rng(4), slope=slope)
    value, low, high = said(TWO, p, y)["calibration slope"]
    assert value == pytest.approx(slope, rel=0.06) and low < slope < high


def test_more_than_two_classes_have_a_table_of_all_and_the_likeliest_ones_calibration() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(4000, 4)) * 1.5
    p = special.softmax(logits, axis=1)
    y = np.array([rng.choice(4, p=one) for one in p])
    found, likeliest = said(FOUR, p, y), p.argmax(axis=1)
    assert found["accuracy"][0] == pytest.approx((likeliest == y).mean())
    table = metrics.confusion_matrix(y, likeliest, normalize="all")
    for i, a in enumerate("abcd"):
        for j, b in enumerate("abcd"):
            assert found[f"{a} predicted {b}"][0] == pytest.approx(table[i, j], abs=1e-9)
    assert found["AUC"][0] == pytest.approx(metrics.roc_auc_score(likeliest == y, p.max(axis=1)), abs=0.005)
    assert found["calibration slope"][0] == pytest.approx(1, abs=0.15)
    assert "sensitivity" not in found and not any("share of" in name for name in found)


def test_without_noise_errors_of_numbers_are_those_of_scikit_learn() -> None:
    p, y = errors(6000, np.random.default_rng(6))
    found = named(NUMBERS.answer(NUMBERS.vectors(p[:, None] / 50 - 1, y / 50 - 1).sum(axis=0), 0.0))
    exact = {
        "rows": 6000,
        "bias (target less prediction)": (y - p).mean(),
        "RMSE": metrics.root_mean_squared_error(y, p),
        "R squared": metrics.r2_score(y, p),
    }
    for name, value in exact.items():
        assert (
            found[name][0] == pytest.approx(value, rel=1e-6) and found[name][1] - 1e-9 <= value <= found[name][2] + 1e-9
        )
    inside = (p >= 37.5) & (p < 50)
    assert found["mean at a prediction of 37.5 to 50"][0] == pytest.approx(y[inside].mean())


def test_the_interval_of_r_squared_is_that_of_normal_samples() -> None:
    """Without noise: variance 4 R^2 (1 - R^2)^2/n (M. G. Kendall, A. Stuart, The advanced theory of statistics)."""
    p, y = errors(20_000, np.random.default_rng(15))
    value, low, high = named(NUMBERS.answer(NUMBERS.vectors(p[:, None] / 50 - 1, y / 50 - 1).sum(axis=0), 0.0))[
        "R squared"
    ]
    assert (high - low) / (2 * Z) == pytest.approx(2 * math.sqrt(value / 20_000) * (1 - value), rel=0.1)


def test_a_smaller_bound_clips_errors_and_costs_less_noise() -> None:
    p, y = errors(3000, np.random.default_rng(7))
    wide, narrow = (Residuals(0.0, 100.0, bound) for bound in (50.0, 20.0))
    std = 1 / gaussian_mu(1.0, 1e-4)
    ends = [named(one.answer(one.vectors(p[:, None] / 50 - 1, y / 50 - 1).sum(axis=0), std)) for one in (wide, narrow)]
    spans = [high - low for _, low, high in (one["bias (target less prediction)"] for one in ends)]
    assert spans[1] < spans[0] * 0.75
    tight = Residuals(0.0, 100.0, 2.0)
    clipped = named(tight.answer(tight.vectors(p[:, None] / 50 - 1, y / 50 - 1).sum(axis=0), 0.0))
    assert clipped["RMSE"][0] == pytest.approx(np.sqrt(np.mean(np.clip(y - p, -2, 2) ** 2)))


# --- noise --------------------------------------------------------------------------------------------------------


def test_counts_have_the_noise_that_they_say() -> None:
    for scores in (TWO, FOUR):
        draws = np.random.default_rng(8).normal(0, 3.0, (20_000, scores.size)) @ scores.map.T
        told = Counts(np.zeros(scores.size), scores.map * 3.0)
        for weights in (scores.cells(1, 1), scores.cells(1, 0), scores.cells(scores.middles, 0)):
            assert told.total(weights)[1] == pytest.approx((draws @ weights).std(), rel=0.03)


@pytest.mark.parametrize(("rows", "noises", "share"), [(569, 1, 0.4), (3276, 5, 0.4), (3276, 1, 0.03)])
def test_intervals_hold_the_truth_of_the_law(rows: int, noises: int, share: float) -> None:
    """Of the model on all rows like these, not of the rows at hand: 240 draws of rows and noise, epsilon 1."""
    held = judged(rows, 1.0, noises, 240, share)
    for name, (shares, told) in held.items():
        if told > 0.9:
            assert 0.905 <= shares <= 0.995, name
    pooled = [shares for shares, told in held.values() if told > 0.9]
    assert len(pooled) >= 6 and 0.93 <= np.mean(pooled) <= 0.98


@pytest.mark.parametrize(("rows", "noises"), [(500, 1), (3000, 5)])
def test_intervals_of_errors_hold_the_truth_of_the_law(rows: int, noises: int) -> None:
    held = inference_figure.judged_errors(rows, 1.0, noises, 240)
    assert set(held) >= {"bias (target less prediction)", "RMSE", "R squared"}
    assert all(0.905 <= share <= 0.995 for share in held.values()) and 0.93 <= np.mean([*held.values()]) <= 0.985


def test_an_interval_without_the_noise_would_not_hold() -> None:
    rng, std = np.random.default_rng(9), math.sqrt(5) / gaussian_mu(1.0, 1e-4)
    true, held = law(0.4)["accuracy"], []
    for _ in range(120):
        total = TWO.vectors(*risks(569, rng)).sum(axis=0) + rng.normal(0, std, TWO.size)
        counts = Counts(TWO.map @ total, TWO.map * 0.0)
        figure = counts.share("", TWO.right, TWO.cells(1, 1))
        held.append(figure.low <= true <= figure.high)
    assert np.mean(held) < 0.75


def test_a_share_is_wilsons_without_noise_and_wider_with_it() -> None:
    counts = Counts(np.array([30.0, 70.0]), np.zeros((2, 2)))
    one, every = np.array([1.0, 0.0]), np.ones(2)
    figure, n, p = counts.share("", one, every), 100, 0.3
    middle, half = (
        (p + Z**2 / (2 * n)) / (1 + Z**2 / n),
        Z / (1 + Z**2 / n) * math.sqrt(p * 0.7 / n + Z**2 / (4 * n**2)),
    )
    assert figure.numbers == pytest.approx((p, middle - half, middle + half))
    noisy = Counts(counts.numbers, 5.0 * np.eye(2)).share("", one, every)
    assert noisy.high - noisy.low > figure.high - figure.low
    alike = Counts(counts.numbers, np.zeros((2, 2)), spread=4).share("", one, every)
    assert alike.high - alike.low == pytest.approx(2 * (figure.high - figure.low), rel=0.1)
    nothing = Counts(np.array([3.0, 4.0]), 5.0 * np.eye(2)).share("", one, every)
    assert nothing.numbers[1:] == (0.0, 1.0)


def test_the_interval_of_a_share_is_the_set_that_is_not_refuted() -> None:
    """The equation in the head of the file, by a grid."""
    numbers, noise = np.array([12.0, 45.0, 33.0]), np.random.default_rng(10).normal(0, 4, (3, 6))
    part, of = np.array([1.0, 0, 0]), np.array([1.0, 1, 0])
    figure, a = Counts(numbers, noise, 2).share("", part, of), np.linspace(0, 1, 200_001)
    moved = (part[None] - a[:, None] * of) @ noise
    kept = a[(12 - a * 57) ** 2 <= Z**2 * ((moved**2).sum(axis=1) + 2 * 57 * a * (1 - a))]
    assert figure.numbers[1:] == pytest.approx((kept.min(), kept.max()), abs=1e-5)


def test_constants_are_those_of_their_equations() -> None:
    """Edges by the beta law; the weight of neighbours by an integral; what is useless by the noise of a share."""
    edges = Scores(("no", "yes"), threshold=0.999).edges
    assert special.betainc(1 / 3, 1 / 3, edges[:23]) == pytest.approx(np.arange(23) / 24) and SHAPE == 1 / 3
    assert edges[23] == 0.999 and NEAREST == 0.0005 and MOST_SLOPE == 10 and pytest.approx(Z**2) == CRITICAL
    u = (np.arange(2000) + 0.5) / 2000 - 0.5
    inside = np.subtract.outer(u, u)  # densities 1 + g u
    won = lambda g0, g1: ((inside > 0) + (inside == 0) / 2) @ ((1 + g0 * u) / 2000) @ ((1 + g1 * u) / 2000)  # noqa: E731
    assert won(0.4, -0.3) - 0.5 == pytest.approx((-0.3 - 0.4) / 12, abs=1e-4)
    near = TWO._before
    assert np.diag(near, -1)[[0, 1, -1]] - 1 == pytest.approx([1 / 8, 1 / 12, 1 / 8])
    assert np.diag(near, 1)[[0, 1, -1]] == pytest.approx([-1 / 8, -1 / 12, -1 / 8])
    std, right = 3.0, TWO.right - TWO.cells(0.5, 0.5)
    draws = np.random.default_rng(11).normal(0, std, (20_000, TWO.size)) @ TWO.map.T @ right
    assert TWO.needs(std) * USELESS / Z == pytest.approx(draws.std(), rel=0.03)


# --- before anything is spent --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [569, 3276])
def test_the_half_widths_that_a_plan_promises_come_true(rows: int) -> None:
    std, rng, wide = 1 / gaussian_mu(0.5, 1e-4), np.random.default_rng(12), []
    p, y = risks(rows, rng, share=0.5)
    for _ in range(40):
        found = named(TWO.answer(TWO.vectors(p, y).sum(axis=0) + rng.normal(0, std, TWO.size), std))
        wide.append([found[name][2] - found[name][1] for name in ("accuracy", "AUC")])
    points, auc = np.median(wide, axis=0) / 2
    words = TWO.expects(std, rows)
    assert words.startswith(f"half-widths to expect of {rows:,} rows, half of them positive: accuracy ")
    assert float(words.split("accuracy ")[1].split()[0]) == pytest.approx(100 * points, rel=0.15)
    assert float(words.split("AUC ")[1].partition(";")[0]) == pytest.approx(auc, rel=0.3)


def test_a_hundred_rows_with_own_noise_are_too_few() -> None:
    """114 rows, five sites, epsilon 0.5."""
    sum_of_sites, own = (math.sqrt(noises) / gaussian_mu(0.5, 1e-4) for noises in (1, 5))
    assert TWO.needs(own) > 250 > TWO.needs(sum_of_sites) > 100 and NUMBERS.needs(own) > 100


def test_too_few_rows_of_a_class_are_said() -> None:
    p, y = risks(3000, np.random.default_rng(13), share=0.001)
    found = TWO.answer(TWO.vectors(p, y).sum(axis=0), 10.0)
    assert named(found)["AUC"][1:] == (0.0, 1.0) and any(
        "too few rows of each class" in words for words in found["remarks"]
    )


# --- the question ----------------------------------------------------------------------------------------------------


def test_a_question_scores_its_target() -> None:
    (question,) = of(("score:outputs/run:0.2:40",))
    assert question.columns == ("ill",) and question.kind == "score" and question.scored
    p, y = risks(800, np.random.default_rng(14))
    total = question.vectors({SCORES: p, "ill": y}).sum(axis=0)
    (answer,) = answers([question], total, 0.0)
    expected = said(Scores(("no", "yes"), 1, 0.2, 40), p, y)
    assert dict(zip(answer.names, answer.values, strict=True))["accuracy"] == pytest.approx(expected["accuracy"][0])
    (flipped,) = of(("score:run",), positive="no")
    assert answers([flipped], total[: flipped.size], 0.0)[0].names[1] == "share of no"


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [
        ("score", {}, "allowed: score:RUN"),
        ("score:run:0", {}, "the threshold 0 must be a number between 0 and 1"),
        ("score:run:1", {}, "the threshold 1 must be"),
        ("score:run:-0.1", {}, "the threshold -0.1 must be"),
        ("score:run:nan", {}, "the threshold nan must be"),
        ("score:run:half", {}, "the threshold half must be"),
        ("score:run:0.5:3", {}, "3 must be a whole number between 4 and 500"),
        ("score:run:0.5:20:7", {}, "allowed: score:RUN"),
        ("score:run:0.5", {"classes": ["a", "b", "c"]}, "0.5 is the threshold of a class among two, and ill has more"),
    ],
)
def test_a_mistake_is_said(text: str, target: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        of((text,), **target)


@pytest.mark.parametrize("given", ["0", "-3", "101", "much", "5:20"])
def test_a_bound_of_errors_is_within_the_range(given: str) -> None:
    number: dict[str, Any] = {"column": "cost", "task": "regression", "range": [0, 100]}
    schema = schema_of({"target": number, "columns": {"age": {"range": [0, 100]}}}, "test")
    with pytest.raises(OptionError, match="the largest error that counts, above 0 and at most 100"):
        parse((f"score:run:{given}",), schema)
    (question,) = parse(("score:run:25",), schema)
    assert question.columns == ("cost",) and question.scored
