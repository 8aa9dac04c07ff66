"""The search over ranges, its widening, private tuning, and what a board with them says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pytest import approx

from fedpriv import leaderboard
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.privacy.private_selection import selection_epsilon, with_mean
from fedpriv.runs.preparation import resolve
from fedpriv.studies import boards
from fedpriv.studies import leaderboard as study
from fedpriv.studies.board_jobs import Prepared
from fedpriv.studies.board_results import Key
from fedpriv.studies.boards import BoardPlan, read_board, read_boards
from fedpriv.studies.choice_price import run_events
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import Board, Leaderboard, RunRecord, read_results
from fedpriv.studies.search import Range, Search, begin, drawn, points

SPACE = {"local.lr": Range(low=0.01, high=1.0), "strategy.client.clip_norm": Range(low=0.1, high=10.0, most=10.0)}


# --- points and edges ------------------------------------------------------------------------------------


def test_points_fill_the_range_evenly_and_a_longer_search_begins_with_the_same() -> None:
    eight, twelve = begin(SPACE, 8, 1000), begin(SPACE, 12, 1000)
    assert twelve.trials[:8] == eight.trials and len(set(twelve.trials)) == 12
    assert begin(SPACE, 8, 1001).trials != eight.trials
    lr = [float(trial[0].partition("=")[2]) for trial in eight.trials]
    eighths = sorted(math.floor(8 * math.log(value / 0.01) / math.log(100)) for value in lr)
    assert eighths == list(range(8))  # one in each eighth of the logarithm
    assert all(len(f"{value:g}".replace(".", "").lstrip("0")) <= 3 for value in lr)
    assert np.array(points(3, 5, 7)).shape == (5, 3)


@pytest.mark.parametrize(
    ("value", "side"), [(0.01, "low"), (0.0158, "low"), (0.016, None), (0.6, None), (0.64, "high"), (1.0, "high")]
)
def test_the_outermost_tenth_is_an_edge(value: float, side: str | None) -> None:
    assert SPACE["local.lr"].side(value) == side
    assert Range(low=0.01, high=1.0, least=0.01, most=1.0).side(value) is None


def test_widening_goes_beyond_the_own_edge_and_gives_everybody_as_many() -> None:
    search = begin(SPACE, 8, 1000)
    inside, outside = ("local.lr=0.1", "strategy.client.clip_norm=1"), ("local.lr=0.9", "strategy.client.clip_norm=9.9")
    assert search.sides(inside) == {} and search.sides(outside) == {"local.lr": "high"}  # no clip norm beyond 10
    same, wider = (search.further(best, 4, 1000, 4.0) for best in (inside, outside))
    assert len(same.trials) == len(wider.trials) == 12 and same.space == SPACE
    assert same.trials == begin(SPACE, 12, 1000).trials
    assert wider.space["local.lr"] == Range(low=0.01, high=4.0)
    assert wider.space["strategy.client.clip_norm"] == SPACE["strategy.client.clip_norm"]
    assert all(1 <= float(trial[0].partition("=")[2]) <= 4 for trial in wider.trials[8:])
    again = wider.further(("local.lr=3.9", "strategy.client.clip_norm=1"), 4, 1000, 4.0)
    assert again.space["local.lr"].high == 16 and len(again.trials) == 16
    low = search.further(("local.lr=0.011", "strategy.client.clip_norm=1"), 4, 1000, 4.0)
    assert low.space["local.lr"] == Range(low=0.0025, high=1.0)
    assert search.further(None, 4, 1000, 4.0).trials == same.trials  # nothing ran: no edge
    near = Search({"a": Range(low=1.0, high=2.0, most=3.0)}, ()).further(("a=2",), 3, 0, 4.0)
    assert near.space["a"].high == 3.0


def test_a_random_trial_is_anywhere_in_the_ranges() -> None:
    rng = np.random.default_rng(0)
    values = [float(drawn(SPACE, rng)[0].partition("=")[2]) for _ in range(2000)]
    assert 0.01 <= min(values) < 0.0105 and 0.95 < max(values) <= 1 and np.median(values) == approx(0.1, rel=0.15)


# --- the files -------------------------------------------------------------------------------------------

#: Of the search, such that the higher of its first two points stands in the outermost tenth.
SEED = next(seed for seed in range(1020, 1100) if max(points(1, 2, seed))[0] > 0.92)

TINY: dict[str, Any] = {
    "title": "A tiny board",
    "unit": "client",
    "adjacency": "replace-one",
    "observer": "server",
    "dataset": "digits",
    "delta": 1e-5,
    "words": "Digits, ten clients.",
    "setting": [
        *("model=linear", "local.batch_size=20", "evaluate.every=0", "checkpoint.every=0", "engine.trainer=vectorised"),
        "partition.test_fraction=0.2",
    ],
    "plan": [
        *("num_clients=10", "clients_per_round=5", "num_rounds=2", "strategy.server.participation=balanced"),
        "local.sampler=shuffle",
    ],
    "targets": [2000.0],
    "seeds": [0, 1],
    "tuning": {"seed": SEED, "pictures": 300, "trials": 2, "further": 1, "widenings": 1, "factor": 10.0},
    "search": {"local.lr": {"low": 0.02, "high": 0.05}},
    "reference": {
        "name": "fedavg", "label": "FedAvg", "paper": "-", "idea": "plain", "overrides": ["strategy=fedavg"],
    },
    "alone": {
        "name": "alone", "label": "Alone", "paper": "-", "idea": "plain", "overrides": ["strategy=fedavg"],
        "plan": ["num_clients=10", "clients_per_round=10", "num_rounds=1"],
    },
    "methods": [
        {"name": name, "label": name.upper(), "paper": "-", "idea": idea, "overrides": overrides, "why": why}
        | ({"plan": ["num_clients=10", "clients_per_round=5", "num_rounds=2", "strategy.server.participation=balanced",
                     "local.sampler=shuffle"]} if name == "fedcad" else {})
        for name, idea, overrides, why in (
            ("fedldp", "plain", ["strategy=fedldp"], ""),
            ("fedcad", "paper", ["strategy=fedcad"], ""),
            ("lost", "rival", ["strategy=fedldp", "strategy.client.clip_norm=1e-6"], "nothing is left of its updates"),
        )
    ],
}  # fmt: skip


def written(folder: Path, name: str = "tiny", **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return path


def method(**changes: object) -> list[dict[str, object]]:
    return [{**TINY["methods"][0], **changes}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"search": ["local.lr=0.1,0.2"]}, ["search", "chosen by hand", "low"]),
        ({"methods": method(search=["local.lr=0.1,0.2"])}, ["methods.0.search", "chosen by hand"]),
        ({"search": {}}, ["fedavg.search", "names no range"]),
        ({"search": {"local.lr": {"low": 1.0, "high": 0.5}}}, ["low=1, high=0.5", "least <= low < high <= most"]),
        ({"search": {"privacy.delta": {"low": 1.0, "high": 2.0}}}, ["privacy.delta", "leaderboard itself"]),
        ({"tuning": {"seed": 1000, "pictures": 300}}, ["tuning.trials"]),
        ({"methods": method(overrides=["strategy=fedcad", "local.sampler=poisson"])}, ["sampler=poisson", "plan"]),
        ({"methods": method(overrides=["strategy=fedldp", "num_rounds=9"])}, ["num_rounds=9", "the same for all rows"]),
        ({"methods": method(plan=["seed=3"])}, ["seed=3", "leaderboard itself"]),
        ({"tuning": {"seed": 1, "pictures": 9, "trials": 1}}, ["tuning.trials", "at least 2"]),
    ],
)  # fmt: skip
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
    assert (long.words, long.seeds, long.targets) == ("Longer.", (0, 1, 2), (2000.0,))
    written(tmp_path, literal={"seeds": [SEED]})
    with pytest.raises(OptionError, match=r"at scale=literal: tuning\.seed"):
        read_boards("tiny", tmp_path, "literal")


# --- the whole command -----------------------------------------------------------------------------------


class Inline(Executor):
    """In place of processes, which take seconds to start."""

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments, **named))
        return future


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A board that is widened, and one that is tuned privately."""
    folder = tmp_path_factory.mktemp("boards")
    written(folder / "boards")
    private = {**TINY["tuning"], "private": True, "trials": 2}
    written(folder / "boards", "private", tuning=private, methods=TINY["methods"][:2], title="Private")
    found: dict[str, Any] = {"out": folder / "out", "folder": folder}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boards, "BOARDS", folder / "boards")
        patch.setattr("fedpriv.studies.leaderboard.process_pool", lambda workers: nullcontext(Inline()))
        assert leaderboard.main(["plan=true", f"out={folder / 'out'}"]) == 0
        assert not list((folder / "out" / "runs").glob("train-*"))
        assert leaderboard.main([f"out={folder / 'out'}"]) == 0
        results, runs = read_results(folder / "out", Leaderboard)
        found |= {board.name: board for board in results.boards} | {"runs": runs}
        before = {path: path.stat().st_mtime_ns for path in (folder / "out" / "runs").rglob("record.json")}
        assert leaderboard.main([f"out={folder / 'out'}"]) == 0
        assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing was done again, refusals included
        assert len(list((folder / "out" / "runs").rglob("record.json"))) == len(before)
    found["plan"] = read_board(folder / "boards" / "tiny.yaml")
    return found


