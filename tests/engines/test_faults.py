"""What goes wrong in a round, by plan: in every strategy the run goes on, and the ledger holds what left."""

from __future__ import annotations

import itertools
import re
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from conftest import ledger_of, rows_of
from safetensors.torch import load_file

import fedpriv.server.strategy as server_module
from fedpriv.client.build import client_class
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FIRST_NODE, Refused, Request, label, pack_vector
from fedpriv.common.replies import Reply, train_content
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.config.schema import Config, FaultKind, FaultPlan
from fedpriv.engines.faults import drawn, planned
from fedpriv.engines.grid import LocalGrid
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, make_apps
from fedpriv.privacy.events import EVERY_CLIENT
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import schedule
from fedpriv.runs.session import Session
from fedpriv.runs.start import start_run
from fedpriv.training.sequential import SequentialTrainer

CLIENTS, ROUNDS = 8, 3
TINY = (
    f"num_clients={CLIENTS}",
    f"clients_per_round={CLIENTS}",
    f"num_rounds={ROUNDS}",
    "dataset.train_examples=160",
    "engine=inprocess",
    "engine.trainer=sequential",
    "evaluate.every=0",
    "checkpoint.every=0",
)
#: Of its 24 participations 7 go wrong, in each of the three ways.
DROPPING = ("seed=5", "engine.faults={rate: 0.3, kinds: [drop_before, raise, drop]}")
#: The exchanges of a round in which something is booked.
#: Their trusted server books each round itself, for every client.
SERVER_BOOKS = ("dpftrl",)
BOOKED = {"adpfl": ("statistics", "train")}


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``quick("strategy=fedavg", ...)``: a tiny run without pictures; returns its folder."""
    monkeypatch.setattr(Session, "_report", lambda self: None)
    monkeypatch.setattr("fedpriv.report.label_plot.draw_label_distribution", lambda *_: None)
    numbers = itertools.count()

    def start(*overrides: str) -> Path:
        folder = tmp_path / f"run{next(numbers)}"
        start_run(compose([*TINY, *overrides]), folder)
        return folder

    return start


def booked(folder: Path) -> dict[tuple[int, int], int]:
    """(round, client) -> entries in the ledger."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for entry in ledger_of(folder):
        found[entry["round"], entry["client"]] += 1
    return dict(found)


# --- three of ten clients drop out of every round ----------------------------------------------------------


def what_should_leave(config: Config) -> dict[tuple[int, int], tuple[tuple[str, ...], bool]]:
    """(round, client) -> (exchanges whose releases leave the client, whether the round's last reply arrives)."""
    exchanges, found = client_class(config).traits.exchanges, {}
    for number, client in itertools.product(range(1, ROUNDS + 1), range(CLIENTS)):
        kinds = {exchange: planned(config, exchanges, client, number, exchange) for exchange in exchanges}
        left: list[str] = []
        for exchange in BOOKED.get(config.strategy.name, ("train",)):
            if kinds[exchange] in (None, "drop"):
                left.append(exchange)
            if kinds[exchange] is not None:
                break
        else:
            found[number, client] = (tuple(left), True)
            continue
        found[number, client] = (tuple(left), False)
    return found


@pytest.mark.rotates(2)
@pytest.mark.parametrize("variant", ["repaired", "published"])
@pytest.mark.parametrize("method", METHODS)
def test_clients_that_drop_out_end_no_strategy_and_the_ledger_counts_what_left(
    method: str, variant: str, quick: Callable[..., Path]
) -> None:
    options = (f"strategy={method}", f"privacy.variant={variant}", *DROPPING)
    folder, expected = quick(*options), what_should_leave(compose([*TINY, *options]))
    assert {len(left) for left, _ in expected.values()} >= {0, 1} and not all(came for _, came in expected.values())
    for row in rows_of(folder):
        arrived = sum(came for (number, _), (_, came) in expected.items() if number == row["round"])
        assert (row["participants"], row["dropped"]) == (arrived, CLIENTS - arrived)
        assert row["refused"] == {} and row["late"] == 0
    found, prices = booked(folder), defaultdict(set)
    for place, (left, _) in expected.items():
        prices[left].add(found.pop(place, 0))
    assert {client for _, client in found} <= {EVERY_CLIENT}  # what a server releases itself
    assert prices.pop(()) == {0}
    if method in SERVER_BOOKS:
        assert {number for number, _ in found} == set(range(1, ROUNDS + 1)) and all(
            price == {0} for price in prices.values()
        )
        return
    assert all(len(price) == 1 and min(price) > 0 for price in prices.values())  # the same for the same exchanges
    assert all(np.isfinite(tensor.numpy()).all() for tensor in load_file(folder / "model.safetensors").values())


