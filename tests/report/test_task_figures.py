"""A report names the metrics of the run's task, and shows no accuracy where the task has none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import root_mean_squared_error

import fedpriv
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.tasks import Regression
from fedpriv.report.plots import draw_risks
from fedpriv.report.reading import read_run
from fedpriv.report.run_summary import Summary
from fedpriv.report.tables import confusion_rows
from fedpriv.report.words import leading_of_round
from fedpriv.runs.start import start_run
from fedpriv.runs.summary import miscalibration
from fedpriv.training.evaluation import Score

SMALL = ("strategy=fedavg", "num_clients=3", "clients_per_round=3", "num_rounds=1", "engine=inprocess", "model=linear")


def test_the_leading_metric_comes_first_and_what_is_not_known_is_left_out() -> None:
    two = {"leading": "accuracy", "final": {"balanced_accuracy": 0.9, "auc": 0.95, "r2": None}}
    assert list(Summary.model_validate({"metrics": two}).further_metrics) == ["auc", "balanced accuracy"]
    assert Summary.model_validate({"accuracy": {"final": 0.9}}).further_metrics == {}


def test_a_run_on_a_rare_outcome_is_judged_by_auc_everywhere(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "target: {column: y, task: classification, classes: [a, b]}\ncolumns: {x: {range: [0, 200]}}\n"
    )
    rows = (f"{x},{'b' if x % 10 == 0 else 'a'}" for x in range(200))
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(rows) + "\n")
    places = [f"dataset.root={tmp_path / 't.csv'}", f"dataset.schema_file={tmp_path / 's.yaml'}"]
    start_run(compose([*SMALL, "dataset=table", *places]), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.result.leading[0] == "auc" and run.result.leading[1] == run.result.metrics.final["auc"]
    assert leading_of_round(run.rounds[-1]) == ("auc", run.rounds[-1]["metrics"]["auc"])


@pytest.mark.parametrize(("brier", "said"), [(0.24, False), (0.25, False), (0.29, True), (None, False)])
def test_a_model_worse_than_the_base_rate_says_so(brier: float | None, said: bool) -> None:
    score = Score({} if brier is None else {"brier": brier, "base_brier": 0.25}, "accuracy", True)
    assert ("Brier score 0.29 is worse than 0.25" in miscalibration(score).get("miscalibrated", "")) == said


def test_test_rows_of_one_class_are_told_and_not_judged_by_a_base_rate_of_none() -> None:
    score = Score({"brier": 2e-9, "base_brier": 0.0, "accuracy": 1.0}, "accuracy", True)
    assert miscalibration(score)["miscalibrated"].startswith("all test rows are of one class")


@pytest.mark.parametrize(
    ("dataset", "shown", "absent"), [("breast_cancer", "auc", ""), ("diabetes", "rmse", "accuracy")]
)
def test_a_page_shows_what_the_task_measures(dataset: str, shown: str, absent: str, tmp_path: Path) -> None:
    start_run(compose([*SMALL, f"dataset={dataset}"]), tmp_path / "run")
    page = (tmp_path / "run" / "private" / "report.html").read_text()
    assert f"<span>{shown}</span>" in page
    assert ("<span>accuracy</span>" in page) == (absent != "accuracy")


def test_a_table_of_patients_is_told_site_by_site_and_of_a_number_nobody_tells_an_accuracy(tmp_path: Path) -> None:
    options = ["partition.test_fraction=0.2", "dataset=diabetes", "evaluate.clients=true"]
    start_run(compose([*SMALL, *options]), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.summary is not None and run.summary["accuracy"]["personalised"] is None
    sites = run.summary["metrics"]["sites"]
    assert [one["value"] for one in sites] == sorted((one["value"] for one in sites), reverse=True)  # the worst first
    assert {one["site"] for one in sites} == {"client 0", "client 1", "client 2"}
    # As scikit-learn measures the saved model on one client's rows.
    config = compose([*SMALL, *options])
    worker = Worker(config)
    worker.model.module.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    rows, data = worker.data.test_indices(1), worker.data.dataset
    task = data.task
    assert isinstance(task, Regression)
    guessed = worker.model(torch.from_numpy(data.train.inputs[rows])).detach().squeeze(1)
    true = torch.from_numpy(data.train.targets[rows])
    found = root_mean_squared_error(task.unscaled(true), task.unscaled(guessed))
    value, examples = next((one["value"], one["examples"]) for one in sites if one["site"] == "client 1")
    assert value == pytest.approx(float(found), rel=1e-5) and examples == len(rows)
    assert run.result.worst_site == (sites[0]["site"], sites[0]["value"])
    page = (tmp_path / "run" / "private" / "report.html").read_text()
    assert "Site by site" in page and f"test examples of {sites[0]['site']}" in page and "rmse on the test set" in page


PATIENTS = "target: {column: ill, task: classification, classes: [yes, no], positive: yes}\n" + (
    "columns: {age: {range: [20, 80]}, sex: {values: [f, m, '<i>']}, note: {ignore: true}}\n"
)


def patients(folder: Path, schema: str = PATIENTS) -> list[str]:
    rng = np.random.default_rng(0)
    rows = [(int(rng.integers(20, 81)), "fm"[int(rng.integers(2))]) for _ in range(300)]
    told = (
        f"{age},{'' if age == 50 else sex},x,{'yes' if age + rng.normal(0, 15) > 60 else 'no'}" for age, sex in rows
    )
    (folder / "t.csv").write_text("age,sex,note,ill\n" + "\n".join(told) + "\n")
    (folder / "s.yaml").write_text(schema)
    return [*SMALL, "dataset=table", f"dataset.root={folder / 't.csv'}", f"dataset.schema_file={folder / 's.yaml'}"]


def test_a_report_shows_risks_groups_and_coefficients(tmp_path: Path) -> None:
    options = ["evaluate.by=sex", "evaluate.threshold=0.3", "local.epochs=20"]
    start_run(compose([*patients(tmp_path), *options]), tmp_path / "run")
    run, folder = read_run(tmp_path / "run"), tmp_path / "run"
    assert run.summary is not None
    metrics, model = run.summary["metrics"], fedpriv.load(folder).model
    groups = {one["group"]: one for one in metrics["groups"]}
    assert set(groups) == {"f", "m", "missing"} and sum(one["examples"] for one in groups.values()) == 60
    assert [one["accuracy"] for one in metrics["groups"]] == sorted(one["accuracy"] for one in groups.values())
    right = sum(one["accuracy"] * one["examples"] for one in groups.values()) / 60
    assert right == pytest.approx(run.summary["accuracy"]["final"])
    shown = [groups[name]["accuracy"] for name in ("f", "m")]
    assert shown[0] != shown[1]
    # rows of a class, each below and above the threshold, where the first class is the outcome
    (tn, fp), (fn, tp) = metrics["risks"]["confusion"]
    share = sum(count * part for count, _, part in metrics["risks"]["calibration"]) / 60
    assert tn + fp + fn + tp == 60 and (fn + tp) / 60 == pytest.approx(share) and tp > fn and tn > fp
    # odds ratios as the saved model's own probabilities give them
    ratios = {(one["column"], one["change"]): one["value"] for one in run.summary["coefficients"]}
    assert set(ratios) == {("age", "+ 6"), ("sex", "m for f"), ("sex", "<i> for f")}

    def odds(age: int, sex: str) -> float:
        risk = float(model.probability(pd.DataFrame({"age": [age], "sex": [sex], "note": ["x"]}), "yes")[0])
        return risk / (1 - risk)

    assert ratios["age", "+ 6"] == pytest.approx(odds(46, "f") / odds(40, "f"), rel=1e-4) and ratios["age", "+ 6"] > 1
    assert ratios["sex", "m for f"] == pytest.approx(odds(40, "m") / odds(40, "f"), rel=1e-4)
    public, private = ((folder / name).read_text() for name in ("report.html", "private/report.html"))
    for words in ("Right and wrong at a risk of 0.3", "Group by group", "ROC curve", "in tenths by risk"):
        assert words in private and words not in public  # exact figures of test rows are not for outsiders
    for page in (public, private):
        assert "fedpriv ask logistic:TARGET" in page and "There is no interval" in page
        assert "&lt;i&gt; for f" in page and "<i> for f" not in page
    assert not (folder / "roc.png").exists() and (folder / "private" / "roc.png").exists()
    assert json.loads((folder / "summary.json").read_text())["metrics"]["risks"] is None


def test_a_regressions_coefficients_are_in_the_targets_units(tmp_path: Path) -> None:
    schema = PATIENTS.replace("{column: ill, task: classification, classes: [yes, no], positive: yes}", "TARGET")
    schema = schema.replace("TARGET", "{column: age, task: regression, range: [0, 100]}").replace(
        "age: {range: [20, 80]}", "ill: {values: [no, yes]}"
    )
    start_run(compose([*patients(tmp_path, schema), "local.epochs=5"]), tmp_path / "run")
    effects = {one["change"]: one for one in read_run(tmp_path / "run").summary["coefficients"]}  # type: ignore[index]
    model, row = fedpriv.load(tmp_path / "run").model, {"sex": ["f", "f"], "note": ["x", "x"], "ill": ["yes", "no"]}
    yes, no = model.predict(pd.DataFrame(row))
    assert effects["yes for no"]["kind"] == "difference"
    assert effects["yes for no"]["value"] == pytest.approx(float(yes - no), rel=1e-3)
    assert "fedpriv ask linear:TARGET" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("name", ["age", "note", "height"])
def test_groups_are_of_a_column_of_categories(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"evaluate.by={name}: .* allowed: null, sex"):
        start_run(compose([*patients(tmp_path), f"evaluate.by={name}"]), tmp_path / "run")
    with pytest.raises(OptionError, match=r"evaluate\.threshold=1"):
        compose([*SMALL, "evaluate.threshold=1"])


@pytest.mark.parametrize("part", ["roc", "calibration", "confusion", "threshold"])
@pytest.mark.parametrize("value", [None, [[1]], [["x", 2, 3]], "no", [[1, "inf"], [2, 3]]])
def test_broken_figures_of_risks_are_left_out(part: str, value: object, tmp_path: Path) -> None:
    whole = {"threshold": 0.5, "confusion": [[1, 2], [3, 4]], "roc": [[0, 0], [1, 1]], "calibration": [[5, 0.5, 0.5]]}
    result = Summary.model_validate({"metrics": {"risks": whole}})
    assert result.metrics.risks.known and len(draw_risks(result.metrics.risks, tmp_path)) == 2
    broken = Summary.model_validate({"metrics": {"risks": whole | {part: value}}}).metrics.risks
    assert confusion_rows(broken) == [] or not getattr(broken, part)
    assert draw_risks(broken, tmp_path) == []


def test_a_column_of_sites_divides_the_test_rows_too(tmp_path: Path) -> None:
    rows = [f"{'north' if i % 3 else 'south'},{i % 7},{i % 2 if i % 3 else 1}" for i in range(120)]
    (tmp_path / "rows.csv").write_text("\n".join(["place,x,y", *rows, ""]))
    (tmp_path / "schema.yaml").write_text(
        "target: {column: y, task: classification, classes: ['0', '1']}\n"
        "columns: {x: {range: [0, 6]}, place: {ignore: true}}\n"
    )
    own = [f"dataset.root={tmp_path / 'rows.csv'}", f"dataset.schema_file={tmp_path / 'schema.yaml'}", "dataset=table"]
    two = ["num_clients=2", "clients_per_round=2", "partition=column", "partition.column=place"]
    start_run(compose([*SMALL, *own, *two]), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.summary is not None
    sites = run.summary["metrics"]["sites"]
    assert {one["site"] for one in sites} == {"north", "south"} and sum(one["examples"] for one in sites) == 24
    worst, best = sorted(one["value"] for one in sites)
    mean = (worst * sites[0]["examples"] + best * sites[1]["examples"]) / 24
    assert run.summary["accuracy"]["final"] == pytest.approx(mean)
