"""Proportional hazards as a table's task: schema, rows, loss, metrics, a run and its predictions."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from scipy import stats

import fedpriv
from fedpriv.commands.predict import main
from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.config.schema import ModelConfig
from fedpriv.data.asked import Asks
from fedpriv.data.questions import parse
from fedpriv.data.table_rows import encode_file, task_of
from fedpriv.data.table_schema import schema_of
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.tasks import Survival
from fedpriv.runs.start import start_run
from fedpriv.training.models import build_model
from fedpriv.training.task_metrics import brier_scores, concordance, kaplan_meier, metrics
from fedpriv.training.trained_model import TableModel
from tools import survival_figure
from tools.survival_figure import cox

#: What lifelines 0.30.3 (CoxPHFitter) says of the twelve rows of a test.
LIFELINES = [-0.452136, 0.567690]
COLUMNS: dict[str, Any] = {"columns": {"age": {"range": [20, 90]}, "arm": {"values": ["old", "new"]}}}
SCHEMA: dict[str, Any] = {
    "target": {"task": "survival", "time": "months", "event": "died", "until": 120},
} | COLUMNS


def of(**target: Any) -> Any:
    return schema_of(SCHEMA | {"target": SCHEMA["target"] | target}, "test")


def written(path: Path, rows: str) -> Path:
    path.write_text("age,arm,months,died\n" + rows)
    return path


# --- the schema and the rows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"time": None}, "allowed: event, time, until"),
        ({"event": None}, "allowed: event, time, until"),
        ({"until": None}, "allowed: event, time, until"),
        ({"until": 0}, "until"),
        ({"until": -3}, "until"),
        ({"intervals": 0}, "intervals"),
        ({"column": "died"}, "allowed: event, time, until"),
        ({"event": "months"}, "time and event"),
        ({"classes": ["a", "b", "c"]}, "two"),
        ({"classes": ["alive", "dead"], "positive": "gone"}, "positive"),
        ({"time": "age"}, "age is the target"),
        ({"task": "regression"}, "allowed: column, range"),
    ],
)
def test_a_target_that_says_too_little_or_too_much_is_refused(target: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        of(**target)


def test_rows_are_times_of_the_end_and_events_before_it(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "50,old,60,1\n60,new,0,1\n70,old,120,1\n30,new,500,1\n40,old,12,0\n")
    found = encode_file(file, of())
    assert found.targets is not None and found.targets.dtype == np.float32
    # Who reaches the end lives on, whatever happens then.
    assert found.targets.tolist() == [[0.5, 1], [0, 1], [1, 0], [1, 0], pytest.approx([0.1, 0])]
    assert any("2 of 5 rows reach the end" in remark for remark in found.remarks)
    task = task_of(of(intervals=4))
    assert isinstance(task, Survival) and (task.until, task.intervals, task.labels) == (120, 4, ("died",))


def test_events_may_have_words(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "50,old,60,dead\n60,new,30,alive\n")
    dead, alive = (encode_file(file, of(classes=["alive", "dead"], positive=one)).targets for one in (None, "alive"))
    assert dead is not None and dead[:, 1].tolist() == [1, 0]
    assert alive is not None and alive[:, 1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("50,old,-1,1\n", "row 1: -1 is before the beginning; allowed: times from 0"),
        ("50,old,60,1\n50,old,long,1\n", "row 2: 'long' is not a number"),
        ("50,old,,1\n", "row 1: the target is missing"),
        ("50,old,60,\n", "row 1: the target is missing; classes: 0, 1"),
        ("50,old,60,2\n", "row 1: '2' is none of the classes; classes: 0, 1"),
    ],
)
def test_rows_without_a_time_or_an_event_are_refused(tmp_path: Path, rows: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        encode_file(written(tmp_path / "a.csv", rows), of())


def test_a_site_without_an_event_is_told_so(tmp_path: Path) -> None:
    found = encode_file(written(tmp_path / "a.csv", "50,old,60,0\n60,new,200,1\n"), of())
    assert any("died: no row has the event before 120" in remark for remark in found.remarks)


# --- the loss and the metrics ------------------------------------------------------------------------------


def test_the_loss_is_minus_the_log_likelihood_of_constant_hazards_by_interval() -> None:
    task, rng = Survival(("died",), 120.0, 4), np.random.default_rng(0)
    times = np.concatenate([[0.0, 0.25, 0.5, 1.0, 1.0], rng.random(30)])
    events = np.concatenate([[1, 1, 0, 0, 1], rng.integers(0, 2, 30)])
    outputs = rng.normal(0, 2, (len(times), 4))
    expected = []
    for time, event, row in zip(times, events, np.exp(outputs), strict=True):
        hazard = [row[j] * min(max(time - j / 4, 0), 1 / 4) for j in range(4)]
        expected.append(sum(hazard) - (math.log(row[max(math.ceil(time * 4) - 1, 0)]) if event else 0))
    targets = torch.tensor(np.stack([times, events], axis=1))
    assert task.losses(torch.tensor(outputs), targets).numpy() == pytest.approx(np.array(expected))
    assert task.blank(2, 3).shape == (2, 3, 2) and (task.blank(4)[:, 1] == 1).all()  # has a gradient
    # The likelihood is that of the survival curve: exp(-cumulative hazard).
    at = torch.tensor([0.0, 0.3, 0.75, 1.0], dtype=torch.float64)
    curves = task.survival(torch.tensor(outputs), at)
    alive = task.losses(torch.tensor(outputs), torch.tensor([[0.3, 0.0]] * len(times), dtype=torch.float64))
    assert curves[:, 1].numpy() == pytest.approx(np.exp(-alive.numpy())) and (curves[:, 0] == 1).all()


def test_c_index_and_brier_score_are_those_of_their_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, n = np.random.default_rng(1), 150
    times, events = rng.integers(1, 30, n) / 30, rng.integers(0, 2, n).astype(float)
    events[times >= 1] = 0
    risk = rng.integers(0, 9, n).astype(float)
    pairs = [
        (risk[i], risk[j])
        for i in range(n)
        for j in range(n)
        if events[i] and (times[i] < times[j] or (times[i] == times[j] and not events[j]))
    ]
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert concordance(risk, times, events) == pytest.approx(expected)
    monkeypatch.setattr("fedpriv.training.task_metrics.PAIRS", 1000)  # in many parts
    assert concordance(risk, times, events) == pytest.approx(expected)
    assert concordance(risk, times, np.zeros(n)) is None
    at, survival = np.array([0.25, 0.5, 1.0]), rng.random((n, 3))
    censored = stats.ecdf(stats.CensoredData.right_censored(times, (events == 1) | (times >= 1))).sf
    for place, time in enumerate(at):
        total = 0.0
        for own, event, said in zip(times, events, survival[:, place], strict=True):
            if own <= time and event:
                total += said**2 / censored.evaluate(own - 1e-9)
            elif own > time or own >= 1:
                total += (1 - said) ** 2 / censored.evaluate(time)
        assert brier_scores(survival, times, events, at)[place] == pytest.approx(total / n)
    curve = stats.ecdf(stats.CensoredData.right_censored(times, events == 0)).sf.evaluate(at)
    assert kaplan_meier(times, events == 1, at) == pytest.approx(curve)


def test_metrics_of_a_model_that_knows_the_hazards() -> None:
    rng, n = np.random.default_rng(2), 4000
    eta = rng.normal(0, 1, n)
    times = rng.exponential(1 / np.exp(eta))
    last = rng.uniform(0.2, 2, n).clip(max=1)
    targets = torch.tensor(np.stack([np.minimum(times, last), times < last], axis=1), dtype=torch.float32)
    outputs = torch.tensor(np.repeat(eta[:, None], 5, axis=1), dtype=torch.float32)
    found = metrics(Survival(("died",), 7.0, 5), outputs, targets, 0.4)
    assert 0.7 < found["c_index"] < 0.8 and found["brier"] < 0.8 * found["base_brier"]
    assert abs(found["survival_error"]) < 0.02 and found["loss"] == 0.4
    none = metrics(Survival(("died",), 7.0, 5), outputs, targets * torch.tensor([1.0, 0.0]), 0.4)
    assert "c_index" not in none  # nobody had the event
    everyone = metrics(Survival(("died",), 7.0, 5), outputs * torch.nan, targets, 0.4)
    assert everyone["c_index"] == 0.5 and np.isfinite(list(everyone.values())).all()


# --- runs --------------------------------------------------------------------------------------------------

ROWS = 240
UNITS = {"fedavg": "", "dpsgd": "", "dpsum": "unit: patient\n"}


def patients(rows: int = ROWS) -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    age, arm = rng.integers(20, 91, rows), rng.choice(["old", "new"], rows)
    times = rng.exponential(80 * np.exp(-(age - 55) / 15 + (arm == "new")))
    last = rng.uniform(30, 200, rows)
    columns = {"patient": np.arange(rows) // 2, "age": age, "arm": arm}
    return pandas.DataFrame(columns | {"months": np.minimum(times, last).round(2), "died": (times < last).astype(int)})


@pytest.fixture(scope="module", params=UNITS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder, beside the table and without the schema's file."""
    folder = tmp_path_factory.mktemp(request.param)
    columns = "columns:\n  age: {range: [20, 90]}\n  arm: {values: [old, new]}\n"
    target = "target: {task: survival, time: months, event: died, until: 120, intervals: 4}\n"
    (folder / "schema.yaml").write_text(target + UNITS[request.param] + columns)
    patients().to_csv(folder / "patients.csv", index=False)
    data = [f"dataset.root={folder}/patients.csv", f"dataset.schema_file={folder}/schema.yaml"]
    sites = ["num_clients=2", "clients_per_round=2", "num_rounds=12", "local.batch_size=20", "local.lr=0.3"]
    noise = {
        "fedavg": ["local.epochs=3"],
        "dpsgd": ["strategy.client.noise_multiplier=0.3", "strategy.client.local_steps=10"],
        "dpsum": ["strategy.client.noise_multiplier=0.5", "strategy.client.clip_norm=2"],
    }[request.param]
    options = ["dataset=table", f"strategy={request.param}", "model=linear", "operations.report=false"]
    start_run(compose([*options, *data, f"dataset.cache={folder}", *sites, *noise]), folder / "run")
    (folder / "schema.yaml").unlink()
    return folder


