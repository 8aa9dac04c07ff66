"""Sweeps: all combinations in folders of their own, failures that stop nobody else, and the comparison."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
import torch
import yaml
from conftest import SMALL, Outcome, Run, ctrl_c, result_of
from joblib.externals.loky import get_reusable_executor
from processes import children, state, wait_until
from rotation import together

from fedpriv.commands import runs as cli_module
from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.tasks import Classification
from fedpriv.report.__main__ import main as report
from fedpriv.runs import sweep
from fedpriv.runs.summary import divergence
from fedpriv.runs.sweep import planned
from fedpriv.training.evaluation import Score
from fedpriv.training.task_metrics import metrics

Cli = Callable[..., Outcome]

#: Runs whose reports nobody reads.
QUIET = (*SMALL, "operations.report=false")


#: Data that kill their process where a file names their job's seed: each time, or once.
KILLING = """
import os, signal
from pathlib import Path
import numpy as np
from hydra.core.hydra_config import HydraConfig
from sklearn.datasets import load_digits


def data(split):
    seed = next(text for text in HydraConfig.get().overrides.task if text.startswith("seed="))
    if seed in Path("killed").read_text().split():
        if Path("once").exists():
            Path("killed").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    digits = load_digits()
    half = slice(1400) if split == "train" else slice(1400, None)
    return (digits.images * 15).astype(np.uint8)[half, None], digits.target[half]
"""

#: Data that write down which GPUs their process sees.
SEEING = """
import os
import numpy as np
from sklearn.datasets import load_digits


def data(split):
    with open("seen", "a") as file:
        file.write(os.environ["CUDA_VISIBLE_DEVICES"] + " ")
    digits = load_digits()
    half = slice(1400) if split == "train" else slice(1400, None)
    return (digits.images * 15).astype(np.uint8)[half, None], digits.target[half]
