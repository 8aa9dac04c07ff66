"""`import fedpriv` in Python: what its calls return and raise, and that they leave the process as it was."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import logging
import math
import os
import signal
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import result_of

import fedpriv

SMALL = ["num_clients=4", "clients_per_round=4", "num_rounds=3", "engine=inprocess"]
QUICK = [*SMALL, "operations.report=false"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedpriv.Run:
    return fedpriv.run(SMALL, folder=tmp_path_factory.mktemp("finished") / "run", quiet=True)


def test_importing_is_light_and_names_are_complete() -> None:
    code = (
        "import sys, time; began = time.process_time(); import fedpriv; spent = time.process_time() - began; "
        "heavy = {'torch', 'numpy', 'hydra', 'pydantic', 'flwr'} & set(sys.modules); "
        "assert not heavy and spent < 0.5, (heavy, spent); "
        "assert set(fedpriv.__all__) <= set(dir(fedpriv)); fedpriv.OptionError; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in fedpriv.__all__:
        assert getattr(fedpriv, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = fedpriv.runn  # type: ignore[attr-defined]


def test_what_a_checker_sees_is_what_there_is() -> None:
    """The imports under TYPE_CHECKING are what mypy and an editor read; the table is what Python does."""
    tree = ast.parse(Path(fedpriv.__file__).read_text())
    (checking,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {
        alias.name: node.module for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    homes = {name: fedpriv._ELSEWHERE.get(name, "fedpriv.api.calls") for name in {*fedpriv.__all__} - {"__version__"}}
    assert seen == homes


def test_no_call_has_the_name_of_a_module() -> None:
    """Importing the module would put it in the call's place; `ask` and `check` alone are commands too."""
    taken = [name for name in fedpriv.__all__ if name != "__version__" and importlib.util.find_spec(f"fedpriv.{name}")]
    assert taken == ["ask", "check"] and all(getattr(fedpriv, name).__doc__ for name in fedpriv.__all__)


# --- what a run gives ------------------------------------------------------------------------------------


def test_a_run_is_its_folder_as_an_object(finished: fedpriv.Run) -> None:
    summary = finished.summary
    assert finished.finished and finished.config.num_rounds == summary["rounds"] == 3
    assert finished.verified_epsilon == summary["privacy"]["verified_epsilon"] > 0
    assert finished.claimed_epsilon == summary["privacy"]["claimed_epsilon"]
    assert list(finished.metrics["round"]) == [1, 2, 3]
    assert len(finished.ledger) == 12 and set(finished.ledger["client"]) == {0, 1, 2, 3}
    assert {"accuracy", "epsilon"} <= finished.figures.keys()
    assert finished.figures["accuracy"]._repr_png_().startswith(b"\x89PNG")
    assert finished.report.read_text().startswith("<!")
    assert finished.model.probabilities(torch.zeros(2, 1, 8, 8, dtype=torch.uint8).numpy()).shape == (2, 10)
    assert fedpriv.load(finished.folder) == finished and len({finished, fedpriv.load(str(finished.folder))}) == 1
    assert repr(finished) == f"Run({str(finished.folder)!r})"


def test_without_pandas_tables_are_lists(finished: fedpriv.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["round"] for row in finished.metrics] == [1, 2, 3]
    assert len(finished.ledger) == 12


def test_a_notebook_shows_the_three_epsilons(finished: fedpriv.Run, tmp_path: Path) -> None:
    shown = finished._repr_html_()
    for name, value in (("claimed", finished.claimed_epsilon), ("verified", finished.verified_epsilon)):
        assert f"<span>{name} epsilon</span><b>{value:.4g}" in shown or f"{value:,.0f}" in shown, name
    assert "audited epsilon" in shown and "report.html" in shown
    import shutil

    hostile = tmp_path / "hostile"
    shutil.copytree(finished.folder, hostile)
    text = (hostile / "summary.json").read_text().replace('"fedcad"', '"<script>alert(1)</script>"')
    (hostile / "summary.json").write_text(text)
    assert "<script>" not in fedpriv.load(hostile)._repr_html_()