def test_methods_learn_who_lives_long(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((trained / "run/summary.json").read_text())
    final, frame = summary["metrics"]["final"], patients()
    assert summary["metrics"]["leading"] == "c_index" and final["c_index"] > 0.68
    assert any("fedpriv ask hazards:months:died:COLUMN" in reason for reason in summary["privacy"]["reasons"])
    model = fedpriv.load(trained / "run").model
    assert isinstance(model, TableModel)
    curves = model.survival(frame, [0, 15, 60, 120])
    assert (curves[:, 0] == 1).all() and (np.diff(curves, axis=1) <= 0).all()
    risk = model.predict(frame)
    assert risk == pytest.approx(1 - curves[:, 3]) and np.corrcoef(risk, frame["age"])[0, 1] > 0.5
    # Hazards are proportional: of two people the cumulative ones have one ratio at all times.
    ratios = np.log(curves[0, 1:]) / np.log(curves[1, 1:])
    assert ratios == pytest.approx(np.full(3, ratios[0]), rel=1e-4)
    for wrong in (-1.0, 121.0, math.nan):
        with pytest.raises(DataError, match="must be between 0 and 120"):
            model.survival(frame, [wrong])
    with pytest.raises(DataError, match="died happens at a time: use predict or survival"):
        model.probabilities(frame)
    capsys.readouterr()
    assert main([f"run={trained}/run", str(trained / "patients.csv")]) == 0
    found = pandas.read_csv(io.StringIO(capsys.readouterr().out))
    ends = [f"no died by {end} probability" for end in (30, 60, 90, 120)]
    assert list(found.columns[-5:]) == ["died by 120 probability", *ends]
    assert found[ends[1]].to_numpy() == pytest.approx(curves[:, 2], abs=1e-5)
    assert found["died by 120 probability"].to_numpy() == pytest.approx(risk, abs=1e-5)


def test_another_task_has_no_times(tmp_path: Path) -> None:
    task = task_of(schema_of({"target": {"task": "regression", "column": "y", "range": [0, 1]}} | COLUMNS, "test"))
    with pytest.raises(DataError, match="task=regression has no times; allowed: survival"):
        TableModel(torch.nn.Linear(1, 1), of(), task)._survival(torch.zeros(1, 1), [0.5])


@pytest.mark.parametrize("name", ["linear", "mlp", "softmax", "constant"])
def test_networks_share_one_baseline_and_have_one_ratio(name: str) -> None:
    """Of a person's gradient the clipped one is what autograd gives, by every way that a trainer has."""
    torch.manual_seed(0)
    task = Survival(("died",), 1.0, 5)
    module = build_model(ModelConfig(name=name, hidden=6), (3,), 1, 0, baseline=5)  # type: ignore[arg-type, call-arg]
    inputs, targets = torch.randn(9, 3), torch.stack([torch.rand(9), torch.randint(0, 2, (9,)).float()], dim=1)
    outputs = module(inputs)
    assert outputs.shape == (9, 5) and torch.allclose(outputs.diff(dim=1), outputs[:1].diff(dim=1), atol=1e-6)
    expected = torch.zeros(sum(p.numel() for p in module.parameters()), dtype=torch.float64)
    for one, of_one in zip(inputs, targets, strict=True):
        loss = task.losses(module(one.unsqueeze(0)), of_one.unsqueeze(0)).sum()
        parts = torch.autograd.grad(loss, list(module.parameters()))
        gradient = torch.cat([part.flatten() for part in parts]).double()
        expected += gradient * min(1.0, 0.3 * (1 - KEPT_BACK) / float(gradient.norm()))
    found = PerExampleGradients(module, task=task).clipped_sum(inputs, targets, 0.3)
    assert torch.allclose(found.total, expected, atol=1e-6)


def test_questions_read_a_survival_targets_columns(tmp_path: Path) -> None:
    """As they read columns of a schema for another task."""
    frame = patients()
    frame.to_csv(tmp_path / "a.csv", index=False)
    other = {"target": {"task": "classification", "column": "died", "classes": ["0", "1"]}}
    other["columns"] = COLUMNS["columns"] | {"months": {"range": [0, 120]}}
    found = []
    for schema in (schema_of(other, "test"), of()):
        rows = encode_file(tmp_path / "a.csv", schema)
        questions = parse(("hazards:months:died:age:arm", "survival:months:died:arm:120:6"), schema)
        asks = Asks(("n",) * sum(one.size for one in questions), questions, schema)
        assert rows.targets is not None
        found.append(asks.total(rows.inputs, rows.targets, None))
    assert found[0] == pytest.approx(found[1], abs=1e-5) and np.abs(found[0]).max() > 1


# --- the figures of the page -------------------------------------------------------------------------------


def test_cox_regression_of_the_tool_is_that_of_packages() -> None:
    """lifelines 0.30.3 of these twelve rows (CoxPHFitter, no ties): coefficients and the concordance."""
    rng = np.random.default_rng(0)
    x, times, events = rng.normal(size=(12, 2)), np.arange(1.0, 13.0), np.array([1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1])
    beta = cox(x, times[::-1].copy(), events.astype(float))
    assert beta == pytest.approx(LIFELINES, abs=1e-4)
    doubled = cox(np.concatenate([x, x], axis=1), times[::-1].copy(), events.astype(float))
    assert doubled == pytest.approx(np.concatenate([beta, beta]) / 2, abs=1e-6)  # of collinear columns the shortest


def test_in_a_sum_it_orders_patients_as_cox_regression_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = "target: {task: survival, time: months, event: died, until: 120}\n"
    (tmp_path / "schema.yaml").write_text(schema + "columns:\n  age: {range: [20, 90]}\n  arm: {values: [old, new]}\n")
    patients(600).to_csv(tmp_path / "made.csv", index=False)
    more = [f"dataset.cache={tmp_path}"]
    files = f"{tmp_path}/made.csv", f"{tmp_path}/schema.yaml"
    survival_figure.main(*files, 2, ["8"], tmp_path / "runs", more)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[0][1] == "C-index" and rows[1][0] == "| 8" and rows[2][0] == "| no privacy"
    assert float(rows[1][2].split()[0]) > -0.05
    assert float(rows[1][1].split()[0]) - float(rows[2][1].split()[0]) == pytest.approx(
        float(rows[1][2].split()[0]), abs=0.002
    )
