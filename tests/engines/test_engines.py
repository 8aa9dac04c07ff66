"""One contract for all engines: the same halves, the same bits, and what happens when something goes wrong."""

from __future__ import annotations

import ast
import json
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import client_fuzz
import numpy as np
import pytest
import ray
import torch
from conftest import NO_REPORT, SMALL, Outcome, Run, ledger_of, result_of, rows_of
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from rotation import together
from tripwires import armed

import fedpriv
from fedpriv.client.base import Client
from fedpriv.client.memory import ContextStore, read_memory
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.messages import ARRAYS, ATTEMPT, CONFIG, EXCHANGE, ROUND, Refusal, Request, pack_vector
from fedpriv.common.replies import read_reply, train_content
from fedpriv.config.compose import compose
from fedpriv.config.schema import FaultKind
from fedpriv.engines.flower import run_on_flower
from fedpriv.engines.grid import LocalGrid, client_of, identify_server
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.keeping import end_kept
from fedpriv.engines.ray import RayGrid
from fedpriv.engines.ray_pool import packed
from fedpriv.engines.worker import Worker, _guarded, make_apps
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.preparation import (
    RAY_STARTUP_SECONDS,
    resolve,
    resolve_engine,
    seconds_of_carrying,
    why_on_gpus,
)
from fedpriv.runs.session import Session
from fedpriv.runs.start import resume_run, start_run
from tools.floors import imported, sources, under

#: State, noise on a norm and partial cohorts: what goes wrong in transport shows in the result.
ADAPTIVE = ("num_clients=5", "clients_per_round=4", "strategy.client.obsolete_factor=0.4", "num_rounds=3")