def test_a_plan_writes_nothing_and_the_run_confirms_it(
    finished: fedpriv.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = fedpriv.plan_run(SMALL)
    assert not list(tmp_path.iterdir())
    assert plan.verified_epsilon == pytest.approx(finished.verified_epsilon, rel=1e-9)
    assert plan.summary["participations"] == (3, 3) and plan.config.engine.trainer in ("sequential", "vectorised")
    assert f"{plan.verified_epsilon:.4g}" in plan._repr_html_()


def test_an_audit_goes_into_the_run(finished: fedpriv.Run) -> None:
    found = fedpriv.audit_run(finished, trials=2000)
    assert found.scopes[0].participations == 3
    assert finished.audited_epsilon == found.audited_epsilon <= (finished.verified_epsilon or 0)
    assert "whole run" in found._repr_html_() and len(found.summary) >= 2
    fewer = fedpriv.audit_run(finished, trials=1000, participations=1)  # of a part of the run: not written
    assert fewer.audited_epsilon != found.audited_epsilon == finished.audited_epsilon
    once = fedpriv.audit_run(["strategy=fedldp", "num_rounds=2"], trials=1000, participations=1)
    assert [scope.participations for scope in once.scopes] == [1]


def test_an_attack_goes_into_the_run(tmp_path: Path) -> None:
    kept = ["strategy=fedavg", "dataset.train_examples=400", "attack.keep_snapshots=true", "attack.snapshot_every=1"]
    run = fedpriv.run([*QUICK, *kept], folder=tmp_path / "run", quiet=True)
    found = fedpriv.attack_run(run, "confidence_series", quiet=True, control_models=6, control_epochs=300)
    assert set(found.records) == set(found.summary) == set(run.summary["attacks"]) == {"confidence_series"}
    assert "confidence_series" in found._repr_html_()
    with pytest.raises(fedpriv.OptionError, match="shadow=3: there is no such option here; allowed: run, attack, mem"):
        fedpriv.attack_run(run, shadow=3)


def test_runs_are_compared(finished: fedpriv.Run, tmp_path: Path) -> None:
    other = fedpriv.run([*QUICK, "seed=1"], folder=tmp_path / "b", quiet=True)
    third = fedpriv.run([*QUICK, "strategy=fedldp"], folder=tmp_path / "c", quiet=True)
    found = fedpriv.compare_runs([finished, other.folder, str(third.folder)])
    assert sorted(row["runs"] for row in found.summary) == [1, 2]
    accuracies = [run.summary["accuracy"]["final"] for run in (finished, other)]
    (pair,) = [row for row in found.summary if row["runs"] == 2]
    assert pair["accuracy"] == pytest.approx(sum(accuracies) / 2) and pair["strategy.name"] == "fedcad"
    assert "fedldp" in found._repr_html_()
    assert {path.name for path in found.write(tmp_path / "out")} >= {"comparison.html", "comparison.csv"}
    with pytest.raises(fedpriv.RunFolderError, match=r"no run in it|no such folder"):
        fedpriv.compare_runs([tmp_path / "nowhere"])


def test_more_rounds_and_the_same_run_with_other_options(tmp_path: Path) -> None:
    short = fedpriv.run([*QUICK, "num_rounds=1"], folder=tmp_path / "short", quiet=True)
    price = short.verified_epsilon
    longer = fedpriv.extend_run(short, ["num_rounds=2"], quiet=True)
    assert longer == short and longer.summary["rounds"] == 2 and len(longer.metrics) == 2
    assert price is not None and longer.verified_epsilon is not None and longer.verified_epsilon > price
    whole = fedpriv.rerun(longer, folder=tmp_path / "whole", quiet=True)  # both rounds at once
    assert result_of(whole.folder)["model"] == result_of(longer.folder)["model"]
    other = fedpriv.rerun(short.folder, ["num_rounds=1", "seed=1"], folder=tmp_path / "other", quiet=True)
    assert (other.config.seed, other.config.num_rounds, other.summary["rounds"]) == (1, 1, 1)
    with pytest.raises(fedpriv.OptionError, match=r"local\.lr=1: extend= changes num_rounds"):
        fedpriv.extend_run(short, ["num_rounds=3", "local.lr=1"])
    with pytest.raises(fedpriv.OptionError, match="seed=1,2: one run has one value"):
        fedpriv.rerun(short, ["seed=1,2"], folder=tmp_path / "never")
    with pytest.raises(fedpriv.RunFolderError, match="holds a run already"):
        fedpriv.rerun(short, ["seed=1"], folder=whole.folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "short", "whole"]


# --- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["strategy=fedcat"], r"strategy=fedcat: allowed: .*did you mean fedcad"),
        (["num_rounds=0"], "num_rounds=0: must be at least 1"),
        (["seed=1,2"], "seed=1,2: one run has one value"),
        (["resume=x"], r"resume=x: is a call of its own: fedpriv\.resume_run"),
        (["plan=true"], r"plan=true: is a call of its own: fedpriv\.plan_run"),
        (["rerun=x"], r"rerun=x: is a call of its own: fedpriv\.rerun"),
        (["extend=x"], r"extend=x: is a call of its own: fedpriv\.extend_run"),
        (["hydra.run.dir=x"], r"hydra\.run\.dir=x: is for the command line; where a run is written says folder="),
        (["nonsense"], "nonsense: not of the form option=value"),
        ("seed=1", r'options=seed=1: must be a list: \["seed=1"\]'),
    ],
)
def test_a_wrong_option_is_an_exception_and_leaves_nothing(
    options: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (fedpriv.run, fedpriv.plan_run):
        with pytest.raises(fedpriv.OptionError, match=words):
            call(options)
    assert not list(tmp_path.iterdir())


def test_an_option_that_is_given_twice_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert fedpriv.plan_run(["num_rounds=2", "seed=1", "seed=1", "num_rounds=3"]).config.num_rounds == 3
    assert "fedpriv: num_rounds is given as 2 and as 3: the last one counts\n" in capfd.readouterr().err


def test_what_is_no_run_is_named(tmp_path: Path, finished: fedpriv.Run) -> None:
    with pytest.raises(fedpriv.RunFolderError, match="no such run folder"):
        fedpriv.load(tmp_path / "nowhere")
    with pytest.raises(fedpriv.RunFolderError, match="holds a run already"):
        fedpriv.run(QUICK, folder=finished.folder)
    with pytest.raises(fedpriv.RunFolderError, match="this run has finished"):
        fedpriv.resume_run(finished)
    for wrong in ({"trials": 10}, {"confidence": 2.0}, {"level": "all"}, {"participations": 0}):
        with pytest.raises(fedpriv.OptionError, match=f"{next(iter(wrong))}="):
            fedpriv.audit_run(finished, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: fedpriv.load(None), r"folder=None: must be a str or a Path$"),
        (lambda run: fedpriv.plan_run([3]), r"options=\[3\]: must be a list, each item a str$"),
        (lambda run: fedpriv.run(options=3), "options=3: must be a list"),
        (
            lambda run: fedpriv.run(QUICK, folder=run.folder / "summary.json"),
            r"summary.json: is a file; allowed: a new",
        ),
        (lambda run: fedpriv.rerun(run, "seed=1"), r'options=seed=1: must be a list: \["seed=1"\]'),
        (lambda run: fedpriv.compare_runs(run), r"runs=Run\(.*\): must be a list, each item a Run, a str or a Path$"),
        (lambda run: fedpriv.audit_run(run, trials="x"), "trials=x: must be a whole number$"),
        (lambda run: fedpriv.audit_run(None), "run=None: must be a Run, a str, a Path or a list, each item a str$"),
        (lambda run: fedpriv.certify_run(run, verifier="maybe"), "verifier=maybe: allowed: true, false$"),
        (lambda run: fedpriv.ask({}, ["count"], {}, "x"), "epsilon=x: must be a number$"),
        (
            lambda run: fedpriv.ask({}, ["count"], {"columns": {"a": None, "b": 3}}, 1.0),
            "dataset.schema_file=a mapping: ",
        ),
        (lambda run: fedpriv.ask({}, ["count"], {}, 1.0), "dataset.schema_file=a mapping: columns: the option has no"),
        (
            lambda run: fedpriv.ask("t.csv", ["count"], "s.yaml", 1.0, options=["privacy={target_epsilon: 5}"]),
            "privacy.target_epsilon=5: 1.0 is given already, in Python and R as an argument",
        ),
        (lambda run: fedpriv.Run(3), "folder=3: must be a str or a Path$"),
        (
            lambda run: fedpriv.load("a" * 5000),
            r"^folder=a{500}\.\.\.: must be a path: it, or a name in it, is longer than",
        ),
        (lambda run: fedpriv.run([], folder="a" * 5000), r"^folder=a{500}\.\.\.: must be a path: .* is longer than"),
        (lambda run: fedpriv.run([], folder="a\0b"), r"^folder=a\\0b: must be a path: it holds the character NUL$"),
        (
            lambda run: fedpriv.ask({}, ["count"], "a\0b", 1.0),
            r"^schema=a\\0b: must be a path: it holds the character NUL$",
        ),
        (
            lambda run: fedpriv.plan_run(["dataset.cache=" + "a" * 5000]),
            r"^dataset\.cache=a{500}\.\.\.: must be a path: ",
        ),
        (
            lambda run: fedpriv.plan_run(["dataset.cache='a\0b'"]),
            r"^dataset\.cache='a\\0b': holds the character NUL, which no",
        ),
        (lambda run: fedpriv.check(None), r"target=None: must be a name \(module:attribute\), or a function"),
        (
            lambda run: run.model.probabilities([[1, 2]]),
            r"images: .* uint8 \[n, 1, 8, 8\], got int64 \[1, 2\]",
        ),
        (lambda run: run.model.probabilities([[1], [1, 2]]), "images: no array of pictures"),
    ],
)
def test_an_argument_of_another_type_is_named(
    finished: fedpriv.Run, call: Callable[[fedpriv.Run], object], words: str
) -> None:
    with pytest.raises(fedpriv.FedprivError, match=words):
        call(finished)


