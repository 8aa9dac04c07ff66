"""The leaderboard: equal effort, calibrated entries, reasons for what is not ranked; and its arithmetic."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pytest import approx

from fedpriv import leaderboard
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.data.load import load_dataset
from fedpriv.data.splits import read_split
from fedpriv.privacy.events import CLIENT_TO_SERVER
from fedpriv.studies import board_results, boards, leaderboard_page, ranking
from fedpriv.studies import leaderboard as study
from fedpriv.studies.board_jobs import Prepared, privacy_under
from fedpriv.studies.board_results import Key, accuracies, records_of
from fedpriv.studies.boards import read_board, read_boards
from fedpriv.studies.carrying_out import Failure
from fedpriv.studies.jobs import Job
from fedpriv.studies.ranking import (
    Contender,
    against_alone,
    better_at,
    difference,
    duels,
    holm,
    outcome,
    p_value,
    ranked,
    verdicts,
)
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


def call(out: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capfd.readouterr()
    code = leaderboard.main(["workers=1", f"out={out}"])
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

    # Called again, nothing is run; with another option, only what has it.
    monkeypatch.setattr("fedpriv.studies.leaderboard.process_pool", lambda workers: nullcontext(Inline()))
    before = folders(out)
    assert call(out, capfd)[0] == 0 and folders(out) == before
    methods = [
        {**method, "search": {"local.lr": {"low": 0.1, "high": 0.2}}} if method["name"] == "fedcad" else method
        for method in TINY["methods"]
    ]
    written(tmp_path / "boards", methods=methods, targets=[2000.0])
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
    noisy = {
        name for name, (_, client) in METHODS.items() if {"noise_multiplier", "epsilon"} & set(client.model_fields)
    }
    assert not noisy - named and len(noisy) > 10


# --- the arithmetic --------------------------------------------------------------------------------------


def contender(name: str, values: list[float], idea: str = "paper") -> Contender:
    return Contender(name, name.upper(), idea, dict(enumerate(values)))


def test_the_order_is_by_mean_and_what_no_pair_decides_is_tied() -> None:
    a = contender("a", [80.0, 81.0, 82.0])
    b = contender("b", [84.0, 85.0, 86.0])  # 4 above a with every seed, though their own intervals overlap (± 2.48)
    c = contender("c", [88.0, 80.0, 86.0])  # 84.7: below b by -4 to 5
    found = ranked([a, b, c])
    assert [(rank, tied, one.method) for rank, tied, one in found] == [(1, True, "b"), (2, True, "c"), (3, False, "a")]
    assert b.accuracy.half_width == approx(4.302653 / 3**0.5)
    assert ranked([]) == []
    same = ranked([contender("x", [50.0, 52.0]), contender("y", [52.0, 50.0])])
    assert [rank for rank, _, _ in same] == [1, 1]
    assert [tied for _, tied, _ in ranked([contender("x", [50.0]), contender("y", [10.0])])] == [True, True]


def test_differences_are_paired_by_seed() -> None:
    """Runs that move together differ beyond doubt although their intervals overlap; and the other way round."""
    low, high = contender("low", [70.0, 80.0, 90.0]), contender("high", [71.0, 81.2, 91.1])
    gap = difference(high.accuracies, low.accuracies)
    assert gap.mean == approx(1.1) and gap.n == 3 and gap.half_width == approx(4.302653 * 0.1 / 3**0.5)
    assert outcome(gap) == "beats" and outcome(difference(low.accuracies, high.accuracies)) == "loses to"
    assert outcome(difference({0: 1.0, 1: 3.0}, {0: 3.0, 1: 1.0})) == "not decided"
    assert outcome(difference({0: 9.0}, {0: 1.0})) == "not decided"  # one seed has no interval
    assert difference({0: 1.0, 1: 5.0}, {1: 2.0, 2: 7.0}).mean == 3.0


def said(target: float, contenders: list[Contender], chance: float) -> list[str]:
    return verdicts(target, contenders, duels({target: contenders}, chance), chance)


def test_ideas_meet_the_plain_methods_and_nobody_else() -> None:
    plain = contender("plain", [80.0, 80.2, 80.4], "plain")
    worse = contender("worse", [60.0, 60.2, 60.4], "plain")
    guesser = contender("guesser", [10.0, 10.2, 10.4], "plain")
    rival = contender("rival", [99.0, 99.1, 99.2], "rival")
    idea, bad = contender("idea", [85.0, 85.1, 85.5]), contender("bad", [70.0, 70.1, 70.5])
    everybody = {8.0: [worse, plain, guesser, rival, idea, bad]}
    found = {(one.one.method, one.other.method): one.outcome for one in duels(everybody, 10.0)}
    assert found == {
        ("idea", "plain"): "beats", ("bad", "plain"): "loses to", ("idea", "worse"): "beats", ("bad", "worse"): "beats",
    }  # fmt: skip
    words = said(8.0, [worse, plain, rival, bad], 10.0)
    assert len(words) == 2 and "BAD loses to PLAIN" in words[0]
    assert words[1] == (
        "At epsilon 8, against the other plain methods: 1 of 1 won (BAD against WORSE by 10.0 ± 0.2), 0 lost, "
        "0 not decided."
    )
    first, second = said(8.0, [plain, idea, bad], 10.0)
    assert first == "At epsilon 8, IDEA beats PLAIN by 5.0 ± 0.2 points (85.2 against 80.2 %)."
    assert second == "At epsilon 8, BAD loses to PLAIN by 10.0 ± 0.2 points (70.2 against 80.2 %)."
    (open_,) = said(8.0, [plain, contender("idea", [79.0, 82.0, 80.0])], 10.0)
    assert open_.startswith("At epsilon 8, IDEA against PLAIN is not decided: +0.1 ± 3.")


def test_whoever_is_behind_has_its_runs_at_smaller_epsilons_too() -> None:
    """A badly searched opponent is no win, and a badly searched idea no loss: what keeps 1 keeps 8, not the reverse."""
    good, bad = contender("plain", [80.0, 80.2, 80.4], "plain"), contender("plain", [70.0, 70.2, 70.4], "plain")
    idea, poor = contender("idea", [79.0, 79.1, 79.5]), contender("idea", [50.0, 50.1, 50.2])
    at_1, at_8 = duels({1.0: [good, idea], 8.0: [bad, idea]}, 10.0)
    assert at_1.outcome == "loses to" and at_8.outcome == "not decided"
    assert at_8.other.with_runs_at == 1.0 and at_8.p == 1.0 and at_8.difference == at_1.difference
    (words, *_) = verdicts(8.0, [bad, idea], [at_8], 10.0)
    assert "IDEA against PLAIN (with its runs at epsilon 1) is not decided: -1.0 ± " in words
    larger = duels({1.0: [bad, idea], 8.0: [good, idea]}, 10.0)
    assert [one.other.with_runs_at for one in larger] == [None, None] and larger[0].outcome == "beats"
    (_, helped) = duels({1.0: [bad, idea], 8.0: [good, poor]}, 10.0)
    assert helped.one.with_runs_at == 1.0 and helped.outcome == "loses to" and helped.difference.mean == approx(-1.0)
    assert "IDEA (with its runs at epsilon 1) loses to PLAIN by 1.0" in verdicts(8.0, [good, poor], [helped], 10.0)[0]


def test_no_win_is_due_to_runs_that_happen_to_spread_less() -> None:
    """Not told apart at its own target, told apart from its tight runs at a smaller one: that is no win."""
    tight, wide = contender("plain", [89.7, 89.75, 89.8, 89.75], "plain"), contender("plain", [90, 90, 90, 86], "plain")
    idea = contender("idea", [90.0, 90.05, 90.1, 90.05])
    assert outcome(difference(idea.accuracies, tight.accuracies)) == "beats"
    (_, at_8) = duels({1.0: [tight, idea], 8.0: [wide, idea]}, 10.0)
    assert at_8.outcome == "not decided" and at_8.p == p_value(difference(idea.accuracies, wide.accuracies))


def test_a_search_chose_badly_only_for_sure() -> None:
    tight, wide = contender("a", [89.7, 89.75, 89.8, 89.75]), contender("a", [90, 90, 90, 86])
    worse = contender("a", [80.0, 80.1, 80.0, 80.1])
    found = {1.0: [tight], 2.0: [wide], 8.0: [worse]}
    assert better_at(wide, 2.0, found) is None and better_at(tight, 1.0, found) is None
    assert better_at(worse, 8.0, found) == 1.0 and better_at(worse, 0.5, found) is None
    assert better_at(contender("b", [1.0, 2.0, 3.0, 4.0]), 8.0, found) is None


def test_of_equal_methods_few_are_ever_told_apart() -> None:
    """Five targets, eight seeds, everybody alike: any verdict at all in one board of twenty."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        board = {
            float(target): [contender(name, list(rng.normal(50.0, 1.0, 8)), idea) for name, idea in
                            (("plain", "plain"), ("other", "plain"), ("idea", "paper"))]
            for target in range(1, 6)
        }  # fmt: skip
        wrong += any(one.outcome != "not decided" for one in duels(board, 10.0))
    assert wrong <= 0.07 * 400