#: What an engine must carry beside one exchange's messages: three exchanges a round, one of them with a single client
#: of each group; statistics and releases apart; layers that stay with their client; public features and their map; five
#: exchanges of a secure sum, two of them behind the release.
METHODS = {
    "coqfl": ("strategy=coqfl", "strategy.client.group_size=4", "num_rounds=2"),
    "adpfl": (
        *("strategy=adpfl", "partition=dirichlet", "strategy.server.window=2"),
        *("num_clients=3", "clients_per_round=3", "num_rounds=2"),
    ),
    "fedper": ("strategy=fedper", "partition=pathological", "num_clients=5", "clients_per_round=4"),
    "dpfedavg": (
        *("strategy=dpfedavg", "features=gradients", "features.map=strokes", "features.dims=60", "model=softmax"),
        *("local.lr=5", "num_clients=2", "clients_per_round=2", "num_rounds=1"),
    ),
    "scaffold": (  # twice as much comes down, and clients come again
        *("strategy=scaffold", "partition=dirichlet", "num_clients=4", "clients_per_round=3", "num_rounds=3"),
    ),
    "ddgauss": (
        *("strategy=ddgauss", "strategy.secure_sum=protocol", "strategy.client.noise_multiplier=1", "model=softmax"),
        *("local.batch_size=16", "num_clients=3", "clients_per_round=3", "num_rounds=2"),
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inprocess") / "run"
    start_run(compose([*SMALL, *ADAPTIVE, NO_REPORT]), folder)
    return folder


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The result of one of `METHODS` in this process; every engine is compared with the same run."""

    @cache
    def result(method: str) -> Any:
        folder = tmp_path_factory.mktemp("here") / "run"
        start_run(compose([*SMALL, NO_REPORT, *METHODS[method]]), folder)
        return result_of(folder)

    return result


# --- the same bits ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ray_with_two_workers_gives_the_same_run(run: Run, whole: Path):
    folder = run(*ADAPTIVE, "engine=ray", "engine.workers=2")
    assert result_of(folder) == result_of(whole)


@pytest.mark.rotates(2)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_methods_that_keep_or_exchange_more_give_the_same_run_on_ray(method: str, run: Run, here: Callable[[str], Any]):
    assert result_of(run(*METHODS[method], "engine=ray", "engine.workers=2")) == here(method)


@pytest.fixture
def interrupted(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A run on an engine that ended in round 2; returns its folder."""

    def start(*engine: str) -> Path:
        folder, real = tmp_path / "run", Session._end_round

        def fail(self: Session, current: Any) -> None:
            if current.number == 2:
                raise RunFailed("planned")
            real(self, current)

        with monkeypatch.context() as patch, pytest.raises(RunFailed, match="planned"):
            patch.setattr(Session, "_end_round", fail)
            run(*ADAPTIVE, *engine, "checkpoint.every=1", folder=folder)
        return folder

    return start


@pytest.mark.slow
def test_what_a_ray_worker_hands_back_unbegun_is_done_all_the_same(run: Run, monkeypatch: pytest.MonkeyPatch):
    """A turn of no length: of every batch one message is answered, the others wait for the next call."""
    sizes, submit = [], RayGrid._submit

    def watched(grid: RayGrid, actor: Any, batch: list[Any], shared: dict[int, Any]) -> Any:
        sizes.append(len(batch))
        return submit(grid, actor, batch, shared)

    monkeypatch.setattr(RayGrid, "_submit", watched)
    monkeypatch.setattr("fedpriv.engines.ray.TURN", 0.0)
    many = ("num_clients=12", "clients_per_round=12", "num_rounds=2", "engine.trainer=sequential")
    folder = run(*many, "engine=ray", "engine.workers=1")
    assert max(sizes) == 6 and len(sizes) == 24  # batches of several messages, one answer to each call
    assert result_of(folder)["model"] == result_of(run(*many))["model"]


@pytest.mark.slow
def test_ray_workers_each_train_their_share_of_a_cohort_at_once(run: Run, monkeypatch: pytest.MonkeyPatch):
    """Half of the cohort each, in every round, so that a repetition is the same to the bit."""
    sizes, submit = [], RayGrid._submit

    def watched(grid: RayGrid, actor: Any, batch: list[Any], shared: dict[int, Any]) -> Any:
        sizes.append([client_of(errand.message) for errand in batch])
        return submit(grid, actor, batch, shared)

    monkeypatch.setattr(RayGrid, "_submit", watched)
    faults = "engine.faults=[{round: 2, client: 1, kind: raise}, {round: 2, client: 9, kind: drop}]"
    many = ("num_clients=12", "clients_per_round=12", "num_rounds=2", "engine.trainer=vectorised", faults)
    on_ray = ("engine=ray", "engine.workers=2")
    folders = [run(*many, *on_ray), run(*many, *on_ray)]
    assert sizes == 4 * [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert result_of(folders[0]) == result_of(folders[1])
    assert result_of(run(*many)) == result_of(folders[0])


@pytest.mark.slow
def test_a_round_on_ray_is_one_message_to_each_worker(run: Run, monkeypatch: pytest.MonkeyPatch):
    """The global model in it: nothing goes through the object store. Small arrays and messages are its whole price."""
    batches, submit, stored = list[tuple[int, int]](), RayGrid._submit, list[Any]()

    def watched(grid: RayGrid, actor: Any, batch: list[Any], shared: dict[int, Any]) -> Any:
        batches.append((len(batch), batch[0].size))
        return submit(grid, actor, batch, shared)

    monkeypatch.setattr(RayGrid, "_submit", watched)
    monkeypatch.setattr(ray, "put", stored.append)
    many = ("num_clients=12", "clients_per_round=11", "num_rounds=3", "engine.trainer=vectorised")
    folder = run(*many, "engine=ray", "engine.workers=2")
    assert sorted(batches) == 3 * [(1, 5)] + 3 * [(1, 6)] and not stored
    assert result_of(folder) == result_of(run(*many))


def test_what_travels_is_packed_bit_for_bit() -> None:
    tensors = [
        torch.tensor(-0.0, dtype=torch.float64),
        torch.tensor(2**53 + 1),
        torch.tensor(True),
        torch.arange(7, dtype=torch.float32)[::2],
        torch.zeros(0),
        torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.float64),
        torch.arange(6).reshape(2, 3).T,
    ]
    for before, after in zip(tensors, pickle.loads(packed(tensors)), strict=True):
        assert before.dtype == after.dtype and before.shape == after.shape
        assert before.numpy().tobytes() == after.numpy().tobytes()
        after.fill_(1)  # nobody else's memory, and not read-only


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedcad", "dpsgd"])
def test_any_number_of_workers_gives_the_bits_of_one_process(strategy: str, run: Run):
    """At once and one by one, also where a run of one worker goes on in this process."""
    many = (f"strategy={strategy}", "num_clients=12", "clients_per_round=11", "num_rounds=2")
    many += ("engine.trainer=vectorised", "partition=dirichlet", "local.batch_size=6")
    results = [result_of(run(*many, "engine=ray", f"engine.workers={workers}")) for workers in (1, 2)]
    assert results[0] == results[1] == result_of(run(*many))


RAY = ("engine=ray", "engine.workers=1")


@pytest.mark.parametrize(("first", "then"), [(RAY, ("engine=inprocess",)), ((), RAY)], ids=["from Ray", "to Ray"])
def test_an_interrupted_run_moves_to_another_engine(
    first: tuple[str, ...], then: tuple[str, ...], interrupted: Callable[..., Path], whole: Path
):
    folder = interrupted(*first)
    resume_run(folder, then)
    names = [options[0].removeprefix("engine=") if options else "inprocess" for options in (then, first)]
    found, expected = result_of(folder), result_of(whole)
    assert found["summary"].pop("note") == "resumed on engine={}, after {}".format(*names)
    assert expected["summary"].pop("note") is None and found == expected


@pytest.mark.parametrize("option", ["engine=flower", "engine=auto", "engine.trainer=vectorised", "engine.device=cuda"])
def test_nothing_else_of_the_engine_changes(option: str, interrupted: Callable[..., Path], cli: Callable[..., Outcome]):
    folder = interrupted()
    outcome = cli(f"resume={folder}", option)
    assert outcome.code == 2 and option.split("=")[0] in outcome.err and "Traceback" not in outcome.err


def test_the_bits_depend_on_the_seed_and_on_state(run: Run, whole: Path):
    """What the comparisons above would not notice if everything were constant."""
    assert result_of(run(*ADAPTIVE, "seed=1"))["model"] != result_of(whole)["model"]
    assert result_of(run(*ADAPTIVE, "strategy.client.obsolete_factor=0.3"))["model"] != result_of(whole)["model"]


# --- clients that fail -----------------------------------------------------------------------------------


def rounds_in_ledger(folder: Path, client: int) -> list[int]:
    return [entry["round"] for entry in ledger_of(folder) if entry["client"] == client]


def test_a_client_that_raises_is_one_error_reply(run: Run):
    folder = run("engine.faults=[{round:2,client:1,kind:raise}]")
    assert [row["participants"] for row in rows_of(folder)] == [4, 3, 4]
    assert [row["dropped"] for row in rows_of(folder)] == [0, 1, 0]
    assert "client 1 raises in round 2" in rows_of(folder)[1]["errors"]["1"]
    assert rounds_in_ledger(folder, 1) == [1, 3]  # it released nothing


def test_a_reply_that_is_lost_is_spent_all_the_same(run: Run):
    folder = run("engine.faults=[{round:2,client:1,kind:drop}]")
    assert [row["participants"] for row in rows_of(folder)] == [4, 3, 4]
    assert rounds_in_ledger(folder, 1) == [1, 2, 3]
    assert rows_of(folder)[1]["errors"] == {}


def test_too_few_replies_name_the_clients_and_their_errors(run: Run, tmp_path: Path):
    faults = "{round:2,client:0,kind:raise},{round:2,client:3,kind:drop}"
    with pytest.raises(RunFailed) as caught:
        run("strategy.server.min_replies=3", f"engine.faults=[{faults}]", folder=tmp_path / "run")
    message = str(caught.value)
    assert "round 2: 2 usable replies of 4, strategy.server.min_replies=3" in message
    assert "client 0: PlannedFault: " in message and "client 3: no reply" in message and "\n" not in message
    assert rounds_in_ledger(tmp_path / "run", 3) == [1, 2]  # what left before the failure is in the ledger
    assert [row["round"] for row in rows_of(tmp_path / "run")] == [1]


def test_outside_simulation_no_text_leaves_a_client(monkeypatch: pytest.MonkeyPatch):
    config, batches = compose([*SMALL, "privacy.rng=secure"]), Client.batches_of

    def fails(client: Client, *arguments: Any) -> Any:
        if client.site is not None and client.site.client == 0:
            raise ValueError("client 0 holds a picture that is all black")
        return batches(client, *arguments)

    monkeypatch.setattr(Client, "batches_of", fails)
    with InProcessGrid(config, make_apps(config)[1]) as grid:
        (reply,) = grid.send_and_receive([train_message(config, grid, 0)])
        assert reply.error == Error(code=int(Refusal.FAILED), reason="failed")
        (reply,) = grid.send_and_receive([train_message(config, grid, 1)])
        assert set(reply.content) == {"arrays", "metrics"}  # no diagnostics


def train_message(config: Any, grid: LocalGrid, client: int, server_round: int = 1) -> Message:
    theta = Worker(config).initial_parameters()
    content = train_content(pack_vector(theta), Request(server_round))
    return Message(content, grid.node_of_client[client], "train", group_id=str(server_round))


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_client_retried_with_fresh_noise():
    config = compose([*SMALL, *ADAPTIVE, "engine=ray", "engine.workers=1"])
    config, _, _ = resolve(config, None)
    with RayGrid(config) as grid:
        messages = [train_message(config, grid, client) for client in range(3)]
        (pid,) = grid.worker_pids()
        os.kill(pid, signal.SIGKILL)
        replies = {client_of_reply(reply): reply for reply in grid.send_and_receive(messages)}
        assert set(replies) == {0, 1, 2} and all(reply.has_content() for reply in replies.values())
        entries = {entry.client: entry for entry in grid.collect_entries(range(3))}
        attempts = {client: entry.attempt for client, entry in entries.items()}
        assert sorted(attempts.values()) == [0, 0, 1]
        assert len(grid.pids) == 2 and grid.worker_pids()[-1] != pid
    (retried,) = [client for client, attempt in attempts.items() if attempt]
    with InProcessGrid(config, make_apps(config)[1]) as grid:
        (undisturbed,) = grid.send_and_receive([train_message(config, grid, retried)])
    size = Worker(config).initial_parameters().size
    releases = [read_reply(reply, retried, size, 1).release for reply in (undisturbed, replies[retried])]
    assert not np.allclose(*releases)  # another attempt, other noise


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_one_error_reply(monkeypatch: pytest.MonkeyPatch):
    config = compose([*SMALL, "engine=ray", "engine.workers=1"])
    config, _, _ = resolve(config, None)
    with RayGrid(config) as grid:
        real = grid.pool.new_actor

        def dead_on_arrival() -> Any:
            actor = real()
            ray.kill(actor)
            return actor

        monkeypatch.setattr(grid.pool, "new_actor", dead_on_arrival)
        ray.kill(next(iter(grid.joining.values())))
        replies = list(grid.send_and_receive([train_message(config, grid, 0)]))
        assert [reply.error.code for reply in replies] == [Refusal.WORKER_LOST]
        assert not grid.collect_entries([0])


# --- planned faults are the same everywhere ----------------------------------------------------------------

PLANNED = [kind for kind in get_args(FaultKind) if kind != "kill"]


@pytest.mark.slow
def test_ray_has_the_same_faults(run: Run):
    """All but `kill`: there the clients of the dead worker's batch are asked again as well."""
    drawn = f"engine.faults={{rate: 0.8, kinds: [{', '.join(PLANNED)}]}}"
    here = run(*ADAPTIVE, drawn)
    assert {kind for row in rows_of(here) for kind in row["refused"]} >= {"duplicate", "stale"}
    there = run(*ADAPTIVE, drawn, "engine=ray", "engine.workers=1")
    assert result_of(there) == result_of(here)


@pytest.mark.slow
def test_a_client_killed_on_ray_is_asked_again_as_a_simulated_one_is(run: Run):
    killed = ("clients_per_round=1", "num_rounds=1", "engine.faults={rate: 1, kinds: [kill]}")
    here, there = run(*killed), run(*killed, "engine=ray", "engine.workers=1")
    assert result_of(there) == result_of(here) and [entry["attempt"] for entry in ledger_of(there)] == [1]
    assert RunFolder(there).disturbed and not RunFolder(here).disturbed


@pytest.mark.slow
def test_on_ray_slow_clients_cost_no_more_than_the_deadline():
    slow = ("local.epochs=1000000", "engine.workers=1", "engine.trainer=sequential")
    config, _, _ = resolve(compose([*SMALL, "engine=ray", *slow]), None)
    with RayGrid(config) as grid:
        while grid.joining:
            grid._join(next(iter(grid.joining)))
        messages = [train_message(config, grid, client) for client in range(4)]
        began = time.monotonic()
        assert list(grid.send_and_receive(messages, timeout=1.0)) == []
        assert 1.0 <= time.monotonic() - began < 200.0  # a million epochs would take hours
        assert not grid.collect_entries(range(4))  # they were stopped: nothing left them


def client_of_reply(reply: Message) -> int:
    return int(reply.metadata.src_node_id) - 2


@pytest.mark.slow
def test_a_resumed_cohort_at_once_repeats_its_rounds_to_the_bit(interrupted: Callable[..., Path], run: Run):
    vectorised = ("engine=ray", "engine.workers=1", "engine.trainer=vectorised")
    folder = interrupted(*vectorised)
    resume_run(folder)
    assert {entry["attempt"] for entry in ledger_of(folder)} == {0}
    assert result_of(folder) == result_of(run(*ADAPTIVE, "engine.trainer=vectorised"))


# --- the grid itself -------------------------------------------------------------------------------------


def test_flower_still_keeps_what_our_grid_fills_in():
    """Message ids, run id and source node live in private fields of flwr 1.41; this watches them."""
    config = compose([*SMALL])
    with InProcessGrid(config, make_apps(config)[1]) as grid:
        assert TaskIdentity.run_id == 1
        message = train_message(config, grid, 2)
        (reply,) = grid.send_and_receive([message])
    assert client_of(message) == 2 and client_of_reply(reply) == 2
    assert message.metadata.message_id and reply.metadata.reply_to_message_id == message.metadata.message_id
    assert message.metadata.run_id == reply.metadata.run_id == 1
    with pytest.raises(KeyError):
        grid.node_of_client[4]


def test_memories_survive_a_checkpoint_and_stay_with_their_client():
    config = compose([*SMALL, "strategy.client.obsolete_factor=0.4"])
    app = make_apps(config)[1]
    with InProcessGrid(config, app) as grid:
        list(grid.send_and_receive([train_message(config, grid, client) for client in (0, 2)]))
        entries, memories = grid.collect_entries(range(4)), grid.memories()
        assert [entry.client for entry in entries] == [0, 2] and set(memories) == {0, 2}
        assert grid.collect_entries(range(4)) == []  # taken once
        with InProcessGrid(config, app) as other:
            other.restore(memories)
            assert other.memories() == memories
            state = read_memory(ContextStore(other.context_of(2))).state
            assert state is not None and state["x"].shape == (650,)
            replies = [
                next(iter(g.send_and_receive([train_message(config, g, 2, server_round=2)]))) for g in (grid, other)
            ]
    first, second = (read_reply(reply, 2, 650, 1).release for reply in replies)
    assert np.array_equal(first, second)


# --- Flower's own runtime and clusters: last, because the Ray of the tests above ends for them -----------


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.0), ("cuda", 0.25)])
def test_flowers_workers_see_the_gpu_that_their_clients_were_promised(
    device: str, share: float, monkeypatch: pytest.MonkeyPatch
):
    """Ray hides all GPUs from an actor that asks for none."""
    asked: list[Any] = []
    monkeypatch.setattr("flwr.simulation.run_simulation", lambda *_, backend_config: asked.append(backend_config))
    config = compose([*SMALL, "engine.gpus_per_worker=0.25"])
    run_on_flower(config.model_copy(update={"engine": config.engine.model_copy(update={"device": device})}), print)
    assert asked[0]["client_resources"]["num_gpus"] == share


