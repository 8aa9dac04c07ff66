"""Jobs of a study: side by side, interrupted, found again, and what their records say."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forked import fork_server
from made_up import DIGITS
from processes import wait_until
from safetensors.numpy import load_file, save_file

from fedpriv.attacks.attack_records import figures
from fedpriv.attacks.metrics import judge
from fedpriv.common import versions
from fedpriv.config.compose import compose
from fedpriv.privacy.private_selection import selection_epsilon, with_mean
from fedpriv.runs.preparation import resolve
from fedpriv.studies import jobs as module
from fedpriv.studies import runner
from fedpriv.studies.data import where
from fedpriv.studies.jobs import Job, price, run_events
from fedpriv.studies.results import (
    RunRecord,
    arithmetic,
    commits_in_words,
    machine,
    provenance,
)
from fedpriv.studies.runner import Failure, carry_out_all, find, process_pool


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks of a process with a single thread, which has torch."""
    monkeypatch.setattr(runner, "multiprocessing", SimpleNamespace(get_context=lambda method: fork_server()))


@pytest.mark.usefixtures("forks")
def test_jobs_run_side_by_side_and_an_interrupted_one_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own, here forks, which have torch; a broken record and a started run are no obstacles."""
    common = tuple(option for option in DIGITS if not option.startswith(("num_rounds", "checkpoint")))
    first, second = (
        Job("train", (*common, "strategy=fedavg", f"num_rounds={n}", "checkpoint.every=1"), 0) for n in (1, 2)
    )
    other_words = Job("train", (*reversed(second.options),), 0)
    assert second == other_words and first != second and second != Job("train", second.options, 1)
    wrong = Job("plan", (*common, "strategy=fedavg", "privacy.target_epsilon=1"), 0)
    told: list[tuple[int, int]] = []
    jobs = [first, second, other_words, wrong]
    with process_pool(2) as pool:
        found = carry_out_all(jobs, tmp_path, pool, lambda job, r, done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert isinstance(found[wrong], Failure) and "privacy.target_epsilon=1" in found[wrong].words  # type: ignore[union-attr]
    record = found[second]
    assert isinstance(record, RunRecord) and len(record.curve) == 2 and record == find(second, tmp_path)
    (tmp_path / second.name / "record.json").write_text("{")
    (tmp_path / second.name / "summary.json").unlink()  # as after kill -9 in the last round
    again = carry_out_all([second], tmp_path)[second]
    assert isinstance(again, RunRecord) and again.summary["accuracy"] == record.summary["accuracy"]


@pytest.mark.slow
def test_lengths_of_kept_updates_are_those_of_the_client_whose_updates_shrink_least(tmp_path: Path) -> None:
    common = tuple(option for option in DIGITS if not option.startswith(("num_rounds", "checkpoint")))
    job = Job("train", (*common, "strategy=fedavg", "num_rounds=6", "attack.keep_updates=true"), 0)
    found = carry_out_all([job], tmp_path)[job]
    kept = [load_file(file) for file in sorted((tmp_path / job.name / "private" / "updates").iterdir())]
    lengths = np.array([[np.linalg.norm(kept[n][str(client)]) for client in range(4)] for n in range(6)])
    expected = (lengths[4:].sum(0) / lengths[:2].sum(0)).max()
    assert isinstance(found, RunRecord) and found.figures == {"length_left": pytest.approx(expected)}


@pytest.mark.parametrize(
    ("rounds", "left"),
    [
        ([{"0": 4, "1": 2}, {"0": 2, "1": 2}, {"0": 1, "1": 1}], 0.5),
        ([{"0": 4, "1": 2}, {"0": 2}, {"0": 1, "1": 9}], 0.25),  # of who was there in every round
        ([{"0": 4}, {"1": 2}, {"0": 1}], None),
        ([{"0": 1, "1": 1}, {"0": 1, "1": 1}, {"0": 0.5, "1": math.nan}], math.inf),
        ([{"0": 0, "1": 1}, {"0": 1, "1": 1}, {"0": 0, "1": 0.5}], math.inf),
    ],
)
def test_a_client_without_a_length_does_not_pass_for_one_whose_updates_shrink(
    rounds: list[dict[str, float]], left: float | None, tmp_path: Path
) -> None:
    (tmp_path / "private" / "updates").mkdir(parents=True)
    for number, lengths in enumerate(rounds, 1):
        kept = {client: np.array([length], np.float32) for client, length in lengths.items()}
        file = tmp_path / "private" / "updates" / f"round-{number:06d}.safetensors"
        save_file({**kept, "before": np.zeros(1, np.float32)}, file)
    assert module.lengths(tmp_path) == ({} if left is None else {"length_left": left})
    assert module.lengths(tmp_path / "private") == {}


def test_an_attacks_accuracy_comes_with_its_interval() -> None:
    """As `python -m fedpriv.attack` writes it; where a control failed there is none."""
    scores = np.linspace(0, 1, 400)
    kept = {"shown": True, "figures": figures(judge(scores + 0.2, scores, 0.6))}
    found = module.attack_figures(kept)
    assert found["attack_accuracy"] == pytest.approx(60, abs=0.5)  # 60 % of members above 0.6, 60 % of others below
    assert 54 < found["attack_accuracy_low"] < 58 and 62 < found["attack_accuracy_high"] < 66
    assert found["attack_auc"] == pytest.approx(0.68, abs=0.01) and found["shown"] == 1
    assert module.attack_figures({"shown": False}) == {"shown": 0}


def test_a_mistake_of_ours_in_one_job_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: Job, path: Path) -> dict[str, Any]:
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(module.WORK, "plan", broken)
    (found,) = carry_out_all([Job("plan", ("dataset=digits", "strategy=fedavg"), 0)], tmp_path).values()
    assert isinstance(found, Failure) and found.words == "ZeroDivisionError: by zero"


def test_other_pictures_are_another_job(tmp_path: Path) -> None:
    """Class folders say nothing of their set in the options: their contents count, and where they are does not."""
    names = []
    for place, sizes in (("a", (1, 2)), ("b", (1, 2)), ("c", (1, 3))):
        for number, size in enumerate(sizes):
            folder = tmp_path / place / "train" / f"class{number}"
            folder.mkdir(parents=True)
            (folder / "x.png").write_bytes(b"x" * size)
        options = ("dataset=image_folder", f"dataset.root={tmp_path / place}", "dataset.size=32", "strategy=fedavg")
        names.append(Job("train", options, 0).name)
    assert names[0] == names[1] != names[2]


def test_another_division_of_the_pictures_is_another_job(tmp_path: Path) -> None:
    """The rows of the split's file count, also where it is written anew under its name, and not where it is."""
    names = []
    for place, rows in (("a", b"1"), ("b", b"1"), ("a", b"22")):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "split.npz").write_bytes(rows)
        names.append(Job("train", ("strategy=fedavg", f"dataset.split={tmp_path / place}/split.npz"), 0).name)
        module._digest.cache_clear()
    assert names[0] == names[1] != names[2]