@pytest.mark.parametrize("name", ["run", "plan_run", "rerun", "extend_run", "ask"])
def test_a_type_checker_refuses_one_text_for_a_list(name: str) -> None:
    """A str is a Sequence[str]: fedpriv.run("strategy=fedcad") must not pass."""
    hints = typing.get_type_hints(getattr(fedpriv, name))
    given = ["options", *["questions"] * (name == "ask")]
    assert [hints[one] for one in given] == [list[str] | tuple[str, ...]] * len(given)


@pytest.mark.parametrize(
    "columns", [{"age": {"range": [0, 100]}}, {"age": {"range": [0, 100]}, "ill": {"values": ["a"]}}]
)
def test_no_column_becomes_a_target(columns: dict[str, Any]) -> None:
    """A target has no missing cell, a column may, and a single one may be asked about."""
    table = {"ill": ["a", "b", None, "b"] * 50, "age": [30, None, 50, 60] * 50}
    answers = fedpriv.ask(table, ["count"], {"columns": columns}, 8.0, options=["privacy.rng=seeded"])
    assert abs(answers.answers[0].values[0] - 200) < 5


def test_a_table_in_memory_is_no_file_of_a_refusal() -> None:
    table: dict[str, list[Any]] = {"age": []}
    with pytest.raises(fedpriv.DataError, match=r"^the table: has no rows$"):
        fedpriv.ask(table, ["count"], {"columns": {"age": {"range": [0, 100]}}}, 8.0)


