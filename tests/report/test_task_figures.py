"""A report names the metrics of the run's task, and shows no accuracy where the task has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.config.compose import compose
from fedpriv.report.words import further_metrics
from fedpriv.runs.start import start_run

SMALL = ("strategy=fedavg", "num_clients=3", "clients_per_round=3", "num_rounds=1", "engine=inprocess", "model=linear")


def test_the_leading_metric_comes_first_and_what_is_not_known_is_left_out() -> None:
    told = {"leading": "rmse", "final": {"mae": 2.0, "rmse": 3.14159, "r2": None}}
    assert list(further_metrics({"metrics": told}).items()) == [("rmse", "3.142"), ("mae", "2")]
    two = {"leading": "accuracy", "final": {"balanced_accuracy": 0.9, "auc": 0.95}}
    assert list(further_metrics({"metrics": two})) == ["auc", "balanced accuracy"]
    assert further_metrics({"accuracy": {"final": 0.9}}) == further_metrics(None) == {}


@pytest.mark.parametrize(
    ("dataset", "shown", "absent"), [("breast_cancer", "auc", ""), ("diabetes", "rmse", "accuracy")]
)
def test_a_page_shows_what_the_task_measures(dataset: str, shown: str, absent: str, tmp_path: Path) -> None:
    start_run(compose([*SMALL, f"dataset={dataset}"]), tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"<span>{shown}</span>" in page
    assert ("<span>accuracy</span>" in page) == (absent != "accuracy")
