"""The leaderboard: equal effort, calibrated entries, reasons for what is not ranked."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedpriv import leaderboard
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.data.load import load_dataset
from fedpriv.data.splits import read_split
from fedpriv.privacy.events import CLIENT_TO_SERVER
from fedpriv.studies import board_results, boards, leaderboard_page
from fedpriv.studies import leaderboard as study
from fedpriv.studies.board_jobs import Prepared, privacy_under
from fedpriv.studies.board_results import Key, accuracies, records_of
from fedpriv.studies.boards import read_board, read_boards
from fedpriv.studies.carrying_out import Failure
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import Leaderboard, RunRecord, read_results

TINY = {
    "title": "A tiny board",
    "unit": "client",
    "adjacency": "replace-one",
    "observer": "server",
    "dataset": "digits",
    "delta": 1e-5,
    "words": "Digits, ten clients.",
    "setting": [
        *("model=linear", "num_clients=10", "clients_per_round=5", "num_rounds=2", "local.batch_size=20"),
        *("evaluate.every=0", "checkpoint.every=0", "engine.trainer=vectorised"),
    ],
    "targets": [20.0, 2000.0],
    "seeds": [0, 1],
    "tuning": {"seed": 1000, "pictures": 300, "trials": 2, "widenings": 0},
    "search": {"local.lr": {"low": 0.1, "high": 0.5}},
    "reference": {
        "name": "fedavg",
        "label": "FedAvg",
        "paper": "-",
        "idea": "plain",
        "overrides": ["strategy=fedavg"],
    },
    "methods": [
        {"name": name, "label": name.upper(), "paper": "-", "idea": idea, "overrides": overrides}
        for name, idea, overrides in (
            ("fedldp", "plain", ["strategy=fedldp"]),
            ("fedcad", "paper", ["strategy=fedcad", "strategy.client.obsolete_factor=0.4"]),
            # The noise on the clip rule's bit stays what it is, so that little epsilon is out of reach.
            (
                "quantile",
                "rival",
                ["strategy=fedldp", "strategy.server.clipping=quantile", "strategy.client.count_noise=0.1"],
            ),
            ("adpfl", "paper", ["strategy=adpfl", "partition.test_fraction=0"]),
            ("dpsgd", "rival", ["strategy=dpsgd", "engine.trainer=sequential"]),
            ("fedprox", "rival", ["strategy=fedprox"]),
        )
    ],
}


def written(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return path


# --- the whole command -----------------------------------------------------------------------------------


def call(out: Path, capfd: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = leaderboard.main(["workers=1", f"out={out}", *options])
    said = capfd.readouterr()
    return code, said.out, said.err


def folders(out: Path) -> dict[str, int]:
    """Trained runs and when they were done."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (out / "runs").glob("train-*/record.json")}


