"""The search over ranges: its points, its edges, and its widening."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from made_up import FEDAVG, METHODS, SEED, written
from pytest import approx
from scipy.stats import qmc

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS as KNOWN
from fedpriv.studies import boards
from fedpriv.studies.boards import BoardPlan, Range, Search, _shares, begin, drawn, points, read_boards
from fedpriv.studies.jobs import Job
from fedpriv.studies.leaderboard import Key, Prepared, _searched
from fedpriv.studies.papers import read
from fedpriv.studies.results import RunRecord

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


def box_counts(found: list[list[float]], levels: Sequence[int]) -> list[int]:
    """How many points each box with sides 2^-level holds, sorted: what scrambling keeps."""
    boxes = Counter(tuple(int(x * 2**k) for x, k in zip(point, levels, strict=True)) for point in found)
    return sorted(boxes.values())


@pytest.mark.parametrize("seed", [1000, 7])
def test_an_own_option_moves_no_shared_point_and_all_are_one_sobol_sequence(seed: int) -> None:
    """Of every shape, the boxes hold as many points as those of the sequence without scrambling."""
    whole = {f"o{place}": Range(low=1.0, high=2.0**30, own=place in (1, 3)) for place in range(5)}
    shared = {option: one for option, one in whole.items() if not one.own}
    for count in (8, 12, 16):
        found, alone = _shares(whole, count, seed), _shares(shared, count, seed)
        assert [[x for x, one in zip(p, whole.values(), strict=True) if not one.own] for p in found] == alone
    found = [[point[place] for place in (0, 2, 4, 1, 3)] for point in _shares(whole, 16, seed)]
    plain = qmc.Sobol(5, scramble=False).random_base2(4).tolist()
    shapes = [levels for levels in product(range(5), repeat=5) if 0 < sum(levels) <= 5]
    assert len(shapes) == 246 and max(map(len, (box_counts(plain, levels) for levels in shapes))) == 16
    for levels in shapes:
        assert box_counts(found, levels) == box_counts(plain, levels), levels


def test_entries_of_a_board_share_the_points_of_shared_options() -> None:
    """By where a value stands on its range, for ranges differ by the scale of a method's own quantities."""
    for board in read_boards("all").values():
        places: dict[int, list[list[float]]] = {}
        for method in (*board.lines, *board.methods):
            space = {**board.search, **method.search}
            shared = [option for option, one in space.items() if not one.own]
            tuned = begin(space, board.tuning.trials + board.tuning.further, board.tuning.seed)
            values = [{o: float(v) for o, _, v in (t.partition("=") for t in trial)} for trial in tuned.trials]
            found = [
                [math.log(one[o] / space[o].low) / math.log(space[o].high / space[o].low) for o in shared]
                for one in values
            ]
            assert len(found) == 12
            np.testing.assert_allclose(found, places.setdefault(len(shared), found), atol=0.005, err_msg=method.name)


@pytest.mark.parametrize(
    ("value", "side"), [(0.01, "low"), (0.0158, "low"), (0.016, None), (0.6, None), (0.64, "high"), (1.0, "high")]
)
def test_the_outermost_tenth_is_an_edge(value: float, side: str | None) -> None:
    assert SPACE["local.lr"].side(value) == side
    assert Range(low=0.01, high=1.0, least=0.01, most=1.0).side(value) is None


def test_integers_and_factors_near_one_have_ranges_of_their_own() -> None:
    levels = Range(low=1, high=16, least=1, most=16, whole=True)
    assert [levels.at(share) for share in (0.0, 0.5, 0.9, 1.0)] == [1, 4, 12, 16]
    assert levels.side(1.0) is None and levels.side(16.0) is None and levels.in_words() == "1 to 16, integers"
    grown = Range(low=3, high=10, whole=True, least=1, most=30).grown("low", 4.0).grown("high", 4.0)
    assert (grown.low, grown.high) == (1, 30)
    assert Range(low=5, high=10, whole=True).beyond("low", 4.0).low == 1  # 1.25
    factor = Range(low=0.36, high=0.99, near_one=True)
    assert [factor.at(share) for share in (0.0, 0.5, 1.0)] == [0.36, 0.92, 0.99]  # 0.64, 0.08, 0.01 below 1
    assert factor.side(0.36) is None and factor.side(0.99) is None and "distance to 1" in factor.in_words()
    for wrong in ({"near_one": True}, {"whole": True, "low": 0.5}, {"whole": True, "near_one": True, "high": 0.9}):
        with pytest.raises(ValueError, match="allowed"):
            Range(**({"low": 0.1, "high": 1.0} | wrong))


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


def test_who_guesses_widens_nobodys_search(tmp_path: Path) -> None:
    """Of two entries whose best stands at an edge, one guesses."""
    plan = read(written(tmp_path, alone=None, methods=[METHODS["fedldp"]]), BoardPlan, "board")
    key = Key(Prepared("tiny", plan, ("dataset=digits",), classes=10), plan.methods[0], 2000.0)

    def stages(accuracy: float) -> list[str]:
        asked: list[str] = []

        def do(stage: str, jobs: Sequence[Job]) -> dict[Job, RunRecord]:
            asked.append(stage)
            rates = [float(next(o for o in job.options if "local.lr" in o).partition("=")[2]) for job in jobs]
            return {job: ran(job, accuracy + rate / 1000) for job, rate in zip(jobs, rates, strict=True)}

        _searched([key], do)
        return asked

    assert stages(0.5) == ["tune", "tune, wider (1)"] and stages(0.1) == ["tune"]


def ran(job: Job, accuracy: float) -> RunRecord:
    summary = {"accuracy": {"final": accuracy}}
    return RunRecord(name=job.name, kind="train", options=(), seed=job.seed, command="", summary=summary)


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
        read(path, BoardPlan, "board")
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_the_literal_scale_replaces_what_it_names(tmp_path: Path) -> None:
    literal = {"plan": ["num_rounds=50"], "seeds": [0, 1, 2], "words": "Longer."}
    written(tmp_path, literal=literal)
    small, long = (read_boards("tiny", tmp_path, scale)["tiny"] for scale in ("small", "literal"))
    assert small.plan[-1] != "num_rounds=50" and long.plan[-1] == "num_rounds=50"
    assert (long.words, long.seeds, long.targets) == ("Longer.", (0, 1, 2), (20.0, 2000.0))
    written(tmp_path, literal={"seeds": [SEED]})
    with pytest.raises(OptionError, match=r"at scale=literal: tuning\.seed: 10"):
        read_boards("tiny", tmp_path, "literal")


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
ALONE = {
    f"strategy.{option}"
    for own in (*OWN.values(), ("client.bandwidth", "client.sharpness", "client.directions"))
    for option in own
}


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
    plan = read(
        written(tmp_path, methods=[METHODS["fedldp"], METHODS["fedcad"] | {"targets": [2000.0]}]), BoardPlan, "board"
    )
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


def test_every_method_with_privacy_is_on_a_board() -> None:
    named = {
        override.partition("=")[2]
        for board in read_boards("all").values()
        for method in board.methods
        for override in method.overrides
        if override.startswith("strategy=")
    }
    noisy = {name for name, schema in KNOWN.items() if {"noise_multiplier", "epsilon"} & set(schema.model_fields)}
    assert noisy - {"ask", "moments"} <= named and len(noisy) > 10  # these train nothing
