"""The leaderboard: equal effort, calibrated entries, private choices, reasons for what is not ranked."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_board import FEDAVG, METHODS, SEED, TINY, written
from pytest import approx

from fedpriv.commands import leaderboard
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS as KNOWN
from fedpriv.data.load import load_dataset, load_federated
from fedpriv.data.splits import read_split
from fedpriv.privacy.events import CLIENT_TO_SERVER
from fedpriv.privacy.private_selection import selection_epsilon, with_mean
from fedpriv.runs.preparation import resolve
from fedpriv.studies import boards, data, leaderboard_page
from fedpriv.studies.board_jobs import Key, Prepared, privacy_under
from fedpriv.studies.board_results import accuracies, board_of, entry_of, records_of
from fedpriv.studies.boards import read_board, read_boards
from fedpriv.studies.carrying_out import Failure
from fedpriv.studies.choice_price import run_events
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import Board, Leaderboard, RunRecord, read_results
from fedpriv.studies.search import begin
from fedpriv.studies.tuning import Tuned, _chosen, score

# --- the whole command -----------------------------------------------------------------------------------


def call(out: Path, *options: str) -> int:
    return leaderboard.main(["workers=1", f"out={out}", *options])


def records(out: Path) -> dict[str, int]:
    """Jobs that were done, and when."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (out / "runs").rglob("record.json")}