@pytest.mark.slow
def test_an_edge_widens_all_searches_of_the_board(carried_out: dict[str, Any]) -> None:
    board: Board = carried_out["tiny"]
    runs: list[RunRecord] = carried_out["runs"]
    tuned = [run for run in runs if run.kind == "train" and run.seed == SEED]
    tuned = [run for run in tuned if not any("privacy.target_epsilon" in o and "2000" not in o for o in run.options)]
    assert board.trials == 3 and {entry.tried for entry in board.entries} == {3}
    # Two ranges of a factor of 2.5, far below the best rate: reference and entries go beyond, others get as many.
    by_method: dict[str, list[float]] = {}
    for run in tuned:
        (lr,) = (float(o.partition("=")[2]) for o in run.options if o.startswith("local.lr="))
        clipped = "lost" if "strategy.client.clip_norm=1e-6" in run.options else str(run.summary["strategy"])
        by_method.setdefault(f"{clipped}-{run.summary['rounds']}", []).append(lr)
    assert {name: len(set(values)) for name, values in by_method.items()} == {
        "fedavg-2": 3, "fedavg-1": 3, "fedldp-2": 3, "fedcad-2": 3, "lost-2": 3,
    }  # fmt: skip
    assert max(by_method["fedavg-2"]) > 0.05
    assert board.searched is not None and "2 points of a scrambled Sobol sequence" in board.searched
    assert board.search["fedldp"] == "local.lr from 0.02 to 0.05"