@pytest.mark.slow
def test_runs_that_follow_one_another_have_the_same_workers():
    config, _, _ = resolve(compose([*SMALL, "engine=ray", "engine.workers=1"]), None)
    pids = []
    for _ in range(2):
        with RayGrid(config) as grid:
            pids += grid.worker_pids()
    assert len(pids) == 2 and pids[0] == pids[1]
    end_kept()
    assert not ray.is_initialized()


@pytest.mark.slow
def test_nobody_else_runs_code_in_a_runs_ray(monkeypatch: pytest.MonkeyPatch):
    """Its processes listen on all addresses of the machine."""
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "ANOTHER")  # here, and not in the worker
    config, _, _ = resolve(compose([*SMALL, "engine=ray", "engine.workers=1"]), None)
    told: list[None] = []
    code = "import sys; from ray._raylet import GcsClient; print(GcsClient(address=sys.argv[1]).cluster_id)"
    with RayGrid(config, lambda: told.append(None)) as grid:
        list(grid.send_and_receive([train_message(config, grid, 0)]))
        command = [sys.executable, "-c", code, ray.get_runtime_context().gcs_address]
        stranger = subprocess.run(command, capture_output=True, text=True)
    assert stranger.returncode == 1 and "AuthenticationError" in stranger.stderr
    assert told == [None], "rounds cannot be repeated bit for bit"
    end_kept()


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_one_line(run: Run):
    with pytest.raises((OptionError, RunFailed)) as caught:
        run("engine=ray", "engine.address=127.0.0.1:1")
    assert "127.0.0.1:1" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.rotates(2, together(0))