"""


def jobs_of(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/config.yaml"))


def test_a_sweep_runs_every_combination_and_compares_them(
    cli: Cli, tmp_path: Path, run: Run, capfd: pytest.CaptureFixture[str]
):
    swept = ("strategy=fedldp,fedcad", "strategy.client.noise_multiplier=0.03,0.1", "seed=0,1")
    outcome = cli("-m", *QUIET, "num_rounds=2", *swept)
    assert outcome.code == 0 and outcome.err == ""
    (folder,) = (tmp_path / "multirun").glob("*/*")
    names = [f"{number}-{'fedldp' if number < 4 else 'fedcad'}-digits" for number in range(8)]
    assert jobs_of(folder) == names
    assert outcome.out.splitlines()[-2:] == [
        "sweep: 8 runs finished, 0 failed",
        f"compare: {folder.relative_to(tmp_path)}/comparison.html",
    ]
    page = (folder / "comparison.html").read_text()
    assert [page.count(f'href="{name}/summary.json"') for name in names] == [1] * 8
    alone = run("num_rounds=2", "strategy=fedldp", "strategy.client.noise_multiplier=0.1", "seed=1")
    assert result_of(folder / names[3]) == result_of(alone)

    assert report([str(folder)]) == 0
    printed = capfd.readouterr().out
    rows = list(csv.DictReader((folder / "comparison.csv").open()))
    assert len(rows) == 4  # method x noise
    for row in rows:
        assert row["accuracy_n"] == "2"
        accuracies = [
            json.loads((job / "summary.json").read_text())["accuracy"]["final"]
            for job in folder.glob(f"*-{row['strategy.name']}-digits")
            if f"noise_multiplier: {row['strategy.client.noise_multiplier']}" in (job / "config.yaml").read_text()
        ]
        assert float(row["accuracy_mean"]) == pytest.approx(sum(accuracies) / 2) and len(accuracies) == 2
        assert float(row["accuracy_std"]) == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert (folder / "comparison.png").stat().st_size > 1000 and "± " in printed


def test_a_failing_job_stops_nobody_else(cli: Cli, tmp_path: Path):
    outcome = cli("-m", *QUIET, "num_rounds=1", "local.batch_size=1000,12,2000", "hydra.sweep.dir=sweep")
    assert outcome.code != 0
    assert jobs_of(tmp_path / "sweep") == ["1-fedcad-digits"]
    failed = tmp_path / "sweep" / "0-fedcad-digits" / "failed.txt"
    reason = failed.read_text()
    assert failed.stat().st_mode & 0o777 == 0o600
    assert reason.startswith("exit code 2: local.batch_size=1000")
    assert "sweep: 1 runs finished, 2 failed" in outcome.out and "  2-fedcad-digits: exit code 2" in outcome.out
    assert outcome.err.count("\n") == 2 and "fedpriv: 0-fedcad-digits: local.batch_size=1000" in outcome.err


@pytest.mark.rotates(2, together(1))
@pytest.mark.slow
def test_jobs_in_other_processes_are_counted(cli: Cli, tmp_path: Path, run: Run):
    """The joblib launcher: a failure happens where this process does not see it."""
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep")
    outcome = cli("-m", *QUIET, "num_rounds=2", "local.batch_size=12,1000", *launcher)
    assert outcome.code == 1
    assert jobs_of(tmp_path / "sweep") == ["0-fedcad-digits"]
    assert "sweep: 1 runs finished, 1 failed" in outcome.out and "1-fedcad-digits: exit code 2" in outcome.out
    assert "0-fedcad-digits: round 2/2  accuracy" in outcome.out  # lines of different jobs can be told apart
    assert result_of(tmp_path / "sweep" / "0-fedcad-digits") == result_of(run("num_rounds=2"))


def test_processes_of_a_sweep_share_its_gpus_evenly(tmp_path: Path):
    """No GPU is needed: the variable names them. A process that has ended gives its own back."""
    code = (
        "import os, sys; from pathlib import Path; from fedpriv.runs.sweep import take_gpu; take_gpu(Path('sweep'))\n"
        "take_gpu(Path('sweep')); print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); sys.stdin.read()"
    )

    def begun() -> tuple[str, subprocess.Popen[str]]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "3,5"}
        process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, **pipes)
        return process.stdout.readline().strip(), process

    (first, one), (second, two), (third, three) = begun(), begun(), begun()
    two.communicate()
    (fourth, four) = begun()
    for process in (one, three, four):
        process.communicate()
    assert (first, second, third, fourth) == ("3", "5", "3", "5")


@pytest.mark.slow
def test_a_job_in_another_process_sees_one_gpu(tmp_path: Path):
    (tmp_path / "seeing.py").write_text(SEEING)
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep")
    options = (*QUIET, "dataset=custom", "dataset.path=seeing.data", "num_rounds=1", "seed=0,1")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "3,5"}
    command = [sys.executable, "-m", "fedpriv", "-m", *options, *launcher]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "seen").read_text().split()) <= {"3", "5"}
    assert not list((tmp_path / "sweep").glob(".gpu*"))


@pytest.mark.parametrize(
    ("swept", "words"),
    [
        (["seed=0,1", "strategy.client.diff=0.5,1.5"], "strategy.client.diff=1.5: must be at most 0.999"),
        (["strategy=fedldp,fedcat"], "strategy=fedcat: allowed"),
        (["num_clients=20,3"], "clients_per_round=4: at most num_clients=3"),
        (["strategy=fedcad,fedavg", "strategy.client.diff=0.4"], "strategy.client.diff=0.4: there is no such option"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_before_the_first_job(swept: list[str], words: str, cli: Cli, tmp_path: Path):
    outcome = cli("-m", *SMALL, *swept)
    assert outcome.code == 2 and words in outcome.err and outcome.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_every_value_of_a_large_sweep_is_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_module, "CHECKED_JOBS", 2)
    with pytest.raises(OptionError, match=r"local.lr=-1"):
        cli_module.check(["local.lr=0.1,0.2,-1", "seed=0,1"], multirun=True)


def test_ctrl_c_ends_the_whole_sweep(cli: Cli, tmp_path: Path):
    with ctrl_c():
        outcome = cli("-m", *QUIET, "seed=0,1", "hydra.sweep.dir=sweep")
    assert outcome.code == 130
    assert outcome.err == "fedpriv: interrupted; resume=sweep goes on with the sweep\n"
    assert jobs_of(tmp_path / "sweep") == ["0-fedcad-digits"]


def test_a_sweep_goes_on_where_it_stopped(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run):
    """After Ctrl-C in the second job: the first is kept as it is, the second goes on from its checkpoint."""
    swept = (*QUIET, "checkpoint.every=1", "seed=0,1,2", "hydra.sweep.dir=sweep")
    with ctrl_c(seed=1):
        assert cli("-m", *swept).code == 130
    assert jobs_of(tmp_path / "sweep") == ["0-fedcad-digits", "1-fedcad-digits"]
    first = (tmp_path / "sweep/0-fedcad-digits/summary.json").read_bytes()
    refused = cli("resume=sweep", "operations.report=false")
    assert refused.code == 2 and "operations.report=false: a sweep goes on with its own options" in refused.err
    outcome = cli("resume=sweep")
    assert outcome.code == 0 and "sweep: 3 runs finished, 0 failed" in outcome.out, outcome.err
    assert (tmp_path / "sweep/0-fedcad-digits/summary.json").read_bytes() == first
    assert (
        "job 2 of 3" in outcome.out and "round 1/3" not in outcome.out.partition("job 2 of 3")[2].partition("job 3")[0]
    )
    whole = run("checkpoint.every=1", "seed=1")
    assert result_of(tmp_path / "sweep/1-fedcad-digits") == result_of(whole)
    again = cli("-m", *swept)  # the command itself goes on, too
    assert again.code == 0 and "sweep: 3 runs finished" in again.out
    other = cli("-m", *swept[:-2], "seed=0,1", "hydra.sweep.dir=sweep")
    assert other.code == 2 and "holds runs already" in other.err and "the command that began them" in other.err
    file = tmp_path / "sweep/1-fedcad-digits/config.yaml"  # as of a sweep that began there at the same time
    file.write_text(file.read_text().replace("seed: 1\n", "seed: 7\n", 1))
    taken = cli("-m", *swept)
    assert taken.code == 2 and "1-fedcad-digits holds a run with 7; allowed" in taken.err


@pytest.mark.rotates(2, together(1))
@pytest.mark.slow
@pytest.mark.parametrize("killed", ["once", "each time"])
def test_a_killed_job_takes_no_other_with_it(killed: str, cli: Cli, tmp_path: Path):
    """Data of one's own kill the process, as the kernel does where memory runs out."""
    get_reusable_executor().shutdown(wait=True)  # processes of another test's sweep stand in its folder
    (tmp_path / "killing.py").write_text(KILLING)
    (tmp_path / "killed").write_text("seed=1")
    (tmp_path / killed).touch()
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep")
    swept = ("-m", *QUIET, "num_rounds=1", "seed=0,1,2,3", "dataset=custom", "dataset.path=killing.data", *launcher)
    outcome = cli(*swept)
    told = [
        line for line in outcome.err.splitlines() if not line.startswith(("set-up: ", "resume: "))
    ]  # on a loaded machine
    failed = [] if killed == "once" else [1]
    assert (outcome.code, told) == (1 if failed else 0, [])
    assert f"sweep: {4 - len(failed)} runs finished, {len(failed)} failed" in outcome.out
    for number in failed:
        assert f"  {number}-fedcad-custom: exit code 1: it ran alone, and its process was killed" in outcome.out
    assert len(list((tmp_path / "sweep").glob("*/summary.json"))) == 4 - len(failed)
    assert "not finished" not in outcome.out and "compare: sweep/comparison.html" in outcome.out
    (tmp_path / "killed").write_text("")
    assert cli("resume=sweep").code == 0
    assert len(list((tmp_path / "sweep").glob("*/summary.json"))) == 4