def test_who_guesses_widens_nobodys_search(tmp_path: Path) -> None:
    """Of two entries whose best stands at an edge, one guesses."""
    plan = read_board(written(tmp_path, alone=None, methods=TINY["methods"][:1]))
    board = Prepared("tiny", plan, ("dataset=digits",), tmp_path / "split.npz", Path(), 10)
    key = Key("tiny", plan.methods[0], 2000.0)

    def stages(accuracy: float) -> list[str]:
        asked: list[str] = []

        def do(stage: str, jobs: Sequence[Job]) -> dict[Job, RunRecord]:
            asked.append(stage)
            rates = [float(next(o for o in job.options if "local.lr" in o).partition("=")[2]) for job in jobs]
            return {job: ran(job, accuracy + rate / 1000) for job, rate in zip(jobs, rates, strict=True)}

        study._tune({key: board}, do)
        return asked

    assert stages(0.5) == ["tune", "tune, wider (1)"] and stages(0.1) == ["tune"]


def ran(job: Job, accuracy: float) -> RunRecord:
    summary = {"accuracy": {"final": accuracy}}
    return RunRecord(name=job.name, kind="train", options=(), seed=job.seed, command="", summary=summary)


@pytest.mark.slow
def test_all_rows_have_the_boards_plan_and_the_line_alone_its_own(carried_out: dict[str, Any]) -> None:
    plan: BoardPlan = carried_out["plan"]
    by_name = {run.name: run for run in carried_out["runs"]}
    board: Board = carried_out["tiny"]
    for entry in board.entries:
        for name in entry.runs:
            config = compose([*by_name[name].options, "operations.report=false"])
            assert config.local.sampler == "shuffle" and config.strategy.options.participation == "balanced"
    assert {entry.method: entry.own_plan for entry in board.entries} == {"fedldp": False, "fedcad": True}
    assert board.alone is not None and board.alone.n == len(plan.seeds)
    assert [words for words in board.verdicts if "than what every client has by itself" in words or "not told" in words]
    page = (carried_out["out"] / "README.md").read_text()
    assert "Every client by itself, which costs nothing:" in page and "are one family" in page


@pytest.mark.slow
def test_who_guesses_is_not_ranked_and_is_not_run_further(carried_out: dict[str, Any]) -> None:
    board: Board = carried_out["tiny"]
    assert {entry.method for entry in board.entries} == {"fedldp", "fedcad"}
    (left,) = (left for left in board.left if left.method == "lost" and left.variant == "repaired")
    assert left.reason.startswith("it guesses: the best of 3 trials has") and left.reason.endswith("of its updates")
    (duel,) = board.duels
    assert (duel.method, duel.against) == ("fedcad", "fedldp") and duel.p == duel.adjusted


@pytest.mark.slow
def test_the_search_has_a_price(carried_out: dict[str, Any]) -> None:
    for entry in carried_out["tiny"].entries:
        assert entry.tuning is not None and entry.tuning.runs == 4
        assert entry.tuning.composed > 2 * entry.target and entry.tuning.random > entry.verified_epsilon
    assert "with its search" in (carried_out["out"] / "README.md").read_text()


@pytest.mark.slow
def test_a_privately_tuned_board_counts_the_choice(carried_out: dict[str, Any]) -> None:
    board: Board = carried_out["private"]
    by_name = {run.name: run for run in carried_out["runs"]}
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