class Inline(Executor):
    """In place of processes, which take seconds to start."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments, **named))
        return future


@pytest.mark.slow
def test_a_board_from_search_to_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "BOARDS", tmp_path / "boards")
    written(tmp_path / "boards")
    out = tmp_path / "out"
    code, said, wrong = call(out, capfd)
    assert (code, wrong) == (0, ""), wrong
    assert "tune " in said and "final " in said and "At epsilon 20" in said
    results, runs = read_results(out, Leaderboard)
    (board,) = results.boards

    # Everybody was tried equally often: two trials with the tuning seed, on the tuning split.
    ran = {(entry.method, entry.target) for entry in board.entries}
    assert ran == {("fedldp", 20), ("fedldp", 2000), ("fedcad", 20), ("fedcad", 2000), ("quantile", 2000)}
    assert sum(run.kind == "plan" for run in runs) == 6 * 3  # two targets and the published variant, refused or not
    runs = [run for run in runs if run.kind == "train"]
    tuned = [run for run in runs if run.seed == 1000]
    assert len(tuned) == 2 * (1 + len(ran)) and all("dataset.split=" in " ".join(run.options) for run in tuned)
    finals = [run for run in runs if run.seed != 1000]
    assert len(finals) == 2 * (1 + len(ran)) and not any("dataset.split=" in " ".join(run.options) for run in finals)

    # The choice saw no test picture.
    pictures = load_dataset(compose(["dataset=digits"]).dataset, 0)
    (file,) = out.glob("tuning-*.npz")
    split = read_split(str(file))
    rows = np.concatenate([split.train, split.test])
    assert sorted(rows) == list(range(len(pictures.train.labels))) and abs(len(split.test) - 300) <= 10

    # What was chosen is what was best there, and the final runs have it.
    by_name = {run.name: run for run in runs}
    for entry in board.entries:
        mine = [run for run in tuned if f"privacy.target_epsilon={entry.target:g}" in run.options]
        mine = [run for run in mine if set(TINY_OVERRIDES[entry.method]) <= set(run.options)]
        if entry.method == "fedldp":
            mine = [run for run in mine if "strategy.server.clipping=quantile" not in run.options]
        best = max(mine, key=lambda run: run.summary["accuracy"]["final"])
        (choice,) = (f"{option}={value}" for option, value in entry.chosen.items())
        assert choice in best.options and len(mine) == 2
        for name in entry.runs:
            run = by_name[name]
            privacy = privacy_under(run.summary, read_board(tmp_path / "boards" / "tiny.yaml").threat)
            assert privacy is not None and choice in run.options
            assert 0.98 * entry.target <= privacy["verified_epsilon"] <= entry.target
        assert entry.verified_epsilon <= entry.target and entry.accuracy.n == 2
        assert entry.bytes_up > 0 and entry.seconds.mean is not None and entry.tried == board.trials == 2

    # What is not ranked is there with its reason.
    left = {(line.method, line.variant, line.target): line.reason for line in board.left}
    assert "releases it does not cover" in left["quantile", "repaired", 20.0]
    assert "another threat model" in left["dpsgd", "repaired", None]
    assert "has no noise to choose" in left["fedprox", "repaired", None]
    assert "block" in left["adpfl", "repaired", None]
    assert "without noise" in left["fedcad", "published", None]
    assert left["fedldp", "published", None].startswith("epsilon ")

    # The printed command is the run.
    entry = board.entries[0]
    words = entry.command.split()[3:]
    assert compose([*words, "operations.report=false"]).seed == 0
    from fedpriv.runs.start import start_run

    again = start_run(compose([*words, "operations.report=false", "engine=inprocess"]), tmp_path / "again")
    assert again["accuracy"]["final"] == by_name[entry.runs[0]].summary["accuracy"]["final"]

    # Pages.
    page = (out / "README.md").read_text()
    assert "Papernot and Steinke" in page and "## What is not ranked" in page and str(tmp_path) not in page
    assert board.plot is not None and (out / board.plot.file).stat().st_size > 1000
    lines = list(csv.DictReader((out / "leaderboard.csv").open()))
    assert len(lines) == len(board.entries) and {line["method"] for line in lines} == {"fedldp", "fedcad", "quantile"}
    assert str(tmp_path) not in json.dumps([entry.command for entry in board.entries])

    # Called again, nothing is run; with another option, only what has it, unless runs are not wanted.
    monkeypatch.setattr("fedpriv.studies.leaderboard.process_pool", lambda workers: nullcontext(Inline()))
    before = folders(out)
    trained = [line for line in (out / "runs.jsonl").read_text().splitlines() if json.loads(line)["kind"] == "train"]
    other = RunRecord.model_validate_json(trained[0]).model_copy(update={"name": "train-of-another-board-s0"})
    (out / "runs.jsonl").write_text("\n".join([*trained, other.model_dump_json()]) + "\n")
    for prices in [*(out / "runs").glob("tuning-*-s*"), *(out / "runs").glob("plan-*")]:
        shutil.rmtree(prices)  # they need no run
    assert call(out, capfd, "run=false")[0] == 0 and folders(out).items() >= before.items()
    again, kept = read_results(out, Leaderboard)
    assert again.boards == results.boards and list((out / "runs").glob("tuning-*-s*"))
    assert kept[-1] == other and sum(run.kind == "train" for run in kept) == len(trained) + 1
    before = folders(out)
    methods = [
        {**method, "search": {"local.lr": {"low": 0.1, "high": 0.2}}} if method["name"] == "fedcad" else method
        for method in TINY["methods"]
    ]
    written(tmp_path / "boards", methods=methods, targets=[2000.0])
    page = (out / "README.md").read_text()
    code, _, wrong = call(out, capfd, "run=false")
    assert code == 1 and wrong.endswith("run=false: 2 of 8 runs (tune) are missing: run=true\n"), wrong
    assert folders(out) == before
    assert (out / "README.md").read_text() == page
    assert call(out, capfd)[0] == 0
    after = folders(out)
    new = set(after) - set(before)
    assert {name: after[name] for name in before} == before
    assert new and all(name.startswith("train-fedcad") for name in new) and len(new) == 4


TINY_OVERRIDES = {method["name"]: method["overrides"] for method in TINY["methods"]}  # type: ignore[index]


def done(accuracy: dict[str, float | None], seed: int = 0) -> RunRecord:
    """A run of the tiny board under its threat model."""
    privacy = {**asdict(CLIENT_TO_SERVER), "verified_epsilon": 20.0, "reasons": [], "others": []}
    summary = {
        "accuracy": accuracy,
        "privacy": privacy,
        "traffic": {"bytes_up": 1, "bytes_down": 1},
        "timing": {"total_s": 1},
    }
    return RunRecord(name=f"run-{seed}", kind="train", options=(), seed=seed, command="", summary=summary)


def test_failed_trials_are_counted_and_a_missing_accuracy_is_no_zero(tmp_path: Path) -> None:
    plan = read_board(written(tmp_path, targets=[20.0], measure="personalised"))
    board = Prepared("tiny", plan, ("dataset=digits",), tmp_path / "split.npz", Path(), 10)
    method = plan.methods[0]
    key, search = Key("tiny", method, 20.0), plan.begin(method)
    first, second = board.tuning(method, 20.0, search.trials)
    assert "privacy.delta=1e-05" in first.options
    tuned: dict[Job, RunRecord | Failure] = {
        first: Failure(first, "no"), second: done({"final": 0.1, "personalised": 0.4}),
    }  # fmt: skip
    found = study._chosen(board, key, search, tuned)
    assert found.tried == 1 and [f"{option}={value}" for option, value in found.chosen.items()] == [*search.trials[1]]
    nothing = {first: done({"final": 0.9, "personalised": None}), second: done({"final": 0.9, "personalised": None})}
    none = study._chosen(board, key, search, nothing)
    assert none.reason == "a tuning run has no personalised accuracy" and not none.final
    assert records_of(board, key, none, {}) == none.reason
    zero, one = found.final.values()
    half = {zero: done({"personalised": 0.5}), one: done({"personalised": None}, 1)}
    assert records_of(board, key, found, half) == "a final run has no personalised accuracy"
    whole = {zero: done({"personalised": 0.5}), one: done({"personalised": 0.6}, 1)}
    records = records_of(board, key, found, whole)
    assert not isinstance(records, str) and accuracies(board, records) == {0: 50.0, 1: 60.0}
    entry = board_results._entry(board, key, found, records, 1, False)
    assert "(of 1 of 2 trials: the others failed)" in leaderboard_page._row(entry, 2)
    assert "failed" not in leaderboard_page._row(entry, 1)


# --- the files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"titel": "x"}, ["titel", "no such option"]),
        ({"observer": "nobody"}, ["observer", "nobody", "allowed", "secure-sum"]),
        ({"targets": [1.0, -2.0]}, ["targets", "-2.0", "more than 0"]),
        ({"targets": []}, ["targets"]),
        ({"targets": [1.0, 1.0]}, ["targets", "twice"]),
        ({"seeds": [0, 1000]}, ["tuning.seed", "1000", "must not see"]),
        ({"setting": ["seed=3"]}, ["setting", "seed=3", "leaderboard itself"]),
        ({"setting": ["privacy.delta=0.1"]}, ["setting", "privacy.delta=0.1", "leaderboard itself"]),
        ({"delta": 1.0}, ["delta", "1.0"]),
        ({"measure": "best"}, ["measure", "best", "personalised"]),
        (
            {"methods": [{**TINY["methods"][0], "overrides": ["privacy.target_epsilon=3"]}]},  # type: ignore[index]
            ["fedldp.overrides", "leaderboard itself"],
        ),
        ({"methods": [TINY["methods"][0]] * 2}, ["methods", "twice"]),  # type: ignore[index]
    ],
)
def test_a_broken_file_is_refused_in_words(tmp_path: Path, changes: dict[str, object], words: list[str]) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(OptionError) as error:
        read_board(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_the_command_refuses_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leaderboard.main(["board=nowhere"]) == 2
    assert "board=nowhere: allowed: all, client_personal, client_secure_sum" in capfd.readouterr().err
    assert leaderboard.main(["boards=all"]) == 2 and "no such option" in capfd.readouterr().err
    assert leaderboard.main(["download=maybe"]) == 2 and "allowed: true, false" in capfd.readouterr().err
    assert leaderboard.main(["board=example", f"data={tmp_path}", f"out={tmp_path}"]) == 2
    assert "mnist is not there" in capfd.readouterr().err
    monkeypatch.setattr(boards, "BOARDS", tmp_path / "boards")
    wrong = {**TINY["methods"][0], "overrides": ["strategy=fedldp", "strategy.client.sigma=3"]}  # type: ignore[index]
    written(tmp_path / "boards", methods=[wrong])
    assert leaderboard.main(["board=tiny", f"out={tmp_path / 'out'}"]) == 2
    said = capfd.readouterr().err
    assert "tiny.yaml, fedldp: strategy.client.sigma=3: there is no such option" in said and said.count("\n") == 1
    (tmp_path / "boards" / "tiny.yaml").write_text("methods: [")
    assert leaderboard.main(["board=tiny"]) == 2 and "cannot be read" in capfd.readouterr().err
    assert leaderboard.main(["--help"]) == 0 and "workers" in capfd.readouterr().out


@pytest.mark.parametrize("name", sorted(path.stem for path in boards.BOARDS.glob("*.yaml")))
def test_every_shipped_board_composes(name: str) -> None:
    board = read_boards(name)[name]
    assert board.plan and len(board.seeds) >= 4
    assert len(board.begin(board.reference).trials) == 8
    for method in (board.reference, *board.methods):
        planned, trial = method.plan or board.plan, board.begin(method).trials[-1]
        config = compose([f"dataset={board.dataset}", *board.setting, *method.overrides, *planned, *trial])
        assert config.privacy.variant == "repaired" and config.privacy.target_epsilon is None


def test_every_method_with_privacy_is_on_a_board() -> None:
    named = {
        override.partition("=")[2]
        for board in read_boards("all").values()
        for method in board.methods
        for override in method.overrides
        if override.startswith("strategy=")
    }
    noisy = {name for name, schema in METHODS.items() if {"noise_multiplier", "epsilon"} & set(schema.model_fields)}
    assert not noisy - named and len(noisy) > 10