def test_the_best_is_held_against_what_clients_have_by_themselves() -> None:
    alone = {0: 90.0, 1: 91.0, 2: 92.0}
    low, high = contender("low", [80.0, 81.1, 82.2]), contender("high", [91.0, 92.1, 93.3])
    said = against_alone(8.0, [low], alone)
    assert said.startswith("At epsilon 8, the best, LOW, is worse by 9.9 ± 0.2 points than what every client has ")
    assert "is better by 1.1 ± " in against_alone(8.0, [low, high], alone)
    assert "is not told apart" in against_alone(8.0, [contender("same", [92.0, 90.0, 91.2])], alone)
    assert "91.0 % by itself" in against_alone(1.0, [], alone)
    assert "no seed of the best, LOW," in against_alone(1.0, [low], {7: 90.0})


def test_a_boards_duels_are_decided_together() -> None:
    """p = 0.03 decides one duel; of two at p = 0.03 none, and the page says why."""
    plain = contender("plain", [80.0] * 4, "plain")
    near = contender("near", [80.6, 81.4, 81.0, 80.4])
    (one,) = duels({8.0: [plain, near]}, 10.0)
    assert one.p == one.adjusted == p_value(difference(near.accuracies, plain.accuracies)) and one.outcome == "beats"
    both = duels({1.0: [plain, near], 8.0: [plain, near]}, 10.0)
    assert [duel.adjusted for duel in both] == [approx(2 * (one.p or 0))] * 2
    assert {duel.outcome for duel in both} == {"not decided"}
    words = verdicts(8.0, [plain, near], both, 10.0)
    assert words == [
        "At epsilon 8, NEAR against PLAIN is not decided: +0.9 ± 0.7 points "
        f"(80.8 against 80.0 %; p = {both[0].adjusted:.2g} among all duels of the board)."
    ]


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == [approx(0.03), approx(0.06), approx(0.06)]
    assert holm([0.5, None, 0.001]) == [1.0, None, approx(0.003)] and holm([]) == []
    from scipy import stats

    values = [0.3, 0.1, 0.7, -0.2, 0.5]
    paired = difference(dict(enumerate(values)), dict.fromkeys(range(5), 0.0))
    assert p_value(paired) == approx(stats.ttest_1samp(values, 0).pvalue)
    assert p_value(difference({0: 1.0}, {0: 0.0})) is None
    assert p_value(difference({0: 1.0, 1: 1.0}, {0: 0.0, 1: 0.0})) == 0.0


def test_a_board_without_learning_or_without_sides_says_so() -> None:
    guess, plain = contender("guess", [11.0, 12.0]), contender("plain", [80.0, 81.0], "plain")
    (words,) = said(1.0, [guess], 10.0)
    assert words == "At epsilon 1 nothing learns: the best, GUESS, has 11.5 %, and guessing 10.0 %."
    assert "no paper's idea is ranked" in said(1.0, [plain], 10.0)[0]
    assert "no plain method" in said(1.0, [contender("idea", [80.0, 81.0])], 10.0)[0]
    assert said(1.0, [], 10.0) == ["At epsilon 1 no method can be calibrated, or all guess."]
    assert ranking.nothing_learns([plain], 10.0) is False
