"""What is said of epsilon while a run goes on, and in its last line: the figure of the table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, result_of, rows_of

from fedpriv.config.methods import METHODS
from fedpriv.privacy.composition import RunningTotals, compose, make_history
from fedpriv.privacy.events import PoissonGaussian
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS
from fedpriv.report.live.progress import RunProgress
from fedpriv.report.live.prometheus import RunMetrics
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
    assert gauges[0]._gauges["epsilon_spent"]._value.get() == float(verified(folder))
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
    assert first <= second and float(verified(until_two)) < second < 2.5 * float(verified(until_two))
    assert last == verified(whole) > verified(until_two)


def test_a_run_that_budgets_ended_has_the_same_last_line(run: Run, gauges: list[RunMetrics]) -> None:
    folder = run(*SPENT, "operations.report=false")
    rows, summary = rows_of(folder), json.loads((folder / "summary.json").read_text())
    assert 2 < len(rows) < 40 and "max_epsilon" in summary["note"]
    assert rows[-1]["epsilon_so_far"] == verified(folder) == gauges[0]._gauges["epsilon_spent"]._value.get() <= 2
    said = [row["epsilon_so_far"] for row in rows]
    assert said == sorted(said) and rows[-1]["round"] == len(rows)


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


#: Every method, and what makes its noise, budget or cohorts other ones.
FORMS = (
    *((f"strategy={name}",) for name in sorted(METHODS) if name != "ask"),
    CENTRAL,
    ("strategy=dpfedavg", CENTRAL[1], "strategy.server.client_sampling=allocated", "clients_per_round=2"),
    ("strategy=dpsgd", "privacy.max_epsilon=1.6"),
    ("strategy=fedcad", "strategy.client.obsolete_factor=0.4", "privacy.max_epsilon=2000"),
)


@pytest.mark.parametrize("options", FORMS, ids=" ".join)
def test_it_never_falls_and_ends_at_the_tables_figure(
    options: tuple[str, ...], run: Run, gauges: list[RunMetrics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the file, and in what was shown while the run went on (of a run that came to its planned end)."""
    shown: list[float] = []
    monkeypatch.setattr(RunProgress, "round", lambda self, number, reached, epsilon, seconds: shown.append(epsilon))
    folder = run(*options, "num_rounds=6", "evaluate.every=0", "operations.report=false")
    said = [float(row["epsilon_so_far"]) for row in rows_of(folder)]
    assert (
        said == sorted(said) and said[-1] == float(verified(folder)) == gauges[0]._gauges["epsilon_spent"]._value.get()
    )
    if len(said) == 6:
        assert shown == sorted(shown)


def test_a_part_of_the_plan_costs_no_more_than_the_plan() -> None:
    """Renyi's bound of the last round but one exceeds the exact one of all."""
    event = PoissonGaussian(threat=TO_OUTSIDERS, multiplier=2.0, sampling_rate=0.1)
    plan = make_history([event] * 10)
    whole = compose([event] * 10, 1e-5).epsilon
    totals, free = RunningTotals(1e-5), RunningTotals(1e-5)
    totals.within((plan,), whole)
    seen = []
    for _ in range(12):
        for one in (totals, free):
            one.add([([0], [event])])
        seen.append((totals.maximum(), free.maximum()))
    assert seen[8][1] > whole == seen[8][0] == seen[9][0]
    assert seen[0][0] == seen[0][1] < whole and seen[10][0] == seen[10][1]  # beyond the plan it says nothing