@pytest.mark.parametrize("form", ["mapping", "file"])
def test_questions_need_no_target(form: str, tmp_path: Path) -> None:
    table = {"ill": ["yes", "no", "yes", "no"] * 50, "age": [30, 40, 50, 60] * 50}
    schema = {"columns": {"ill": {"values": ["no", "yes"]}, "age": {"range": [0, 100]}}}
    file = tmp_path / "schema.yaml"
    file.write_text(yaml.safe_dump(schema))
    given: Any = schema if form == "mapping" else file
    answers = fedpriv.ask(table, ["count:ill:yes", "mean:age"], given, 8.0, options=["privacy.rng=seeded"])
    count, mean = (answer.values[0] for answer in answers.answers)
    assert abs(count - 100) < 5 and abs(mean - 45) < 5


def test_too_many_arguments_are_said_as_python_says_it() -> None:
    with pytest.raises(TypeError, match=r"load\(\) got an unexpected keyword argument 'quiet'"):
        fedpriv.load("x", quiet=True)  # type: ignore[call-arg]


# --- a guest in somebody else's process ------------------------------------------------------------------


def state_of_the_process() -> dict[str, Any]:
    return {
        "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "threads": torch.get_num_threads(),
        "path": list(sys.path),
        "root": (list(logging.getLogger().handlers), logging.getLogger().level),
        "flower": logging.getLogger("flwr").level,
        "disabled": logging.root.manager.disable,
        "environment": {name for name in os.environ if name.startswith("FEDPRIV_")},
        "loop": asyncio.get_event_loop_policy(),
    }