@pytest.mark.slow
def test_three_exchanges_a_round_give_the_same_run_on_two_of_flowers_workers(run: Run, here: Callable[[str], Any]):
    """On a Ray that Flower starts and ends."""
    assert result_of(run(*METHODS["coqfl"], "engine=flower", "engine.workers=2")) == here("coqfl")


@pytest.fixture(scope="module")
def flowers_ray() -> Iterator[None]:
    """Flower's runtime joins the Ray of its process where there is one: the runs below, whose start takes longer than
    they do, share this one, with one worker.
    """
    end_kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(part for part in sys.path if part))
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "shutdown", lambda: None)
        yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("flowers_ray")
def test_a_ray_that_somebody_else_started_is_used_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also by a run after which none is expected in this process, such as one that `fedpriv.run` has made."""
    asked: list[None] = []
    monkeypatch.setattr(ray, "shutdown", lambda: asked.append(None))
    node = ray.get_runtime_context().get_node_id()
    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.engines.keeping._depth", [])
        found = fedpriv.run([*SMALL, NO_REPORT, "engine=ray", "engine.workers=1"], folder=tmp_path / "r", quiet=True)
    assert found.config.engine.name == "ray" and not asked and ray.get_runtime_context().get_node_id() == node
    alone = fedpriv.run([*SMALL, NO_REPORT], folder=tmp_path / "alone", quiet=True)
    assert result_of(found.folder)["model"] == result_of(alone.folder)["model"]


@pytest.mark.rotates(2, together(1))
@pytest.mark.slow
@pytest.mark.usefixtures("flowers_ray")
def test_flower_gives_the_same_run_also_after_an_interruption(interrupted: Callable[..., Path], whole: Path):
    folder = interrupted("engine=flower", "engine.workers=1")
    resume_run(folder)
    assert result_of(folder) == result_of(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("flowers_ray")
@pytest.mark.rotates(4)
@pytest.mark.parametrize("method", ["fedper", "dpfedavg", "ddgauss", "scaffold"])
def test_methods_that_keep_or_exchange_more_give_the_same_run_on_flower(
    method: str, run: Run, here: Callable[[str], Any]
):
    """In one piece: what a checkpoint puts back is above, all of a client's memory at a time."""
    assert result_of(run(*METHODS[method], "engine=flower", "engine.workers=1")) == here(method)


