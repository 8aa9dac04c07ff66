"""Proportional hazards as a table's task: schema, rows, loss, metrics, a run and its predictions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv.common.errors import DataError, OptionError
from fedpriv.data.table_rows import encode_file, task_of
from fedpriv.data.table_schema import schema_of
from fedpriv.mechanisms.tasks import Survival
from fedpriv.training.task_metrics import brier_scores, concordance, kaplan_meier, metrics

SCHEMA: dict[str, Any] = {
    "target": {"task": "survival", "time": "months", "event": "died", "until": 120},
    "columns": {"age": {"range": [20, 90]}, "arm": {"values": ["old", "new"]}},
}


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