@pytest.mark.parametrize("broken", [False, True])
def test_jobs_whose_folders_have_no_number_are_launched_once(broken: bool, tmp_path: Path):
    """With hydra.sweep.subdir of one's own nobody can tell which of them finished: none is said to."""
    launches = list[bool]()

    def launch() -> None:
        launches.append(True)
        (tmp_path / "mine").mkdir(exist_ok=True)
        if broken and len(launches) == 1:
            raise BrokenExecutor("killed")

    planned(2)
    sweep.under_way.folder = tmp_path
    try:
        sweep.launch_in_passes(launch)
        assert len(launches) == (3 if broken else 1)
        assert sweep.left_out(tmp_path / "mine") is False and not (tmp_path / sweep.PASS_FILE).exists()
        assert sweep.exit_codes.pop() == 1
    finally:
        planned(None)


@pytest.mark.rotates(2, together(1))
@pytest.mark.slow
def test_a_killed_sweep_leaves_no_process_and_no_shared_memory(tmp_path: Path):
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep", "operations.stop_grace=0")
    command = (sys.executable, "-m", "fedpriv", "-m", *QUIET, "num_rounds=1000000", "seed=0,1", *launcher)
    sweep = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(tmp_path.glob("sweep/*/metrics.jsonl"))) == 2, of=sweep.pid)
    began = children(sweep.pid)
    assert any(str(sweep.pid) in name for name in os.listdir("/dev/shm"))
    sweep.kill()
    sweep.wait()
    assert len(began) >= 2
    wait_until(lambda: not any(map(state, began)))
    wait_until(lambda: not any(str(sweep.pid) in name for name in os.listdir("/dev/shm")))