def test_auto_does_not_ask_an_address_that_no_engine_joins(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    notes = [
        str(json.loads((run(engine) / "summary.json").read_text())["note"]) for engine in ("engine=auto", *SMALL[-1:])
    ]
    assert "engine=auto took inprocess and ignored RAY_ADDRESS=127.0.0.1:1" in notes[0] and "RAY" not in notes[1]


# --- what ``engine=auto`` takes, and what it says of that -----------------------------------------


@pytest.mark.parametrize(
    ("gpus", "seconds", "engine", "words"),
    [
        (0, 1.0, "inprocess", ""),
        (0, 10 * RAY_STARTUP_SECONDS, "ray", ""),
        (1, 10 * RAY_STARTUP_SECONDS, "inprocess", "inprocess: one GPU trains a cohort as one batch"),
        (4, 1.0, "ray", "ray: it has 4 GPUs"),
    ],
)
def test_a_gpu_decides(gpus: int, seconds: float, engine: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    config: Any = SimpleNamespace(engine=SimpleNamespace(name="auto", device="auto"), clients_per_round=8)
    assert resolve_engine(config, seconds, 8, 0.0) == engine
    assert why_on_gpus().startswith(words) and bool(why_on_gpus()) == bool(words)


def test_small_rounds_stay_in_this_process_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute of training, 0.01 s a round: workers would save less than their messages take."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = ["num_clients=100", "clients_per_round=50", "num_rounds=4000", "engine=auto"]
    config, plan = compose(small), SimpleNamespace(bytes_up=4000 * 50 * 2600, bytes_down=4000 * 50 * 2600)
    carrying = seconds_of_carrying(config, plan, 4)  # type: ignore[arg-type]
    assert carrying == pytest.approx(4000 * (0.01 + 4 * 0.003) + 200_000 * 2e-4 + 2 * 4000 * 50 * 2600 * 1e-8)
    work = 3 * RAY_STARTUP_SECONDS
    assert [resolve_engine(config, work, 4, seconds) for seconds in (0.0, carrying)] == ["ray", "inprocess"]
    assert resolve_engine(config, work + 2 * carrying, 4, carrying) == "ray"


# --- what a server sends is answered or refused as declared by every method's client half, whatever it is ---


#: `make stress` tries a hundred thousand, and as many that are found by coverage.
CASES = 100_000 if "FEDPRIV_STRESS" in os.environ else 2000


def test_requests_are_answered_or_refused() -> None:
    identify_server()
    methods, answered = client_fuzz.prepare_all(), 0
    names = {method.config.strategy.name for method in methods}
    assert names == set(client_fuzz.METHODS)
    for seed in range(CASES):
        rng = random.Random(seed)
        method = methods[seed % len(methods)]
        case = client_fuzz.content(rng, method.size)
        with armed():
            answered += client_fuzz.try_request(method, rng.randrange(6), case)
    assert CASES // 20 < answered < CASES // 2  # both happen, often


def test_a_hostile_request_costs_a_client_one_short_refusal() -> None:
    """A model of another size, an exchange that does not exist, and more options than there are."""
    identify_server()
    method = client_fuzz.prepare(("fedldp",))
    content = client_fuzz.request(pack_vector(np.zeros(method.size, np.float32)), 2, 0)
    wrong = {
        "expected 310": {ARRAYS: pack_vector(np.zeros(10**6, np.float32))},
        "has no exchange": {CONFIG: ConfigRecord({ROUND: 2, ATTEMPT: 0, EXCHANGE: "x" * 1000})},
        "at most 1024": {CONFIG: ConfigRecord({str(n): n for n in range(2000)})},
    }
    for words, records in wrong.items():
        case = RecordDict(dict(content.items()) | records)
        message = Message(case, dst_node_id=1, message_type="train")
        reply = _guarded(lambda context: method.config, message, method.context(None))
        assert reply.error.code == Refusal.FAILED and words in str(reply.error.reason)
        assert len(str(reply.error.reason)) < 200


# --- what is nowhere in the code: evaluation, pickle, loaders that run what they read. Read with ast ---


MODULES = ("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "code", "codeop")
BUILTINS = ("eval", "exec", "compile", "__import__")
#: Calls by the end of their dotted name that are safe with this argument alone.
ONLY_WITH = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}
LOADERS = (
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"),
    *("torch.jit.load", "os.system", "os.popen"),
)
#: Ray pickles whatever its processes exchange, which are one user's own; a deployment has none.
RAY_ENGINE = ("fedpriv.engines.ray", "fedpriv.engines.ray_pool")


def faults(text: str, module: str) -> Iterator[str]:
    """Forbidden imports and calls of one file."""
    modules = () if module in RAY_ENGINE else MODULES
    yield from (f"{module} imports {name}" for name in imported(text, module) if under(name, *modules))
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {word.arg: word.value for word in node.keywords}
        if called.removeprefix("builtins.") in BUILTINS or called in LOADERS:
            yield f"{module}:{node.lineno} calls {called}"
        if called in ONLY_WITH:
            name, value = ONLY_WITH[called]
            found = given.get(name)
            if not (isinstance(found, ast.Constant) and found.value is value):
                yield f"{module}:{node.lineno} calls {called} without {name}={value}"
        shell = given.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield f"{module}:{node.lineno} calls {called} with a shell"
        if any(isinstance(word, ast.Constant) and word.value is True for word in [given.get("allow_pickle")]):
            yield f"{module}:{node.lineno} calls {called} with allow_pickle"


def test_nothing_is_evaluated_and_no_loader_runs_code() -> None:
    files = sorted(sources().items())
    assert len(files) > 100
    assert [fault for module, file in files for fault in faults(file.read_text(), module)] == []


#: Modules that read messages; what of them touches files or modules must not come from one.
READERS = (
    "fedpriv.common.messages",
    "fedpriv.app",
    "fedpriv.engines.worker",
    "fedpriv.client.base",
    "fedpriv.client.one_path",
    "fedpriv.client.contract",
    "fedpriv.client.method",
    "fedpriv.client.gaussian",
    "fedpriv.client.one_bit",
    "fedpriv.common.identities",
)
FILES = ("open", "Path", "write_atomic", "mkdir", "unlink", "rmtree", "import_module", "locate", "code_at", "getattr")


def test_clients_open_no_file_and_readers_none_but_their_own_machines() -> None:
    """Of all code that sees a message, only these calls have to do with files or names of code. Their arguments: the
    node's own configuration (identity files, named by its operator) and a number in its file's name.
    """
    found = set()
    for module, file in sources().items():
        if module.startswith("clients.") or module in READERS:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in FILES:
                    found.add(f"{module}: {ast.unparse(node)}")
    assert found == {
        "fedpriv.app: Path(str(config.run_dir))",  # of the server's half, printed when a run has ended
        "fedpriv.common.identities: Path(str(path))",  # of context.node_config
        "fedpriv.client.method: getattr(self, 'clip_norm', 1.0)",
        "fedpriv.client.method: getattr(self.options, 'secret_cohorts', False)",
        "fedpriv.client.one_bit: getattr(self.options, 'epsilon', None)",
        "fedpriv.engines.worker: getattr(plain, 'clip_norm', 1.0)",
        "fedpriv.engines.worker: code_at('local.loss', config.local.loss)",  # which nothing from outside can name
    }


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    from cloudpickle import loads",
        "eval('1')",
        "builtins.exec(text)",
        "yaml.load(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.lib.format.read_array(file, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_a_fault_is_seen(text: str) -> None:
    assert list(faults(text, "fedpriv.x"))


@pytest.mark.parametrize("text", ["yaml.safe_load(text)", "torch.load(path, weights_only=True)", "re.compile('a')"])
def test_what_is_safe_is_not(text: str) -> None:
    assert not list(faults(text, "fedpriv.x"))