def test_the_plan_has_all_three_ways_of_dropping_and_its_rate() -> None:
    plan = FaultPlan(rate=0.3, kinds=("drop_before", "raise", "drop"))
    kinds = [drawn(5, plan, ("train",), client, number)[0] for number in (1, 2, 3) for client in range(CLIENTS)]
    assert {kind for kind in kinds if kind} == set(plan.kinds)
    many = [drawn(5, plan, ("train",), client, number)[0] is not None for number in range(50) for client in range(200)]
    assert 0.28 < np.mean(many) < 0.32
    assert drawn(6, plan, ("train",), 1, 1) == drawn(6, plan, ("train",), 1, 1)
    never, always = (FaultPlan(rate=rate, kinds=("drop",)) for rate in (0.0, 1.0))
    assert all(drawn(0, never, ("train",), client, 1)[0] is None for client in range(99))
    assert all(drawn(0, always, ("train",), client, 1)[0] == "drop" for client in range(99))


@pytest.mark.parametrize("options", [("strategy=fedavg", "partition=dirichlet", "partition.alpha=0.5"), ()])
def test_a_round_is_the_mean_of_what_arrived(
    options: tuple[str, ...], quick: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By examples (fedavg) and uniform (fedcad), recomputed from the replies as they came."""
    arrived: list[Reply] = []
    real = server_module.read_reply

    def recorded(*arguments: Any) -> Reply:
        arrived.append(real(*arguments))
        return arrived[-1]

    monkeypatch.setattr(server_module, "read_reply", recorded)
    folder = quick(*options, *DROPPING)
    config = compose([*TINY, *options, *DROPPING])
    theta, counts = (
        Worker(config).initial_parameters().astype(np.float64),
        [row["participants"] for row in rows_of(folder)],
    )
    assert sum(counts) == len(arrived) < ROUNDS * CLIENTS
    for count in counts:
        replies, arrived = arrived[:count], arrived[count:]
        weights = np.array([reply.num_examples if options else 1 for reply in replies], float)
        weights /= weights.sum()
        theta += sum(weight * reply.release for weight, reply in zip(weights, replies, strict=True))
    found = np.concatenate([t.numpy().ravel() for t in load_file(folder / "model.safetensors").values()])
    assert np.allclose(np.sort(found), np.sort(theta), atol=1e-5)  # tensors come by name
    assert not options or len({int(weight * 1e6) for weight in weights}) > 1


# --- every kind of fault -----------------------------------------------------------------------------------

#: kind -> (releases in round 2, participants, what the server refuses, part of the error).
KINDS: dict[str, tuple[int, bool, str | None, str | None]] = {
    "drop_before": (0, False, None, None),
    "raise": (0, False, None, "PlannedFault: engine.faults: client 1 raises in round 2"),
    "kill": (1, True, None, None),
    "disk_full": (0, False, None, "OSError: [Errno 28] No space left on device"),
    "non_finite_update": (1, True, None, None),
    "drop": (1, False, None, None),
    "slow": (1, False, None, None),
    "corrupt": (1, False, "corrupt", "cannot be decoded"),
    "oversized": (1, False, "oversized", "bytes are too long"),
    "wrong_shape": (1, False, "wrong_shape", "expected 650 values, got 649"),
    "not_finite": (1, False, "not_finite", "not finite"),
    "replayed": (0, False, "stale", None),
    "stale": (1, False, "stale", None),
    "duplicate": (1, True, "duplicate", None),
    "clock_jump": (1, True, None, None),
}


def test_each_kind_does_what_it_says(quick: Callable[..., Path]) -> None:
    assert tuple(KINDS) == get_args(FaultKind) and {kinds[2] for kinds in KINDS.values()} - {None} < set(
        get_args(Refused)
    )
    faults = ", ".join(f"{{round: 2, client: {client}, kind: {kind}}}" for client, kind in enumerate(KINDS))
    size = (f"num_clients={len(KINDS)}", f"clients_per_round={len(KINDS)}", "dataset.train_examples=225")
    folder = quick(*size, "strategy=fedldp", f"engine.faults=[{faults}]")
    before, row, after = rows_of(folder)
    assert before["participants"] == after["participants"] == len(KINDS)  # and nothing is left behind
    assert row["participants"] == sum(came for _, came, _, _ in KINDS.values())
    assert row["late"] == 1 and row["dropped"] == len(KINDS) - row["participants"]
    assert row["refused"] == {
        "corrupt": 1, "duplicate": 1, "not_finite": 1, "oversized": 1, "stale": 2, "wrong_shape": 1
    }  # fmt: skip
    found = booked(folder)
    for client, (kind, (count, _, _, words)) in enumerate(KINDS.items()):
        assert found.get((2, client), 0) == count, kind
        error = row["errors"].get(str(client))
        assert (error is None) == (words is None), (kind, error)
        assert words is None or words.replace("client 1", f"client {client}") in error
    attempts = {entry["client"]: entry["attempt"] for entry in ledger_of(folder) if entry["round"] == 2}
    assert {client for client, attempt in attempts.items() if attempt} == {list(KINDS).index("kill")}
    assert not RunFolder(folder).disturbed  # the plan, not the clock, decided who is in the round


def test_a_killed_clients_noise_is_fresh_and_a_jump_of_the_clock_changes_nothing(quick: Callable[..., Path]) -> None:
    def model(*options: str) -> bytes:
        return (quick("strategy=fedldp", *options) / "model.safetensors").read_bytes()

    undisturbed = model()
    assert model("engine.faults=[{round: 1, client: 0, kind: clock_jump}]") == undisturbed
    assert model("engine.faults=[{round: 1, client: 0, kind: duplicate}]") == undisturbed
    assert model("engine.faults=[{round: 1, client: 0, kind: kill}]") != undisturbed


@pytest.mark.rotates(3)
@pytest.mark.parametrize("method", METHODS)
def test_an_update_that_is_not_finite_is_released_like_any_other(method: str, quick: Callable[..., Path]) -> None:
    """Whether a client answers must not depend on its data."""
    folder = quick(f"strategy={method}", "num_rounds=1", "engine.faults={rate: 1, kinds: [non_finite_update]}")
    (row,) = rows_of(folder)
    assert (row["participants"], row["refused"], row["errors"]) == (CLIENTS, {}, {})
    expected = {EVERY_CLIENT} if method in SERVER_BOOKS else set(range(CLIENTS))
    assert {client for _, client in booked(folder)} >= expected
    assert all(np.isfinite(tensor.numpy()).all() for tensor in load_file(folder / "model.safetensors").values())


def test_without_noise_a_non_finite_update_is_zero(quick: Callable[..., Path]) -> None:
    folder = quick("strategy=fedavg", "num_rounds=1", "engine.faults={rate: 1, kinds: [non_finite_update]}")
    found = np.concatenate([t.numpy().ravel() for t in load_file(folder / "model.safetensors").values()])
    initial = Worker(compose([*TINY, "strategy=fedavg"])).initial_parameters()
    assert np.array_equal(np.sort(found), np.sort(initial))


def test_who_drops_out_of_one_exchange_stays_away_from_the_later_ones() -> None:
    exchanges = ("keys", "seeds", "train")
    config = compose([*TINY, "strategy=coqfl", "engine.faults={rate: 1, kinds: [drop]}"])
    places = set()
    for client in range(60):
        kinds = [planned(config, exchanges, client, 1, exchange) for exchange in exchanges]
        places.add(kinds.index("drop"))
        assert kinds == [None] * kinds.index("drop") + ["drop"] + ["drop_before"] * (2 - kinds.index("drop"))
    assert places == {0, 1, 2}


def test_vectorised_clients_have_the_same_faults(quick: Callable[..., Path]) -> None:
    everything = f"engine.faults={{rate: 0.7, kinds: [{', '.join(KINDS)}]}}"
    alone, together = (
        quick("strategy=fedldp", everything, f"engine.trainer={trainer}") for trainer in ("sequential", "vectorised")
    )
    assert ledger_of(alone) == ledger_of(together)
    for one, other in zip(rows_of(alone), rows_of(together), strict=True):
        assert all(one[key] == other[key] for key in ("participants", "dropped", "late", "refused", "errors"))
    assert any(row["refused"] for row in rows_of(alone))


# --- over-selection ----------------------------------------------------------------------------------------

OVER = ("strategy=fedldp", f"num_clients={CLIENTS}", "clients_per_round=4", "over_selection=1.5")


def test_more_are_asked_than_wanted_and_all_who_released_are_booked(quick: Callable[..., Path]) -> None:
    folder = quick(*OVER)
    for row in rows_of(folder):
        assert (row["participants"], row["late"], row["dropped"]) == (4, 2, 2)
    found = booked(folder)
    assert [sum(number == wanted for number, _ in found) for wanted in (1, 2, 3)] == [6, 6, 6]
    again = quick(*OVER)
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert not RunFolder(folder).disturbed


def test_spare_clients_take_the_place_of_those_who_drop_out(quick: Callable[..., Path]) -> None:
    folder = quick(*OVER, "seed=1", "engine.faults={rate: 0.3, kinds: [drop_before, slow]}")
    short = quick(*OVER, "seed=1", "over_selection=1.0", "engine.faults={rate: 0.3, kinds: [drop_before, slow]}")
    spared, few = ([row["participants"] for row in rows_of(run)] for run in (folder, short))
    assert sum(spared) > sum(few) and max(spared) == 4
    slow = sum(row["late"] for row in rows_of(folder))
    assert len(booked(folder)) == sum(spared) + slow > sum(spared)


def test_a_plan_counts_all_who_will_be_asked() -> None:
    assert sum(schedule(compose([*TINY, *OVER]))) == 6 * ROUNDS


@pytest.mark.parametrize("method", ["adpfl", "coqfl", "cpsgd"])
def test_over_selection_with_several_exchanges_or_a_sum(method: str, quick: Callable[..., Path]) -> None:
    folder = quick(*OVER, f"strategy={method}", "engine.faults={rate: 0.2, kinds: [drop_before, drop, stale]}")
    assert all(row["participants"] <= 4 for row in rows_of(folder))
    assert sum(row["participants"] + row["dropped"] for row in rows_of(folder)) == 6 * ROUNDS


def test_a_guarantee_that_rests_on_who_is_drawn_refuses_over_selection(
    quick: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a method of the user's own, which the schema does not know."""
    monkeypatch.setattr(server_module.FederatedStrategy, "secret_cohorts", True)
    with pytest.raises(OptionError, match=r"over_selection=1.5: the guarantee rests on who is drawn"):
        quick(*OVER)


# --- time --------------------------------------------------------------------------------------------------


def messages_for(config: Config, grid: LocalGrid, clients: range) -> list[Any]:
    content = train_content(pack_vector(Worker(config).initial_parameters()), Request(1))
    group = label(1, 0, "train")
    return [server_module.Message(content, grid.node_of_client[client], "train", group_id=group) for client in clients]


def test_in_one_process_a_slow_client_is_late_and_nobody_begins_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be interrupted; what it released is booked and does not count."""
    config, real, clock = compose([*TINY, "strategy=fedldp"]), SequentialTrainer.train, [0.0]
    trained: list[float] = []

    def slow(trainer: SequentialTrainer, *arguments: Any) -> Any:
        trained.append(clock[0])
        clock[0] += 100.0 if len(trained) == 3 else 1.0
        return real(trainer, *arguments)

    monkeypatch.setattr(SequentialTrainer, "train", slow)
    for engine in ("grid", "inprocess"):
        monkeypatch.setattr(f"fedpriv.engines.{engine}.time", SimpleNamespace(monotonic=lambda: clock[0]))
    with InProcessGrid(config, make_apps(config)[1]) as grid:
        replies = list(grid.send_and_receive(messages_for(config, grid, range(5)), timeout=50.0))
        assert [reply.metadata.src_node_id - FIRST_NODE for reply in replies] == [0, 1]
        assert trained == [0.0, 1.0, 2.0]
        assert [entry.client for entry in grid.collect_entries(range(5))] == [0, 1, 2]


def test_what_a_late_client_books_behind_the_last_round_is_in_the_ledger(
    quick: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Flower's runtime a client may still be at work when its round is closed."""
    real, calls = LocalGrid.collect_entries, itertools.count()

    def before_client_0_has_finished(grid: LocalGrid, clients: Any, *book: Any) -> Any:
        first = next(calls) == 0
        return real(grid, [client for client in clients if client or not first], *book)

    monkeypatch.setattr(LocalGrid, "collect_entries", before_client_0_has_finished)
    folder = quick("strategy=fedldp", "num_rounds=1", "engine.faults=[{round: 1, client: 0, kind: slow}]")
    assert sorted(booked(folder).items()) == [((1, client), 1) for client in range(CLIENTS)]


def test_a_run_does_not_ask_the_wall_clock(quick: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may jump; what must be measured is measured by a clock that cannot."""
    expected = quick("engine.round_timeout=100", "strategy=fedldp")
    jumps = itertools.cycle([0.0, 1e9, -1e9])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    found = quick("engine.round_timeout=100", "strategy=fedldp")
    assert (found / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    assert ledger_of(found) == ledger_of(expected)
    root = Path(server_module.__file__).parents[1]
    rooms = ("client", "common", "engines", "privacy", "runs", "server", "training")
    files = [root / "app.py", *(file for room in rooms for file in root.glob(f"{room}/*.py"))]
    wall = re.compile(r"\btime\.time\b|\bdatetime\b|from time import")
    assert [file.name for file in files if wall.search(file.read_text())] == []