def test_optuna_searches_for_the_largest_accuracy(cli: Cli, tmp_path: Path):
    search = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.sampler.seed=1")
    outcome = cli("-m", *QUIET, "num_rounds=1", "local.lr=interval(0.001,1)", *search, "hydra.sweep.dir=search")
    assert outcome.code == 0, outcome.err
    jobs = [json.loads(path.read_text()) for path in (tmp_path / "search").glob("*/summary.json")]
    reached = [job["accuracy"]["final"] for job in jobs]
    best = yaml.safe_load((tmp_path / "search/optimization_results.yaml").read_text())
    assert len(set(reached)) > 1 and best["best_value"] == max(reached)
    assert "sweep: 3 runs finished, 0 failed" in outcome.out
    again = cli("-m", *QUIET, "num_rounds=1", "local.lr=interval(0.001,1)", *search, "hydra.sweep.dir=search")
    assert again.code == 2 and again.err.endswith("allowed: a folder without runs\n")  # no search is gone on with
    wrong = cli("-m", *QUIET, "local.lr=interval(0.001,1)", search[0], "num_rounds=0")
    assert wrong.code == 2 and "num_rounds=0: must be at least 1" in wrong.err


def test_a_second_sweep_is_not_mixed_with_the_first(cli: Cli, tmp_path: Path) -> None:
    """It was: "3 runs finished" after one, and the comparison had all of them."""
    assert cli("-m", *QUIET, "num_rounds=1", "local.batch_size=12,1000", "hydra.sweep.dir=sweep").code == 2
    second = cli("-m", *QUIET, "num_rounds=1", "strategy=fedldp", "seed=1,2", "hydra.sweep.dir=sweep")
    assert second.code == 2 and "hydra.sweep.dir=sweep: holds runs already (0-fedcad-digits)" in second.err
    assert jobs_of(tmp_path / "sweep") == ["0-fedcad-digits"]


def test_failures_of_an_earlier_sweep_are_not_counted(cli: Cli, tmp_path: Path) -> None:
    assert cli("-m", *QUIET, "local.batch_size=1000,2000", "hydra.sweep.dir=sweep").code == 2
    outcome = cli("-m", *QUIET, "num_rounds=1", "local.batch_size=12", "strategy=fedldp", "hydra.sweep.dir=sweep")
    assert outcome.code == 0 and "sweep: 1 runs finished, 0 failed" in outcome.out


def test_a_run_that_diverged_says_so_everywhere(cli: Cli, tmp_path: Path):
    """On the console, in the summary, the report and the comparison; its exit code is that of any finished run."""
    options = [option for option in SMALL if option != "num_rounds=3"]
    outcome = cli("-m", *options, "num_rounds=1", "strategy=fedavg", "local.lr=0.05,1e30")
    (folder,) = (tmp_path / "multirun").glob("*/*")
    diverged = folder / "1-fedavg-digits"
    summaries = [json.loads((one / "summary.json").read_text()) for one in (folder / "0-fedavg-digits", diverged)]
    assert outcome.code == 0 and "diverged" not in summaries[0]
    words = summaries[1]["diverged"]
    assert words.startswith("the run diverged: its test loss is ") and "above 1,000; a smaller learning rate" in words
    assert outcome.err == f"fedpriv: {words}\n" and f"  1-fedavg-digits: {words}\n" in outcome.out
    assert (diverged / "report.html").read_text().count("Diverged.") == 1
    assert "1 of 1 runs diverged" in (folder / "comparison.html").read_text()
    assert "Diverged." not in (folder / "0-fedavg-digits" / "report.html").read_text()


@pytest.mark.parametrize(("loss", "diverged"), [(float("nan"), True), (1001.0, True), (1000.0, False), (2.3, False)])
def test_what_counts_as_diverged(loss: float, diverged: bool):
    """Of a loss that is not a number, `metrics` says 1e30; an accuracy tells nothing where no class is better."""
    known = metrics(Classification(("a", "b")), torch.zeros(2, 2), torch.tensor([0, 1]), loss)
    assert bool(divergence(Score(known, "accuracy", True))) == diverged
    assert divergence(Score({}, "auc", True)) == {}
