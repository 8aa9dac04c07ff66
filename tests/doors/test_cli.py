"""The command line as a person meets it: commands, exit codes, one-line errors, what is printed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import NO_REPORT, SMALL, Outcome, Run, ledger_of, result_of, rows_of, said_once, summary_of

import fedpriv
from fedpriv.common.command_line import SIMULATION
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF
from fedpriv.report.live.progress import figure

Cli = Callable[..., Outcome]


def figures(printed: str) -> dict[str, str]:
    """``name   value`` lines by name."""
    pairs = (line.split("  ", 1) for line in printed.splitlines() if "  " in line)
    return {name: value.strip() for name, value in pairs}


# --- a run -----------------------------------------------------------------------------------------------


def test_a_run_prints_rounds_a_table_and_where_it_is(cli: Cli, tmp_path: Path, run: Run):
    outcome = cli(*SMALL, "hydra.run.dir=here")
    assert outcome.code == 0 and outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[0].startswith("round 1/3  accuracy ") and "epsilon 284.4" in lines[0]
    for words in ("accuracy", "claimed epsilon", "verified epsilon", "audited epsilon", "not audited", "time"):
        assert words in outcome.out
    assert lines[-2:] == ["folder: here", "report: here/report.html"]
    assert result_of(tmp_path / "here") == result_of(run())  # the same through Hydra and without it


def test_a_partitioner_gets_its_arguments_in_a_run_as_in_its_plan(cli: Cli, tmp_path: Path):
    named = ("partition=partitioner", "partition.partitioner=SizePartitioner")
    given = "partition.arguments={partition_sizes: [1300, 90, 27, 20]}"
    assert cli(*SMALL, NO_REPORT, "num_rounds=1", *named, given, "hydra.run.dir=here").code == 0
    assert "partition_sizes" in (tmp_path / "here/config.yaml").read_text()


def test_a_run_has_a_folder_of_its_own_by_default(cli: Cli, tmp_path: Path):
    assert cli(*SMALL, "num_rounds=1", NO_REPORT).code == 0
    (folder,) = (tmp_path / "outputs").glob("*/*-fedcad-digits")
    assert (folder / "summary.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"outputs"}  # nothing else is left where one works


def test_without_the_packages_of_a_simulation_nothing_is_begun(cli: Cli, tmp_path: Path, monkeypatch):
    for name in SIMULATION:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    outcome = cli(*SMALL, "hydra.run.dir=here", "num_rounds=1")
    words = re.fullmatch(r"fedpriv: this needs (\w+), which .*: pip install 'fedpriv\[simulation\]'\n", outcome.err)
    assert outcome.code == 2 and words is not None and words[1] in SIMULATION  # the first that is not imported yet
    assert not (tmp_path / "here/metrics.jsonl").exists()
    extras = tomllib.loads((CONF.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    imported = {name.replace("_", "-") for name in SIMULATION} | {"hydra-joblib-launcher", "flwr", "pandas"}
    assert {re.split(r"[\[~>]", line)[0] for line in extras["simulation"]} == imported - {"ray"}


def test_the_second_run_in_a_folder_is_refused(cli: Cli):
    assert cli(*SMALL, NO_REPORT, "num_rounds=1", "hydra.run.dir=here").code == 0
    outcome = cli(*SMALL, NO_REPORT, "num_rounds=1", "hydra.run.dir=here")
    assert outcome.code == 2 and "here holds a run already" in outcome.err and outcome.err.count("\n") == 1


def test_a_run_that_fails_is_exit_code_1_and_keeps_what_it_had(cli: Cli, tmp_path: Path):
    fault = "engine.faults=[{round:2,client:1,kind:raise}]"
    outcome = cli(*SMALL, NO_REPORT, "strategy.server.min_replies=4", fault, "hydra.run.dir=here")
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert "round 2: 3 usable replies of 4" in outcome.err and "client 1: PlannedFault" in outcome.err
    assert len((tmp_path / "here" / "metrics.jsonl").read_text().splitlines()) == 1


# --- mistakes --------------------------------------------------------------------------------------------


def test_broken_pictures_reach_the_user_by_name(cli: Cli, tmp_path: Path):
    from PIL import Image

    for name in ("cats", "dogs"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("L", (8, 8), number * 30).save(tmp_path / "pictures" / name / f"{number}.png")
    (tmp_path / "pictures" / "cats" / "notes.txt").write_text("not a picture")
    call = (*SMALL, NO_REPORT, "num_rounds=1", "dataset=image_folder", "dataset.root=pictures", "local.batch_size=2")
    outcome = cli(*call, "num_clients=2", "clients_per_round=2")
    assert outcome.code == 2 and "cats/notes.txt (not a picture)" in outcome.err and outcome.err.count("\n") == 1
    (tmp_path / "pictures" / "cats" / "notes.txt").unlink()
    assert cli(*call, "num_clients=2", "clients_per_round=2", "hydra.run.dir=first").code == 0
    outcome = cli(*call, "num_clients=200", "clients_per_round=2", "hydra.run.dir=second")  # not within one second
    assert outcome.code == 2 and "num_clients=200: each client needs one of 12 training examples" in outcome.err


def test_help_and_version(cli: Cli):
    assert cli("--version").out == f"{fedpriv.__version__}\n"
    for flag in ("-h", "--help"):
        outcome = cli(flag, "num_clients=0")
        assert outcome.code == 0 and "strategy.client.noise_multiplier" in outcome.out


def test_figures_are_shown_as_people_read_them():
    shown = [figure(value) for value in (None, float("inf"), 0.01234, 284.41, 12662.4)]
    assert shown == ["-", "infinite", "0.01234", "284.4", "12,662"]


def test_the_message_of_an_error_without_a_value_has_no_equals_sign():
    assert str(OptionError("-m", "", "no")) == "-m: no"
    assert str(OptionError("seed", 0, "no")) == "seed=0: no"


# --- plan ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("strategy.client.obsolete_factor=0.4",),
        ("strategy=fedldp", "num_clients=5", "clients_per_round=2", "num_rounds=5"),
        ("privacy.target_epsilon=20",),
        ("privacy.variant=published", "strategy.client.obsolete_factor=0.4"),
        ("strategy=fedavg",),
        ("strategy=nbafl", "local.epochs=1"),
    ],
    ids=" ".join,
)
def test_a_plan_trains_nothing_and_the_run_confirms_it(options: tuple[str, ...], cli: Cli, tmp_path: Path, run: Run):
    outcome = cli(*SMALL, *options, "plan=true")
    assert outcome.code == 0 and outcome.err == ""
    assert not list(tmp_path.iterdir())
    folder = run(*options)
    privacy, shown = summary_of(folder)["privacy"], figures(outcome.out)
    verified = privacy["verified_epsilon"]
    assert shown["verified epsilon"].startswith(figure(float(verified)) + " ")
    if privacy["claimed_epsilon"] is not None:
        assert shown["claimed epsilon"].startswith(figure(privacy["claimed_epsilon"]) + " ")
    traffic = summary_of(folder)["traffic"]
    up, down = (int(value.replace(",", "")) for value in shown["bytes up / down"].split(" / "))
    assert up <= traffic["bytes_up"] <= 1.2 * up and down <= traffic["bytes_down"] <= 1.3 * down


# --- privacy options -------------------------------------------------------------------------------------


def test_a_target_is_met_from_below_within_one_percent(run: Run):
    for target, options in ((8.0, ()), (30.0, ("strategy=fedldp", "num_clients=6", "clients_per_round=3"))):
        folder = run(f"privacy.target_epsilon={target}", *options)
        assert 0.99 * target <= summary_of(folder)["privacy"]["verified_epsilon"] <= target


def test_clients_stop_before_the_limit_and_the_run_says_so(cli: Cli, tmp_path: Path):
    limit = 800.0  # three releases at sigma = 0.1 cost 746.8, four 969.6
    options = (NO_REPORT, "num_rounds=6", f"privacy.max_epsilon={limit}", "evaluate.every=2")
    outcome = cli(*SMALL, *options, "hydra.run.dir=here")
    assert outcome.code == 0
    summary = summary_of(tmp_path / "here")
    assert summary["rounds"] == 3 and summary["privacy"]["clients_stopped"] == 4
    assert 700 < summary["privacy"]["verified_epsilon"] <= limit
    assert "note: round 4: 4 of 4 clients have spent privacy.max_epsilon" in outcome.out
    assert summary["note"] in outcome.out
    model = fedpriv.load(tmp_path / "here").model
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_dataset

    test = load_dataset(compose([]).dataset, 0).test
    right = (model.probabilities(test.inputs[:]).argmax(1).numpy() == test.targets).mean()
    assert summary["accuracy"]["final"] == right  # of the model that is saved, not of an earlier round


def test_some_clients_stop_and_the_others_go_on(run: Run):
    options = ("num_clients=6", "clients_per_round=2", "num_rounds=9", "privacy.max_epsilon=600")
    folder = run(*options)
    rows = rows_of(folder)
    assert sum(row["stopped"] for row in rows) > 0 and all(row["participants"] >= 1 for row in rows)
    assert summary_of(folder)["privacy"]["verified_epsilon"] <= 600
    releases: dict[int, int] = {}
    for entry in ledger_of(folder):
        releases[entry["client"]] = releases.get(entry["client"], 0) + 1
    assert max(releases.values()) == 2


def test_published_adaptive_fedcad_is_infinite_with_its_reason(run: Run):
    published = summary_of(run("privacy.variant=published", "strategy.client.obsolete_factor=0.4"))["privacy"]
    assert published["verified_epsilon"] == published["spent_so_far"] == "inf"
    assert any("adaptive Diff" in reason for reason in published["reasons"])
    assert published["claimed_epsilon"] > 0  # what the paper says all the same
    repaired = summary_of(run("strategy.client.obsolete_factor=0.4"))["privacy"]
    assert 0 < repaired["verified_epsilon"] < 1e4


# --- the real process ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_real_process_from_another_folder(tmp_path: Path):
    call = [sys.executable, "-m", "fedpriv", *said_once([*SMALL, "num_rounds=1", "hydra.run.dir=here"])]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    slow = [line for line in done.stderr.splitlines() if line.startswith("set-up: ")]  # said on a busy machine
    assert (done.returncode, done.stderr.splitlines()) == (0, slow)
    assert done.stdout.startswith("round 1/1  accuracy ")
    assert {path.name for path in tmp_path.iterdir()} == {"here"}
