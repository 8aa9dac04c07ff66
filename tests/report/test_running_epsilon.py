"""What is said of epsilon while a run goes on, and in its last line: the figure of the table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, result_of, rows_of

from fedpriv.common.files import JsonLines
from fedpriv.report.live.prometheus import RunMetrics
from fedpriv.report.plots import draw_epsilon
from fedpriv.runs import accounts

CENTRAL = ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson")
#: Its budget ends it after some rounds, whose noise is that of sampled batches.
SPENT = ("strategy=dpsgd", "num_rounds=40", "privacy.max_epsilon=1.6")


def verified(folder: Path) -> float | str:
    found: float | str = json.loads((folder / "summary.json").read_text())["privacy"]["verified_epsilon"]
    return found


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> list[RunMetrics]:
    """The metrics of the runs that are started."""
    made: list[RunMetrics] = []
    real = RunMetrics.__init__

    def watched(self: RunMetrics, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(RunMetrics, "__init__", watched)
    return made


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=dpsgd",),
        ("strategy=agn",),
        ("strategy=anr",),  # whose noise depends on earlier outputs: spent_so_far is less
        ("strategy=adpfl",),
        ("strategy=coqfl",),
        ("strategy=fedcad", "strategy.client.obsolete_factor=0.4", "privacy.max_epsilon=2000"),
        ("strategy=nbafl",),
        ("strategy=fedavg",),  # inf
        CENTRAL,  # entries of all clients in common
    ],
    ids=lambda options: options[0].removeprefix("strategy="),
)
def test_the_last_line_is_the_tables(
    options: tuple[str, ...], run: Run, gauges: list[RunMetrics], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(*options, "operations.report=false")
    rows = rows_of(folder)
    assert rows[-1]["epsilon_so_far"] == verified(folder)
    assert gauges[0]._epsilon._value.get() == float(verified(folder))
    shown = re.findall(r"round 3/3 .* epsilon (\S+)", capsys.readouterr().out)
    assert shown == ["infinite" if verified(folder) == "inf" else session_figure(float(verified(folder)))]


def session_figure(value: float) -> str:
    from fedpriv.report.live.progress import figure

    return figure(value)


@pytest.mark.parametrize("options", [("strategy=dpsgd",), ("strategy=agn",)])
def test_before_the_last_round_it_is_an_upper_bound_on_what_a_run_to_there_has_spent(
    options: tuple[str, ...], run: Run
) -> None:
    quiet = ("operations.report=false", "engine.trainer=sequential")
    whole, until_two = run(*options, *quiet), run(*options, *quiet, "num_rounds=2")
    first, second, last = (float(row["epsilon_so_far"]) for row in rows_of(whole))
    assert first < second and float(verified(until_two)) < second < 2.5 * float(verified(until_two))
    assert last == verified(whole) > verified(until_two)


def test_a_run_that_budgets_ended_has_the_same_last_line(run: Run, gauges: list[RunMetrics]) -> None:
    folder = run(*SPENT, "operations.report=false")
    rows, summary = rows_of(folder), json.loads((folder / "summary.json").read_text())
    assert 2 < len(rows) < 40 and "max_epsilon" in summary["note"]
    assert rows[-1]["epsilon_so_far"] == verified(folder) == gauges[0]._epsilon._value.get() <= 2
    assert rows[-2]["epsilon_so_far"] != verified(folder) and rows[-1]["round"] == len(rows)


def test_a_run_that_budgets_ended_is_resumed_to_the_same_lines(resumed: Callable[..., Path], run: Run) -> None:
    options = (*SPENT, "checkpoint.every=1", "operations.report=false", "engine.trainer=sequential")
    assert result_of(resumed(*options, after=2)) == result_of(run(*options))


def test_the_ledger_is_verified_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line costs no second account."""
    calls: list[Any] = []
    real = accounts.verify

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(accounts, "verify", counted)
    run("strategy=dpsgd", "operations.report=false")
    assert len(calls) == 1


def test_the_last_of_some_lines_is_replaced(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "lines")
    for number in range(3):
        lines.append({"number": number})
    lines.replace_last({"number": 7})
    lines.append({"number": 8})
    assert lines.read() == [{"number": number} for number in (0, 1, 7, 8)]


@pytest.mark.parametrize(("values", "falls"), [([1.0, 2.0, 1.5], True), ([1.0, 2.0, 2.0], False), (["inf"] * 3, False)])
def test_the_plots_caption_says_why_the_line_falls(values: list[Any], falls: bool, tmp_path: Path) -> None:
    rounds = [{"round": number, "epsilon_so_far": value} for number, value in enumerate(values, 1)]
    picture = draw_epsilon(rounds, {"verified_epsilon": values[-1]}, tmp_path)
    assert picture is not None and ("faster" in picture.caption) is falls
