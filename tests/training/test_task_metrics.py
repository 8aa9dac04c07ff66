"""Metrics of each task, held against plain counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from fedpriv.mechanisms.tasks import PADDING, Classification, Multilabel, NextToken, Regression
from fedpriv.training.task_metrics import LARGEST, calibration, leading, metrics, needed, risk_figures


def test_two_classes_have_more_than_accuracy() -> None:
    score = torch.tensor([-2.0, -1.0, 0.5, 1.0, 3.0])
    outputs = torch.stack([torch.zeros(5), score], dim=1)
    targets = torch.tensor([0, 1, 0, 1, 1])
    found = metrics(Classification(("no", "yes")), outputs, targets, 0.25)
    pairs = [(a, b) for a in score[targets == 1] for b in score[targets == 0]]
    assert found["auc"] == pytest.approx(sum(float(a > b) for a, b in pairs) / len(pairs))
    assert found["accuracy"] == 3 / 5 and found["loss"] == 0.25
    assert found["balanced_accuracy"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert found["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert found["brier"] == pytest.approx(float((torch.sigmoid(score) - targets).square().mean()), rel=1e-6)
    assert found["base_brier"] == pytest.approx(3 / 5 * 2 / 5)


@pytest.mark.parametrize("slope", [0.25, 1.0, 3.0])
def test_the_slope_says_how_sure_of_itself_a_model_is(slope: float) -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(-1, 2, 4000)
    targets = (rng.random(4000) < expit(0.5 + slope * odds)).astype(np.int64)
    by_sklearn = LogisticRegression(C=np.inf).fit(odds[:, None], targets)
    found = calibration(odds, targets)
    assert found == pytest.approx((by_sklearn.intercept_[0], by_sklearn.coef_[0, 0]), rel=1e-3)
    assert found is not None and found[1] == pytest.approx(slope, rel=0.15)
    outputs = torch.from_numpy(np.stack([np.zeros(4000), odds], axis=1))
    assert metrics(Classification(("no", "yes")), outputs, torch.from_numpy(targets), 0.5)["slope"] == found[1]
    assert metrics(Classification(("no", "yes"), "no"), outputs, torch.from_numpy(targets), 0.5)["slope"] == (
        pytest.approx(found[1])  # of the other class, the same
    )


@pytest.mark.parametrize("odds", [[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0], [-1e300, -1.0, 1.0, 1e300]])
def test_odds_that_separate_the_classes_or_none_have_no_slope(odds: list[float]) -> None:
    assert calibration(np.array(odds), np.array([0, 0, 1, 1])) is None


def test_a_rare_outcome_is_judged_by_auc() -> None:
    two = Classification(("no", "yes"))
    for positives, name in ((0, "accuracy"), (1, "auc"), (19, "auc"), (20, "accuracy"), (81, "auc"), (100, "accuracy")):
        targets = torch.arange(100) < positives
        assert leading(two, targets.long()) == name
    assert leading(Classification(("a", "b", "c")), torch.zeros(3)) == "accuracy"
    assert leading(Regression(("y",)), torch.zeros(3)) == "rmse"


def test_three_classes_have_accuracy_and_loss_alone() -> None:
    found = metrics(Classification(("a", "b", "c")), torch.eye(3), torch.tensor([0, 1, 1]), math.nan)
    assert found == {"accuracy": 2 / 3, "loss": LARGEST}


def test_what_the_test_examples_do_not_define_is_left_out() -> None:
    found = metrics(Classification(("no", "yes")), torch.randn(4, 2), torch.ones(4, dtype=torch.int64), 0.5)
    assert "auc" not in found and found["balanced_accuracy"] == 0.5
    assert metrics(Multilabel(("x",)), torch.randn(4, 1), torch.ones(4, 1), 0.5) == {"loss": 0.5}
    broken = metrics(Classification(("no", "yes")), torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1]), 0.5)
    assert set(broken) == {"accuracy", "loss"}


def test_errors_of_numbers_are_in_their_own_units() -> None:
    task = Regression(("days",), 0.0, 20.0)
    found = metrics(task, torch.tensor([[0.0], [1.0]]), torch.tensor([-1.0, 1.0]), 0.1)
    assert found["rmse"] == pytest.approx(math.sqrt(50)) and found["mae"] == pytest.approx(5)
    assert found["r2"] == pytest.approx(1 - 100 / 200)
    assert metrics(task, torch.full((2, 1), torch.nan), torch.tensor([0.0, 1.0]), 0.1)["rmse"] <= LARGEST


def test_labels_are_averaged_where_both_values_occur() -> None:
    outputs = torch.tensor([[0.1, 1.0], [0.9, 1.0], [0.4, 1.0]])
    found = metrics(Multilabel(("x", "y")), outputs, torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]]), 0.3)
    assert found["auc"] == 1.0 and found["average_precision"] == 1.0
    partly = torch.tensor([[0.0, torch.nan], [1.0, 1.0], [torch.nan, 1.0]])
    assert metrics(Multilabel(("x", "y")), outputs, partly, 0.3) == {"loss": 0.3, "auc": 1.0, "average_precision": 1.0}


def test_tokens_that_are_not_there_count_for_nothing() -> None:
    task = NextToken(("a", "b"), tokens=3)
    outputs = torch.tensor([[[5.0, 0.0], [0.0, 5.0], [5.0, 0.0]]])
    found = metrics(task, needed(task, outputs), torch.tensor([[0, 0, PADDING]]), math.log(3.0))
    assert found["accuracy"] == 0.5 and found["perplexity"] == pytest.approx(3.0)


def test_figures_of_risks_worked_out_by_hand() -> None:
    """Ten rows with risks 0.05, 0.15, ..., 0.95, of which those of 0.35 and of 0.55 and more have the outcome."""
    risks = np.arange(10) / 10 + 0.05
    targets = np.array([0, 0, 0, 1, 0, 1, 1, 1, 1, 1])
    odds = np.log(risks / (1 - risks))
    found = risk_figures(odds, targets, 0.3)
    assert found["threshold"] == 0.3 and found["confusion"] == [[3, 1], [0, 6]]
    assert risk_figures(odds, targets, 0.4)["confusion"] == [[3, 1], [1, 5]]
    assert risk_figures(odds, targets, 0.65 - 1e-9)["confusion"] == [[4, 0], [2, 4]]  # reached is yes
    assert np.allclose([row[1] for row in found["calibration"]], risks)
    assert [row[2] for row in found["calibration"]] == targets.tolist()
    assert found["roc"] == [[0, 0], [0, 0.166667], [0, 0.833333], [0.25, 0.833333], [0.25, 1], [1, 1]]
    many = np.random.default_rng(0).normal(size=5000)
    assert (
        len(risk_figures(many, (many + np.random.default_rng(1).normal(size=5000) > 0).astype(int), 0.5)["roc"]) == 101
    )
    one = risk_figures(odds[:3], np.ones(3, dtype=int), 0.5)  # of one class there is no curve
    assert one["roc"] == [] and one["confusion"] == [[0, 0], [3, 0]] and len(one["calibration"]) == 3