def test_an_interruption_leaves_through_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(job: Job, path: Path) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return {}

    monkeypatch.setitem(module.WORK, "plan", interrupted)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    job = Job("plan", ("dataset=digits", "strategy=fedavg"), 0)
    with pytest.raises(KeyboardInterrupt):
        carry_out_all([job], tmp_path)
    assert find(job, tmp_path) is None


def test_pictures_are_found_in_both_layouts(tmp_path: Path) -> None:
    assert where("mnist", tmp_path) is None and where("cifar10", tmp_path) is None
    assert where("mnist", tmp_path, download=True) == (
        "dataset=mnist", f"dataset.root={tmp_path}", "dataset.download=true",
    )  # fmt: skip
    (tmp_path / "cifar10" / "train" / "cat").mkdir(parents=True)
    assert where("cifar10", tmp_path) == (
        "dataset=image_folder", f"dataset.root={tmp_path / 'cifar10'}", "dataset.size=32",
    )  # fmt: skip
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert where("cifar10", tmp_path) == ("dataset=cifar10", f"dataset.root={tmp_path}")
    assert where("digits", tmp_path) == ("dataset=digits",)


def test_a_finished_job_is_found_whatever_the_code_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the digest of its options; and it says which commit made it, also where only its run was left."""
    job = Job("train", (*DIGITS, "strategy=fedavg"), 0)
    first = carry_out_all([job], tmp_path)[job]
    assert isinstance(first, RunRecord) and first.commit == versions.commit() and "code" not in first.versions
    assert first.machine == machine() and first.arithmetic == arithmetic()
    assert json.loads((tmp_path / job.name / "summary.json").read_text())["commit"] == first.commit

    monkeypatch.setattr("fedpriv.studies.results.commit", lambda: "fedcba987654")
    monkeypatch.setattr(versions, "code_digest", lambda: "of another day")
    assert find(job, tmp_path) == first
    (tmp_path / job.name / "record.json").unlink()
    again = carry_out_all([job], tmp_path)[job]
    assert isinstance(again, RunRecord) and again.commit == first.commit and again.summary == first.summary
    other = carry_out_all([Job("plan", (*DIGITS, "strategy=fedavg"), 0)], tmp_path).popitem()[1]
    assert isinstance(other, RunRecord) and other.commit == "fedcba987654"

    old_form = again.model_copy(update={"form": 0})
    (tmp_path / job.name / "record.json").write_text(old_form.model_dump_json())
    assert find(job, tmp_path) is None


def test_a_study_says_by_which_commits_and_machines_it_was_made(tmp_path: Path) -> None:
    job = Job("plan", (*DIGITS, "strategy=fedavg"), 0)
    run = carry_out_all([job], tmp_path)[job]
    assert isinstance(run, RunRecord)
    run = run.model_copy(update={"commit": "0123456789ab"})
    elsewhere = run.model_copy(
        update={
            "machine": machine().model_copy(update={"processor": "Other"}),
            "versions": {**run.versions, "torch": "0.1", "code": "a1b2"},
            "commit": "aaaaaaaaaaaa+",
            "date": "2001-01-01",
            "superseded": "the clip rule was wrong",
        }
    )
    found = provenance([elsewhere, run, run])
    assert found.machine == machine() and found.versions == run.versions and found.date == run.date
    assert found.commits == ("0123456789ab", "aaaaaaaaaaaa+")
    other, torch, by_digest, anew = found.remarks
    assert other == f"1 run on Other, {machine().cores} cores" and torch == "1 run with torch 0.1"
    assert "1 run of 3" in by_digest and "a1b2" in by_digest
    assert anew == "to be made anew: 1 of fedavg: the clip rule was wrong"
    assert commits_in_words(found) == "commit 0123456789ab, commit aaaaaaaaaaaa with changes"
    assert provenance([run]).remarks == ()


def test_a_record_names_the_gpu_that_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last bits are others, also beside the same processor."""
    plain = (arithmetic(), machine.__wrapped__())
    monkeypatch.setattr("fedpriv.studies.results._gpu", lambda: "Some GPU")
    assert arithmetic() == {**plain[0], "gpu": "Some GPU"}
    assert machine.__wrapped__().processor == f"{plain[1].processor} and Some GPU"