@dataclass(frozen=True)
class CarriedOut:
    """A board that is widened, and one that is tuned privately."""

    folder: Path
    boards: dict[str, Board]
    runs: dict[str, RunRecord]

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def page(self) -> str:
        return (self.out / "nobody_trusted.md").read_text()

    def trained(self, seed: int) -> list[RunRecord]:
        return [run for run in self.runs.values() if run.kind == "train" and run.seed == seed]


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> CarriedOut:
    folder = tmp_path_factory.mktemp("boards")
    written(folder / "boards")
    private = {**TINY["tuning"], "private": True, "trials": 2}
    two = [METHODS["fedldp"], METHODS["fedcad"]]
    written(folder / "boards", "private", tuning=private, methods=two, title="Private", targets=[2000.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boards, "BOARDS", folder / "boards")
        assert call(folder / "out", "plan=true") == 0
        assert not list((folder / "out" / "runs").glob("train-*"))
        assert call(folder / "out") == 0
    results, runs = read_results(folder / "out", Leaderboard)
    return CarriedOut(folder, {board.name: board for board in results.boards}, {run.name: run for run in runs})


def learning_rate(run: RunRecord) -> float:
    return next(float(o.partition("=")[2]) for o in run.options if o.startswith("local.lr="))


def without_choice(run: RunRecord) -> set[str]:
    return {option for option in run.options if not option.startswith(("local.lr=", "dataset.split="))}


@pytest.mark.slow
def test_everybody_is_tried_equally_often_and_an_edge_widens_all_searches(carried_out: CarriedOut) -> None:
    """Two ranges of a factor of 2.5, far below the best rate: reference and entries go beyond, others get as many."""
    board = carried_out.boards["tiny"]
    assert board.trials == 3 and {entry.tried for entry in board.entries} == {3}
    tuned: dict[tuple[str, ...], list[float]] = {}
    for run in carried_out.trained(SEED):
        assert any(option.startswith("dataset.split=") for option in run.options)
        rest = tuple(o for o in run.options if not o.startswith("local.lr="))
        tuned.setdefault(rest, []).append(learning_rate(run))
    assert {len(set(rates)) for rates in tuned.values()} == {3}
    assert max(rate for rest, rates in tuned.items() if "strategy=fedavg" in rest for rate in rates) > 0.05
    assert board.searched is not None and "2 points of a scrambled Sobol sequence" in board.searched
    assert board.search["fedldp"] == "local.lr from 0.02 to 0.05"


@pytest.mark.slow
def test_the_choice_sees_no_test_picture_and_is_the_best(carried_out: CarriedOut) -> None:
    pictures = load_dataset(compose(["dataset=digits"]).dataset, 0)
    split = read_split(str(carried_out.out / f"tuning-digits-300-{SEED}.npz"))
    rows = np.concatenate([split.train, split.test])
    assert sorted(rows) == list(range(len(pictures.train.targets))) and abs(len(split.test) - 300) <= 10
    board, plan = carried_out.boards["tiny"], read_board(carried_out.folder / "boards" / "tiny.yaml")
    for entry in board.entries:
        runs = [carried_out.runs[name] for name in entry.runs]
        mine = [run for run in carried_out.trained(SEED) if without_choice(run) == without_choice(runs[0])]
        best = max(mine, key=lambda run: run.summary["accuracy"]["final"])
        assert len(mine) == 3 and float(entry.chosen["local.lr"]) == learning_rate(best)
        for run in runs:
            privacy = privacy_under(run.summary, plan.threat)
            assert privacy is not None and learning_rate(run) == learning_rate(best)
            assert 0.98 * entry.target <= privacy["verified_epsilon"] <= entry.target
            assert not any(option.startswith("dataset.split=") for option in run.options)
            config = compose([*run.options, "operations.report=false"])
            assert config.local.sampler == "shuffle" and config.strategy.options.participation == "balanced"
        assert entry.verified_epsilon <= entry.target and entry.accuracy.n == len(plan.seeds) == 2
        assert entry.bytes_up > 0 and entry.seconds.mean is not None
    assert {entry.own_plan for entry in board.entries if entry.method == "fedcad"} == {True}
    assert not any(entry.own_plan for entry in board.entries if entry.method != "fedcad")


@pytest.mark.slow
def test_what_is_not_ranked_is_there_with_its_reason(carried_out: CarriedOut) -> None:
    board = carried_out.boards["tiny"]
    ran = {(entry.method, entry.target) for entry in board.entries}
    assert ran == {("fedldp", 20), ("fedldp", 2000), ("fedcad", 20), ("fedcad", 2000), ("quantile", 2000)}
    left = {(line.method, line.variant, line.target): line.reason for line in board.left}
    for (method, variant, target), words in {
        ("quantile", "repaired", 20.0): "releases it does not cover",
        ("dpsgd", "repaired", None): "another threat model",
        ("fedprox", "repaired", None): "has no noise to choose",
        ("adpfl", "repaired", None): "block",
        ("fedcad", "published", None): "without noise",
        ("fedldp", "published", None): "epsilon ",
    }.items():
        assert words in left[method, variant, target]
    guessed = [reason for (method, variant, _), reason in left.items() if (method, variant) == ("lost", "repaired")]
    assert guessed and all(reason.startswith("it guesses: the best of 3 trials has") for reason in guessed)
    assert all(reason.endswith("of its updates") for reason in guessed)
    assert {(duel.method, duel.against) for duel in board.duels} == {("fedcad", "fedldp")}
    assert board.alone is not None and board.alone.n == 2
    assert [words for words in board.verdicts if "than what every client has by itself" in words or "not told" in words]


@pytest.mark.slow
def test_the_search_has_a_price(carried_out: CarriedOut) -> None:
    for entry in carried_out.boards["tiny"].entries:
        assert entry.tuning is not None and entry.tuning.runs == 4
        assert entry.tuning.composed > 2 * entry.target and entry.tuning.random > entry.verified_epsilon


@pytest.mark.slow
def test_pages_and_commands(carried_out: CarriedOut, tmp_path: Path) -> None:
    page, index = carried_out.page, (carried_out.out / "README.md").read_text()
    assert "[Nobody is trusted](nobody_trusted.md)" in index and "Papernot and Steinke" in index
    for words in ("## What is not ranked", "with its search", "which costs nothing:", "[rules](../protocol.md)"):
        assert words in page
    board, place = carried_out.boards["tiny"], str(carried_out.folder)
    assert board.plot is not None and (carried_out.out / board.plot.file).stat().st_size > 1000
    entries = [entry for one in carried_out.boards.values() for entry in one.entries]
    lines = list(csv.DictReader((carried_out.out / "leaderboard.csv").open()))
    assert len(lines) == len(entries) and {line["method"] for line in lines} == {"fedldp", "fedcad", "quantile"}
    assert place not in page + index + json.dumps([entry.command for entry in entries])

    from fedpriv.runs.start import start_run

    words = [*board.entries[0].command.split()[3:], "operations.report=false", "engine=inprocess"]
    again, first = start_run(compose(words), tmp_path / "again"), carried_out.runs[board.entries[0].runs[0]]
    assert first.seed == 0 and again["accuracy"]["final"] == first.summary["accuracy"]["final"]


@pytest.mark.slow
def test_a_privately_tuned_board_counts_the_choice(carried_out: CarriedOut) -> None:
    board, by_name = carried_out.boards["private"], carried_out.runs
    assert {entry.method for entry in board.entries} == {"fedldp", "fedcad"}
    for entry in board.entries:
        assert 0.97 * entry.target < entry.verified_epsilon <= entry.target and entry.tuning is None
        assert entry.tried is None  # how many trials there were is a part of what the price hides
        assert len(entry.runs) == 2 and entry.accuracy.n == 2
        for name in entry.runs:
            run = by_name[name]
            own = [o.partition("=")[2] for o in run.options if o.startswith("privacy.target_epsilon=")]
            one = run.summary["privacy"]["verified_epsilon"]
            assert one <= float(own[0]) < entry.target
            # the guarantee again, from the run's own options
            options = [option for option in run.options if "split" not in option]
            config, *_ = resolve(compose([*options, "operations.report=false"]), None)
            (events,) = run_events(config)
            assert selection_epsilon(events, 1e-5, with_mean("geometric", 2)) == approx(entry.verified_epsilon)
            # it repeats the best of this seed's trials, on other test pictures
            twins = [
                other
                for other in by_name.values()
                if other.seed == run.seed and other.name != run.name and other.kind == "train"
                and [o for o in other.options if "split" not in o] == [o for o in run.options if "split" not in o]
            ]  # fmt: skip
            (scored,) = twins
            assert scored.norms == run.norms
            rivals = [
                other.summary["accuracy"]["final"]
                for other in by_name.values()
                if other.kind == "train" and other.seed // 100_000 == run.seed // 100_000
                and other.summary["strategy"] == run.summary["strategy"]
                and any(o.endswith(f"-{SEED}.npz") for o in other.options)
            ]  # fmt: skip
            assert scored.summary["accuracy"]["final"] == max(rivals)
    assert board.searched is not None and "Papernot" in board.searched


@pytest.mark.slow
def test_a_second_call_runs_only_what_is_new(
    carried_out: CarriedOut, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another option only what has it, unless runs are not wanted."""
    monkeypatch.setattr(boards, "BOARDS", tmp_path / "boards")
    shutil.copytree(carried_out.folder / "boards", tmp_path / "boards")
    out = tmp_path / "out"
    shutil.copytree(carried_out.out, out)
    before = records(out)
    assert call(out) == 0 and records(out) == before  # refusals included
    first, runs = read_results(out, Leaderboard)
    trained = [run for run in runs if run.kind == "train"]
    other = trained[0].model_copy(update={"name": "train-of-another-board-s0"})
    (out / "runs.jsonl").write_text("".join(run.model_dump_json() + "\n" for run in (*trained, other)))
    for prices in [*(out / "runs").glob("tuning-*-s*"), *(out / "runs").glob("plan-*")]:
        shutil.rmtree(prices)  # they need no run
    assert call(out, "run=false") == 0 and records(out).keys() == before.keys()
    again, kept = read_results(out, Leaderboard)
    assert again.boards == first.boards and kept[-1] == other
    assert sum(run.kind == "train" for run in kept) == len(trained) + 1

    before, page = records(out), (out / "nobody_trusted.md").read_text()
    methods = [one | ({"search": {"local.lr": {"low": 0.03, "high": 0.04}}} if one["name"] == "fedcad" else {})
               for one in TINY["methods"]]  # fmt: skip
    written(tmp_path / "boards", methods=methods, targets=[2000.0])
    capfd.readouterr()
    assert call(out, "board=tiny", "run=false") == 1
    assert "run=false: 2 of 12 runs (tune) are missing: run=true\n" in capfd.readouterr().err
    assert records(out) == before and (out / "nobody_trusted.md").read_text() == page
    assert call(out, "board=tiny") == 0
    new = {name for name in records(out).keys() - {*before, other.name} if name.startswith("train-")}
    assert {name: records(out)[name] for name in before} == before
    assert {name.rpartition("-")[0].rpartition("-")[0] for name in new} == {"train-fedcad"}


# --- what becomes of runs ----------------------------------------------------------------------------------


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
    key = Key(Prepared("tiny", plan, ("dataset=digits",), tmp_path / "split.npz", Path(), 10), plan.methods[0], 20.0)
    search = begin(key.space, plan.tuning.trials, plan.tuning.seed)
    first, second = key.tuning(search.trials)
    assert "privacy.delta=1e-05" in first.options
    tuned: dict[Job, RunRecord | Failure] = {
        first: Failure(first, "no"), second: done({"final": 0.1, "personalised": 0.4}),
    }  # fmt: skip
    found = _chosen(key, search, tuned)
    assert found.tried == 1 and [f"{option}={value}" for option, value in found.chosen.items()] == [*search.trials[1]]
    nothing = {first: done({"final": 0.9, "personalised": None}), second: done({"final": 0.9, "personalised": None})}
    none = _chosen(key, search, nothing)
    assert none.reason == "a tuning run has no personalised accuracy" and not none.final
    assert records_of(key, none, {}) == none.reason
    zero, one = found.final.values()
    half = {zero: done({"personalised": 0.5}), one: done({"personalised": None}, 1)}
    assert records_of(key, found, half) == "a final run has no personalised accuracy"
    whole = {zero: done({"personalised": 0.5}), one: done({"personalised": 0.6}, 1)}
    records = records_of(key, found, whole)
    assert not isinstance(records, str) and accuracies(key, records) == {0: 50.0, 1: 60.0}
    entry = entry_of(key, found, records)
    assert "(1 of 2 trials: the others failed)" in leaderboard_page._row(entry, 2)[1]
    assert "failed" not in leaderboard_page._row(entry, 1)[-1] and entry.superseded is None
    marked = {seed: run.model_copy(update={"superseded": "why"}) for seed, run in records.items()}
    assert entry_of(key, found, marked).superseded == "why"


def table_run(metrics: dict[str, Any], seed: int = 0) -> RunRecord:
    """Of a task of two classes; sites: the worst first, by the leading metric."""
    run = done({"final": 0.9}, seed)
    sites = [{"site": "b", "value": 0.7, "examples": 9}, {"site": "a", "value": 0.95, "examples": 9}]
    return run.model_copy(update={"summary": {**run.summary, "metrics": {**metrics, "sites": sites}}})


@pytest.mark.parametrize(
    ("measure", "metrics", "expected"),
    [
        ("final", {"leading": "accuracy", "final": {"auc": 0.8}}, 0.9),
        ("leading", {"leading": "accuracy", "final": {"auc": 0.8}}, 0.9),
        ("leading", {"leading": "auc", "more_is_better": True, "final": {"auc": 0.8}}, 0.8),
        ("auc", {"leading": "accuracy", "final": {"auc": 0.8}}, 0.8),
        ("auc", {"leading": "accuracy", "final": {}}, None),
        ("leading", {"leading": "rmse", "more_is_better": False, "final": {"rmse": 0.3, "r2": 0.4}}, None),
        ("r2", {"leading": "rmse", "more_is_better": False, "final": {"rmse": 0.3, "r2": 0.4}}, 0.4),
    ],
)
def test_a_board_ranks_by_its_measure_and_shows_the_worst_site(
    measure: str, metrics: dict[str, Any], expected: float | None, tmp_path: Path
) -> None:
    plan = read_board(written(tmp_path, targets=[20.0], measure=measure))
    key = Key(Prepared("tiny", plan, ("dataset=digits",), tmp_path / "split.npz", Path(), 10), plan.methods[0], 20.0)
    run = table_run(metrics)
    assert score(key, run) == expected
    found = _chosen(key, begin(key.space, 2, 0), dict.fromkeys(key.tuning(begin(key.space, 2, 0).trials), run))
    if expected is None:
        assert found.reason is not None and "has no" in found.reason and "of which 1 is most" in found.reason
        return
    records = records_of(key, found, {job: table_run(metrics, seed) for seed, job in found.final.items()})
    assert not isinstance(records, str) and accuracies(key, records) == {0: 100 * expected, 1: 100 * expected}
    entry = entry_of(key, found, records)
    assert (entry.worst_site is None) == (metrics["leading"] == "rmse")
    if entry.worst_site is not None:
        assert entry.worst_site.mean == pytest.approx(70.0)
        assert "70.0 ± 0.0 %" in leaderboard_page._row(entry, 2, sites=True)
        assert "70.0 ± 0.0 %" not in leaderboard_page._row(entry, 2)


def test_a_tables_final_runs_are_tested_on_rows_that_no_choice_saw(tmp_path: Path) -> None:
    """Whatever their seed; otherwise each seed would draw its own, among them rows by which was chosen."""
    where = ("dataset=practices",)
    held, classes = data.held_out(where, "practices", 500, 1000, tmp_path)
    final = data.own_test(where, "practices", tmp_path)
    assert final is not None and classes == 2 and data.own_test(("dataset=digits",), "digits", tmp_path) is None
    chosen, tested = read_split(str(held)), read_split(str(final))
    assert not {*chosen.train, *chosen.test} & {*tested.test} and {*chosen.train, *chosen.test} == {*tested.train}
    options = ["num_clients=10", "clients_per_round=10", "partition=column", "partition.column=practice"]
    one, other = (load_federated(compose([*where, *options, f"dataset.split={final}", f"seed={n}"])) for n in (0, 7))
    assert np.array_equal(one.dataset.test.inputs[one.test], other.dataset.test.inputs[other.test])
    assert one.dataset.sites == other.dataset.sites and len(one.dataset.sites) == 10
    plan = read_boards("rows_secure_sum")["rows_secure_sum"]
    key = Key(Prepared("rows", plan, where, held, Path(), 2, final), plan.methods[0], 1.0)
    assert all(f"dataset.split={final}" in job.options for job in key.final(()).values())
    assert all(f"dataset.split={held}" in job.options for job in key.tuning([()]))


# --- the files -------------------------------------------------------------------------------------------


def method(**changes: object) -> list[dict[str, object]]:
    return [METHODS["fedldp"] | changes]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"titel": "x"}, ["titel", "no such option"]),
        ({"observer": "nobody"}, ["observer", "nobody", "allowed", "secure-sum"]),
        ({"targets": [1.0, -2.0]}, ["targets", "-2.0", "more than 0"]),
        ({"targets": []}, ["targets"]),
        ({"targets": [1.0, 1.0]}, ["targets", "twice"]),
        ({"seeds": [0, SEED]}, ["tuning.seed", str(SEED), "must not see"]),
        ({"setting": ["seed=3"]}, ["setting", "seed=3", "leaderboard itself"]),
        ({"setting": ["privacy.delta=0.1"]}, ["setting", "privacy.delta=0.1", "leaderboard itself"]),
        ({"delta": 1.0}, ["delta", "1.0"]),
        ({"measure": "best"}, ["measure", "best", "personalised"]),
        (
            {"methods": [{**FEDAVG, "overrides": ["privacy.target_epsilon=3"]}]},
            ["fedavg.overrides", "leaderboard itself"],
        ),
        ({"methods": [FEDAVG] * 2}, ["methods", "twice"]),
        ({"search": ["local.lr=0.1,0.2"]}, ["search", "chosen by hand", "low"]),
        ({"methods": method(search=["local.lr=0.1,0.2"])}, ["methods.0.search", "chosen by hand"]),
        ({"search": {}}, ["fedavg.search", "names no range"]),
        ({"search": {"local.lr": {"low": 1.0, "high": 2.0, "own": True}}}, ["fedavg.search", "that rivals have"]),
        ({"methods": method(targets=[3.0])}, [".targets", "3.0", "20.0, 2000.0"]),
        ({"methods": method(against=["nobody"])}, [".against", "nobody", "allowed"]),
        ({"search": {"local.lr": {"low": 1.0, "high": 0.5}}}, ["low=1, high=0.5", "least <= low < high <= most"]),
        ({"search": {"privacy.delta": {"low": 1.0, "high": 2.0}}}, ["privacy.delta", "leaderboard itself"]),
        ({"tuning": {"seed": 1000, "pictures": 300}}, ["tuning.trials"]),
        ({"methods": method(overrides=["strategy=fedcad", "local.sampler=poisson"])}, ["sampler=poisson", "plan"]),
        ({"methods": method(overrides=["strategy=fedldp", "num_rounds=9"])}, ["num_rounds=9", "the same for all rows"]),
        ({"methods": method(plan=["seed=3"])}, ["seed=3", "leaderboard itself"]),
        ({"tuning": {"seed": 1, "pictures": 9, "trials": 1}}, ["tuning.trials", "at least 2"]),
    ],
)
def test_a_broken_file_is_refused_in_words(tmp_path: Path, changes: dict[str, object], words: list[str]) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(OptionError) as error:
        read_board(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_the_literal_scale_replaces_what_it_names(tmp_path: Path) -> None:
    literal = {"plan": ["num_rounds=50"], "seeds": [0, 1, 2], "words": "Longer."}
    written(tmp_path, literal=literal)
    small, long = (read_boards("tiny", tmp_path, scale)["tiny"] for scale in ("small", "literal"))
    assert small.plan[-1] != "num_rounds=50" and long.plan[-1] == "num_rounds=50"
    assert (long.words, long.seeds, long.targets) == ("Longer.", (0, 1, 2), (20.0, 2000.0))
    written(tmp_path, literal={"seeds": [SEED]})
    with pytest.raises(OptionError, match=r"at scale=literal: tuning\.seed"):
        read_boards("tiny", tmp_path, "literal")


def test_the_command_refuses_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leaderboard.main(["board=nowhere"]) == 2
    assert "board=nowhere: allowed: all, client_often, client_personal" in capfd.readouterr().err
    assert leaderboard.main(["boards=all"]) == 2 and "no such option" in capfd.readouterr().err
    assert leaderboard.main(["download=maybe"]) == 2 and "allowed: false, true" in capfd.readouterr().err
    assert leaderboard.main(["board=example", f"data={tmp_path}", f"out={tmp_path}"]) == 2
    assert "mnist is not there" in capfd.readouterr().err
    monkeypatch.setattr(boards, "BOARDS", tmp_path / "boards")
    wrong = METHODS["fedldp"] | {"overrides": ["strategy=fedldp", "strategy.client.sigma=3"]}
    written(tmp_path / "boards", methods=[wrong])
    assert leaderboard.main(["board=tiny", f"out={tmp_path / 'out'}"]) == 2
    said = capfd.readouterr().err
    assert "tiny.yaml, fedldp: strategy.client.sigma=3: there is no such option" in said and said.count("\n") == 1
    (tmp_path / "boards" / "tiny.yaml").write_text("methods: [")
    assert leaderboard.main(["board=tiny"]) == 2 and "cannot be read" in capfd.readouterr().err
    assert leaderboard.main(["--help"]) == 0 and "workers" in capfd.readouterr().out


@pytest.mark.rotates(2)
@pytest.mark.parametrize("name", sorted(path.stem for path in boards.BOARDS.glob("*.yaml")))
def test_every_shipped_board_composes(name: str) -> None:
    board = read_boards(name)[name]
    assert board.plan and len(board.seeds) >= 4
    assert board.tuning.trials == 8
    for method in (*board.lines, *board.methods):
        planned, trial = (
            method.plan or board.plan,
            begin({**board.search, **method.search}, 8, board.tuning.seed).trials[-1],
        )
        config = compose([f"dataset={board.dataset}", *board.setting, *method.overrides, *planned, *trial])
        assert config.privacy.variant == "repaired" and config.privacy.target_epsilon is None


#: A paper's method -> the options of its own mechanism, of which the protocol says that they are searched.
OWN = {
    "fedcad": ("client.diff",),
    "coqfl": ("client.bits",),
    "adpfl": ("client.base_share", "server.distillation_lr", "server.window"),
    "fedags": ("client.selection_share", "client.loss_share"),
}
#: Options that no rival has: they take further coordinates of the search's sequence.
ALONE = {f"strategy.{option}" for own in (*OWN.values(), ("client.bandwidth",)) for option in own}


def test_the_search_covers_the_options_of_a_papers_own_mechanism() -> None:
    """By the protocol, section 7. DP-FedAGS has no shares where its selection is public chance and no loss is told: a
    row with both has them. Boards on which the method has no account are left out.
    """
    without = {
        "client_secure_sum": {"fedcad", "coqfl", "adpfl", "fedags"},
        "client_server": {"adpfl"},  # a model of one block has no personal layers
    }
    for name, board in read_boards("all").items():
        ideas = [method for method in board.methods if method.idea == "paper"]
        for strategy, own in OWN.items():
            rows = [method for method in ideas if f"strategy={strategy}" in method.overrides]
            if rows and strategy not in without.get(name, ()):
                searched = [{f"strategy.{option}" for option in own} <= method.search.keys() for method in rows]
                assert any(searched) and (all(searched) or strategy == "fedags"), (name, strategy)
        for method in board.methods:
            assert {o for o, one in method.search.items() if one.own} == method.search.keys() & ALONE, method.name


def test_a_row_is_run_at_its_own_targets(tmp_path: Path) -> None:
    plan = read_board(written(tmp_path, methods=[METHODS["fedldp"], METHODS["fedcad"] | {"targets": [2000.0]}]))
    keys = [(key.method.name, key.target) for key in Prepared("tiny", plan).keys]
    assert keys == [("fedldp", 20.0), ("fedldp", 2000.0), ("fedcad", 2000.0)]


def test_rows_on_features_have_a_reference_on_the_same_features() -> None:
    for name, board in read_boards("all").items():
        rows = [method for method in board.methods if any(o.startswith("features=g") for o in method.overrides)]
        if not rows:
            assert board.on_features is None
            continue
        assert board.on_features is not None, name
        map_of = {override for override in rows[0].overrides if override.startswith(("features", "model"))}
        assert {one for one in map_of if "dims" not in one} <= {*board.on_features.overrides}
        # The first table tells them by these names.
        names = {method.name: "features.map=strokes" in method.overrides for method in rows}
        assert all(("strokes" if strokes else "edges") in method for method, strokes in names.items())


def test_a_board_that_asks_often_lets_a_memory_help() -> None:
    board = read_boards("client_often")["client_often"]
    clients, asked, rounds = (int(override.partition("=")[2]) for override in board.plan[:3])
    assert asked * rounds / clients == 10 and not any(method.plan for method in board.methods)
    assert {method.name for method in board.methods} == {"fedldp", "fedcad", "fedcad-adaptive"}


def test_lines_without_a_target_are_told_by_their_names(tmp_path: Path) -> None:
    features = FEDAVG | {"name": "upright", "overrides": ["strategy=fedavg", "local.batch_size=7"]}
    plan = read_board(written(tmp_path, methods=[METHODS["fedldp"]], on_features=features))
    board = Prepared("tiny", plan, ("dataset=digits",), classes=10)
    shares = {"fedavg": 0.5, "upright": 0.7, "alone": 0.2}
    assert [key.method.name for key in board.lines] == list(shares)
    tuned, found = {}, {}
    for key in board.lines:
        tuned[key] = Tuned(begin(key.space, 2, SEED), tried=2, final=key.final(()))
        found |= {job: done({"final": shares[key.method.name]}, seed) for seed, job in tuned[key].final.items()}
    jobs = [job for key in board.keys for job in (key.planned(), key.published())]
    made = board_of(board, tuned, {**found, **{job: Failure(job, "no") for job in jobs}}, {})
    lines = made.reference, made.on_features, made.alone
    assert [line and line.mean for line in lines] == [approx(50.0), approx(70.0), approx(20.0)]
    assert "20.0 % by itself" in made.verdicts[1]
    text = "\n".join(leaderboard_page._board(made))
    assert re.search(r"Without privacy: 50\.0[^,]*, on features 70\.0[^,]*; guessing", text)


def test_every_method_with_privacy_is_on_a_board() -> None:
    named = {
        override.partition("=")[2]
        for board in read_boards("all").values()
        for method in board.methods
        for override in method.overrides
        if override.startswith("strategy=")
    }
    noisy = {name for name, schema in KNOWN.items() if {"noise_multiplier", "epsilon"} & set(schema.model_fields)}
    assert noisy - {"ask"} <= named and len(noisy) > 10  # ask trains nothing