def test_runs_leave_the_process_as_it_was_also_where_an_event_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    before = state_of_the_process()

    async def cell() -> list[fedpriv.Run]:
        return [fedpriv.run([*QUICK, "engine.threads_per_client=2"], quiet=True) for _ in range(2)]

    first, second = asyncio.run(cell())
    assert state_of_the_process() == before
    assert first.folder != second.folder  # although they began within a second
    assert first.folder.parents[2] == tmp_path and first.folder.parents[1].name == "outputs"
    assert result_of(first.folder) == result_of(second.folder)
    with pytest.raises(fedpriv.OptionError):
        fedpriv.run(["num_rounds=0"])
    assert state_of_the_process() == before


def test_quiet_says_nothing_and_otherwise_rounds_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedpriv.run(QUICK, folder=tmp_path / "a", quiet=True)
    assert capsys.readouterr() == ("", "")
    fedpriv.run(QUICK, folder=tmp_path / "b")
    assert "round 3/3" in capsys.readouterr().out


def test_after_ctrl_c_the_run_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.runs.session import Session

    whole = fedpriv.run([*QUICK, "checkpoint.every=1"], folder=tmp_path / "whole", quiet=True)
    real = Session._end_round

    def pressed(session: Session, current: Any) -> None:
        if current.number == 2:
            os.kill(os.getpid(), signal.SIGINT)  # a real one: this round ends, the next does not begin
        real(session, current)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as stopped:
        patch.setattr(Session, "_end_round", pressed)
        fedpriv.run([*QUICK, "checkpoint.every=1"], folder=tmp_path / "stopped", quiet=True)
    assert "fedpriv.resume_run(" in "".join(stopped.value.__notes__)
    part = fedpriv.load(tmp_path / "stopped")
    assert not part.finished and len(part.metrics) == 2 and "not finished" in part._repr_html_()
    with pytest.raises(fedpriv.RunFolderError, match=r"has not finished, fedpriv\.resume_run"):
        _ = part.summary
    resumed = fedpriv.resume_run(part, quiet=True)
    assert result_of(resumed.folder)["model"] == result_of(whole.folder)["model"]
    assert resumed.verified_epsilon == whole.verified_epsilon


def test_a_users_method_of_the_working_directory_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.commands.new import make_method

    make_method("own_idea", tmp_path)
    with pytest.raises(fedpriv.OptionError, match="strategy=own_idea"):
        fedpriv.plan_run(["strategy=own_idea"])
    monkeypatch.chdir(tmp_path)
    run = fedpriv.run([*QUICK, "strategy=own_idea", "num_rounds=1"], folder="here", quiet=True)
    assert run.folder == tmp_path / "here" and math.isfinite(run.verified_epsilon or math.inf)