def _meets(folder: Path, others: int) -> int:
    """In a worker: waits until so many are here, each with a job of its own."""
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len(list(folder.iterdir())) >= others)
    return os.getpid()


def _both(pool: ProcessPoolExecutor, folder: Path) -> set[int]:
    folder.mkdir()
    return {future.result() for future in [pool.submit(_meets, folder, 2) for _ in range(2)]}


@pytest.mark.usefixtures("forks")
def test_an_idle_worker_outlives_ctrl_c(tmp_path: Path) -> None:
    """In a terminal it reaches every process; the study itself tells its workers to stop, by a file. Also after a job,
    in which it counts.
    """
    jobs = [Job("plan", (*DIGITS, "strategy=fedavg"), seed) for seed in range(4)]
    with process_pool(2) as pool:
        assert all(isinstance(one, RunRecord) for one in carry_out_all(jobs[:2], tmp_path / "a", pool=pool).values())
        workers = _both(pool, tmp_path / "first")
        for worker in workers:
            os.kill(worker, signal.SIGINT)
        assert _both(pool, tmp_path / "second") == workers and len(workers) == 2
        assert all(isinstance(one, RunRecord) for one in carry_out_all(jobs[2:], tmp_path / "a", pool=pool).values())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def interrupted_first(ready: Callable[[], None] = runner._quieten) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    ready()


def test_ctrl_c_before_a_worker_is_ready_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it imports."""
    monkeypatch.setattr(runner, "_quieten", interrupted_first)
    job = Job("plan", (*DIGITS, "strategy=fedavg"), 0)
    with process_pool(1) as pool:
        assert isinstance(carry_out_all([job], tmp_path, pool=pool)[job], RunRecord)


# --- the price of choosing options -------------------------------------------------------------------------

RUN = ("strategy=dpsgd", "num_clients=4", "clients_per_round=2", "num_rounds=1", "dataset.train_examples=200")
ASKED = ("trials=8", "law=geometric")


def cost(one: float, *more: str) -> float:
    config, *_ = resolve(compose([*RUN, f"privacy.target_epsilon={one}", *more]), None)
    return max(
        selection_epsilon(events, config.privacy.delta, with_mean("geometric", 8)) for events in run_events(config)
    )


def test_the_dearest_end_of_a_range_is_what_trials_are_priced_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller batches have the same epsilon with another Renyi curve: the choice among them costs more."""
    monkeypatch.setattr("fedpriv.studies.jobs._CLOSE", 0.3)  # few steps: each chooses noise anew
    end = "local.batch_size=2"
    found = price((*RUN, "privacy.target_epsilon=3"), [*ASKED, f"end={end}"])
    one, chosen = float(str(found["one"])), found["chosen"]
    assert cost(one) < 0.95 * cost(one, end)
    assert chosen == pytest.approx(cost(one, end))
