"""The leaderboard: equal effort, calibrated entries, private choices, reasons for what is not ranked."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_up import FEDAVG, METHODS, SEED, TINY, written
from pytest import approx

from fedpriv.commands import leaderboard
from fedpriv.config.compose import compose
from fedpriv.data.load import load_dataset, load_federated
from fedpriv.data.partition import read_split
from fedpriv.privacy.events import CLIENT_TO_SERVER
from fedpriv.privacy.private_selection import selection_epsilon, with_mean
from fedpriv.runs.preparation import resolve
from fedpriv.studies import boards, data, pages
from fedpriv.studies.boards import BoardPlan, begin, read_boards
from fedpriv.studies.jobs import Job, run_events
from fedpriv.studies.leaderboard import (
    Key,
    Prepared,
    Tuned,
    accuracies,
    board_of,
    choose,
    entry_of,
    privacy_under,
    records_of,
    score,
)
from fedpriv.studies.papers import read
from fedpriv.studies.results import Board, Leaderboard, RunRecord, provenance, read_runs, read_study, write_results
from fedpriv.studies.runner import Failure


def plan_of(file: Path) -> BoardPlan:
    return read(file, BoardPlan, "board")


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
    results, runs = read_study(folder / "out", Leaderboard), read_runs(folder / "out")
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
    assert "2 points of a scrambled Sobol sequence" in carried_out.page and not board.private
    assert board.search["fedldp"] == "local.lr from 0.02 to 0.05"


@pytest.mark.slow
def test_the_choice_sees_no_test_picture_and_is_the_best(carried_out: CarriedOut) -> None:
    pictures = load_dataset(compose(["dataset=digits"]).dataset, 0)
    split = read_split(str(carried_out.out / f"tuning-digits-300-{SEED}.npz"))
    rows = np.concatenate([split.train, split.test])
    assert sorted(rows) == list(range(len(pictures.train.targets))) and abs(len(split.test) - 300) <= 10
    board, plan = carried_out.boards["tiny"], plan_of(carried_out.folder / "boards" / "tiny.yaml")
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
    for target, gap in board.ahead.items():
        best = board.at(target)[0]
        assert gap.n == 2 and gap.mean == approx((best.accuracy.mean or 0) - (board.alone.mean or 0))
    assert "The best against what every client has by itself, in points: at epsilon 20 " in carried_out.page


@pytest.mark.slow
def test_the_search_has_a_price(carried_out: CarriedOut) -> None:
    for entry in carried_out.boards["tiny"].entries:
        assert entry.tuning is not None and entry.tuning.runs == 4
        assert entry.tuning.composed > 2 * entry.target and entry.tuning.random > entry.verified_epsilon


@pytest.mark.slow
def test_pages_and_commands(carried_out: CarriedOut, tmp_path: Path) -> None:
    page, index = carried_out.page, (carried_out.out / "README.md").read_text()
    assert "[Nobody is trusted](nobody_trusted.md)" in index and "Papernot and Steinke" in index
    for words in (
        "- Not ranked: ",
        "Composed with its search, epsilon 20 ",
        "which costs nothing:",
        "[rules](../protocol.md)",
    ):
        assert words in page
    board, place = carried_out.boards["tiny"], str(carried_out.folder)
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
    assert board.private and "law with mean 2" in carried_out.page


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
    first, runs = read_study(out, Leaderboard), read_runs(out)
    trained = [run for run in runs if run.kind == "train"]
    other = trained[0].model_copy(update={"name": "train-of-another-board-s0"})
    write_results(out, first, [*trained, other])
    for prices in [*(out / "runs").glob("tuning-*-s*"), *(out / "runs").glob("plan-*")]:
        shutil.rmtree(prices)  # they need no run
    assert call(out, "run=false") == 0 and records(out).keys() == before.keys()
    again, kept = read_study(out, Leaderboard), read_runs(out)
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
    plan = plan_of(written(tmp_path, targets=[20.0], measure="personalised"))
    key = Key(Prepared("tiny", plan, ("dataset=digits",), tmp_path / "split.npz", Path(), 10), plan.methods[0], 20.0)
    search = begin(key.space, plan.tuning.trials, plan.tuning.seed)
    first, second = key.tuning(search.trials)
    assert "privacy.delta=1e-05" in first.options
    tuned: dict[Job, RunRecord | Failure] = {
        first: Failure(first, "no"), second: done({"final": 0.1, "personalised": 0.4}),
    }  # fmt: skip
    found = choose(key, search, tuned)
    assert found.tried == 1 and [f"{option}={value}" for option, value in found.chosen.items()] == [*search.trials[1]]
    nothing = {first: done({"final": 0.9, "personalised": None}), second: done({"final": 0.9, "personalised": None})}
    none = choose(key, search, nothing)
    assert none.reason == "a tuning run has no personalised accuracy" and not none.final
    assert records_of(key, none, {}) == none.reason
    zero, one = found.final.values()
    half = {zero: done({"personalised": 0.5}), one: done({"personalised": None}, 1)}
    assert records_of(key, found, half) == "a final run has no personalised accuracy"
    whole = {zero: done({"personalised": 0.5}), one: done({"personalised": 0.6}, 1)}
    records = records_of(key, found, whole)
    assert not isinstance(records, str) and accuracies(key, records) == {0: 50.0, 1: 60.0}
    entry = entry_of(key, found, records)
    cell = pages._board_cell(entry, SimpleNamespace(trials=2))  # type: ignore[arg-type]
    assert cell.endswith(" (1 of 2 trials: the others failed)") and entry.superseded is None
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
    plan = plan_of(written(tmp_path, targets=[20.0], measure=measure))
    key = Key(Prepared("tiny", plan, ("dataset=digits",), tmp_path / "split.npz", Path(), 10), plan.methods[0], 20.0)
    run = table_run(metrics)
    assert score(key, run) == expected
    found = choose(key, begin(key.space, 2, 0), dict.fromkeys(key.tuning(begin(key.space, 2, 0).trials), run))
    if expected is None:
        assert found.reason is not None and "has no" in found.reason and "of which 1 is most" in found.reason
        return
    records = records_of(key, found, {job: table_run(metrics, seed) for seed, job in found.final.items()})
    assert not isinstance(records, str) and accuracies(key, records) == {0: 100 * expected, 1: 100 * expected}
    entry = entry_of(key, found, records)
    assert (entry.worst_site is None) == (metrics["leading"] == "rmse")
    if entry.worst_site is not None:
        assert entry.worst_site.mean == pytest.approx(70.0)
        cell = pages._board_cell(entry, SimpleNamespace(trials=2))  # type: ignore[arg-type]
        assert cell.endswith(", worst site 70.0 ± 0.0")


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


def test_the_command_refuses_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leaderboard.main(["board=nowhere"]) == 2
    assert "board=nowhere: allowed: all, client_often, client_personal" in capfd.readouterr().err
    assert leaderboard.main(["boards=all"]) == 2 and "no such option" in capfd.readouterr().err
    assert leaderboard.main(["download=maybe"]) == 2 and "allowed: true, false" in capfd.readouterr().err
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


def test_lines_without_a_target_are_told_by_their_names(tmp_path: Path) -> None:
    features = FEDAVG | {"name": "upright", "overrides": ["strategy=fedavg", "local.batch_size=7"]}
    plan = plan_of(written(tmp_path, methods=[METHODS["fedldp"]], on_features=features))
    board = Prepared("tiny", plan, ("dataset=digits",), classes=10)
    shares = {"fedavg": 0.5, "upright": 0.7, "alone": 0.2}
    assert [key.method.name for key in board.lines] == list(shares)
    tuned, found = {}, {}
    for key in board.lines:
        tuned[key] = Tuned(begin(key.space, 2, SEED), tried=2, final=key.final(()))
        found |= {job: done({"final": shares[key.method.name]}, seed) for seed, job in tuned[key].final.items()}
    jobs = [*(key.planned() for key in board.keys), *board.published.values()]
    made = board_of(board, tuned, {**found, **{job: Failure(job, "no") for job in jobs}}, {})
    lines = made.reference, made.on_features, made.alone
    assert [line and line.mean for line in lines] == [approx(50.0), approx(70.0), approx(20.0)]
    text = pages.board_pages(Leaderboard(provenance=provenance([]), boards=(made,)))["nobody_trusted.md"]
    assert "Every client by itself, which costs nothing: 20.0" in text and "Nothing is ranked." in text
    assert re.search(r"Without privacy: 50\.0[^,]*, on features 70\.0[^,]*; guessing", text)
