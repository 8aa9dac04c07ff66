"""Ray at scale: workers on slices of GPUs, a few clients ahead, releases summed as they come, several machines."""

from __future__ import annotations

import gc
import pickle
import subprocess
import tracemalloc
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import ray_nodes
from conftest import SMALL, Run, ledger_of, result_of, rows_of
from fake_grid import SIZE, THETA, FakeGrid, build, cohort, honest, play, release_of
from flwr.app import ConfigRecord, Message
from processes import wait_until
from ray.exceptions import RayActorError
from rotation import together

from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import FloatVector, Refusal, pack_vector, refusal, reply_content
from fedpriv.common.replies import FORGOTTEN, Reply, read_reply
from fedpriv.config.compose import compose
from fedpriv.engines import agreement
from fedpriv.engines import ray as ray_engine
from fedpriv.engines.agreement import agree, facts
from fedpriv.engines.grid import client_of
from fedpriv.engines.ray import FEWEST, MOST, Errand, RayGrid, ahead, fixed_share
from fedpriv.engines.ray_pool import Pool, slots
from fedpriv.engines.worker import worker_for
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.preparation import resolve
from fedpriv.server.round import Replies
from strategies.fedavg import FedAvg

# --- where workers go ------------------------------------------------------------------------------------


def node(cpus: float, gpus: float = 0, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus} | ({"GPU": gpus} if gpus else {})}


@pytest.mark.parametrize(
    ("nodes", "threads", "gpus", "expected"),
    [
        ([node(8)], 1, 0, 8),
        ([node(3), node(3)], 2, 0, 2),  # six cores, but no worker spans two machines
        ([node(16, 2)], 1, 0.25, 8),
        ([node(16, 2)], 1, 0.4, 4),  # two to a GPU: a fifth would need pieces of both
        ([node(16, 1)], 1, 0.1, 10),  # 1 / 0.1 in floating point
        ([node(16, 1)], 1, 1 / 3, 3),
        ([node(2, 4)], 1, 0.5, 2),  # every worker needs its core as well
        ([node(8, 1), node(8, 1), node(64)], 1, 0.5, 4),  # a machine without GPUs takes none
        ([node(8, 1), node(8, 1, alive=False)], 1, 1, 1),
    ],
)
def test_a_worker_for_every_slice(nodes: list[dict[str, Any]], threads: int, gpus: float, expected: int) -> None:
    assert slots(nodes, threads, gpus) == expected


@pytest.mark.parametrize(("device", "expected"), [("auto", (4, 0.25)), ("cpu", (8, 0))])
def test_workers_take_their_slice_of_a_gpu(device: str, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def options(**wanted: Any) -> Any:
        asked.append(wanted)
        return SimpleNamespace(remote=lambda: None)

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: [node(8, 1)])
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 1.0})
    monkeypatch.setattr("fedpriv.engines.ray_pool.ClientActor", SimpleNamespace(options=options))
    engine = compose([*SMALL, f"engine.device={device}", "engine.gpus_per_worker=0.25"]).engine
    pool = Pool(engine, 100).start()
    pool.ready()
    assert (pool.workers, asked[0]["num_gpus"]) == expected and len(asked) == pool.workers
    pool._closed.set()


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("vectorised", [False, True])
def test_few_large_replies_or_many_small_ones_are_ahead(workers: int, vectorised: bool) -> None:
    assert ahead(workers, 10**9, vectorised) == workers * FEWEST
    assert ahead(workers, 1, vectorised) == workers * MOST
    assert ahead(workers, 4 * 300_000, vectorised) in range(workers * FEWEST, max(workers * FEWEST + 1, 225))


@pytest.mark.parametrize(("messages", "window", "expected"), [(12, 512, 6), (1000, 40, 10), (1, 512, 1), (0, 4, 1)])
def test_the_share_of_a_worker_is_fixed_by_public_numbers(messages: int, window: int, expected: int) -> None:
    assert fixed_share(messages, 2, window) == expected


# --- a few ahead, in order, without Ray ------------------------------------------------------------------


class Pretended:
    """Ray's part of the engine: workers that answer when the test lets them. pick: which running call ends next."""

    def __init__(self, config: Any, monkeypatch: pytest.MonkeyPatch, workers: int, pick: Callable[[int], int]) -> None:
        self.pick, self.dead, self.calls = pick, set[int](), 0
        pool = SimpleNamespace(idle=deque(), workers=workers, new_actor=object, close=lambda: None)
        monkeypatch.setattr(ray_engine, "take_pool", lambda engine, most: pool)
        monkeypatch.setattr(ray_engine, "ray", self)
        monkeypatch.setattr(RayGrid, "_configure", lambda grid, actor: pool.idle.append(actor))
        monkeypatch.setattr(RayGrid, "_submit", lambda grid, actor, batch, shared: self._submit(batch))
        self.grid = RayGrid(config)
        self.submitted: list[list[int]] = []
        self.running: dict[Any, list[Errand]] = {}

    def _submit(self, batch: list[Errand]) -> int:
        self.calls += 1
        self.running[self.calls] = batch
        self.submitted.append([errand.place for errand in batch])
        return self.calls

    def put(self, value: Any) -> Any:
        return None

    def kill(self, actor: Any) -> None:
        pass

    def wait(self, refs: list[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        return [refs[self.pick(len(refs))]], []

    def get(self, ref: int) -> bytes:
        batch = self.running.pop(ref)
        if ref in self.dead:
            raise RayActorError
        found = [
            (honest(errand.message, 0), self.grid.context_of(errand.message.metadata.dst_node_id - 2))
            for errand in batch
        ]
        return pickle.dumps(found)


def messages_for(grid: Any, clients: int, size: int) -> list[Message]:
    strategy = build(num_clients=clients, clients_per_round=clients)
    return list(strategy.configure_train(1, pack_vector(np.zeros(size, np.float32)), ConfigRecord(), grid))


@pytest.mark.parametrize("trainer", ["sequential", "vectorised"])
@pytest.mark.parametrize("newest_first", [False, True])
def test_no_more_than_the_window_is_ahead_and_replies_come_in_order(
    trainer: str, newest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever call ends first, and however slowly somebody reads."""
    config = compose([*SMALL, "num_clients=200", "clients_per_round=200", f"engine.trainer={trainer}"])
    monkeypatch.setattr(ray_engine, "AHEAD_BYTES", 12 * 4 * 1000)
    monkeypatch.setattr(ray_engine, "VECTORISED_BYTES", 12 * 4 * 1000)
    pretended = Pretended(config, monkeypatch, 2, lambda count: count - 1 if newest_first else 0)
    messages = messages_for(pretended.grid, 200, 950)  # and the other bytes of a message
    seen = []
    for reply in pretended.grid.send_and_receive(messages):
        seen.append(reply.metadata.src_node_id)
        assert sum(map(len, pretended.submitted)) <= len(seen) + 12
    assert seen == [message.metadata.dst_node_id for message in messages]
    if trainer == "vectorised":
        pieces = sorted(pretended.submitted)
        assert {len(piece) for piece in pieces[:-1]} == {len(pieces[0])} == {pretended.grid.share}
        assert [place for piece in pieces for place in piece] == list(range(200))


def test_a_lost_worker_holds_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([*SMALL, "num_clients=50", "clients_per_round=50", "engine.trainer=sequential"])
    pretended = Pretended(config, monkeypatch, 2, lambda count: count - 1)
    pretended.dead = {1, 2}
    disturbed = []
    pretended.grid.on_disturbance = lambda: disturbed.append(1)
    replies = list(pretended.grid.send_and_receive(messages_for(pretended.grid, 50, 10)))
    assert [reply.metadata.src_node_id for reply in replies] == list(range(2, 52)) and len(disturbed) == 2
    assert all(reply.has_content() for reply in replies)
    asked = Counter(place for batch in pretended.submitted for place in batch)
    assert max(asked.values()) == 2 and all(len(batch) == 1 for batch in pretended.submitted[2:4])


# --- summed as they come ---------------------------------------------------------------------------------


def exact_step(clients: Iterable[int], weights: Sequence[float]) -> FloatVector:
    """What the server computed when it had all replies: theta + sum of the weighted releases, in this order."""
    step = np.zeros(SIZE, np.float64)
    for weight, client in zip(weights, clients, strict=True):
        step += weight * release_of(client)
    return (THETA + step).astype(np.float32)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_sum_has_the_bits_of_a_sum_over_all_replies(weighting: str) -> None:
    counts = [10 + client for client in cohort()]
    weights = [0.25] * 4 if weighting == "uniform" else [count / sum(counts) for count in counts]
    assert np.array_equal(play(build(weighting=weighting), FakeGrid()), exact_step(cohort(), weights))
    assert not np.array_equal(play(build(weighting=weighting), FakeGrid()), exact_step(cohort(), weights[::-1])) or (
        weighting == "uniform"
    )


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_what_the_missing_would_have_weighed_is_divided_out(weighting: str) -> None:
    grid, lost = FakeGrid(), cohort()[1]
    grid.answer = lambda m, c: refusal(Refusal.LOST, m) if c == lost else honest(m, c)
    left = [client for client in cohort() if client != lost]
    counts = [1.0 if weighting == "uniform" else 10.0 + client for client in left]
    found = play(build(weighting=weighting), grid)
    assert np.allclose(found, exact_step(left, [count / sum(counts) for count in counts]), rtol=1e-6, atol=1e-7)


class Largest(FedAvg):
    """Needs all replies at once, as a user's own method may: the release of the largest norm."""

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        replies = list(replies)
        return theta + max(replies, key=lambda reply: float(np.linalg.norm(reply.release))).release


class ByNorm(FedAvg):
    """Weights that need the releases."""

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        norms = [float(np.linalg.norm(reply.release)) for reply in replies]
        return [norm / sum(norms) for norm in norms]


def test_a_method_may_ask_for_all_replies_at_once() -> None:
    norms = [float(np.linalg.norm(release_of(client))) for client in cohort()]
    assert np.array_equal(play(build(Largest), FakeGrid()), THETA + release_of(cohort()[int(np.argmax(norms))]))
    assert np.array_equal(play(build(ByNorm), FakeGrid()), exact_step(cohort(), [norm / sum(norms) for norm in norms]))


def test_replies_are_read_once_as_they_come_or_all_are_kept() -> None:
    def stream() -> Iterator[Reply]:
        for client in range(3):
            drawn.append(client)
            yield Reply(client, release_of(client), 1, {}, 0)

    drawn: list[int] = []
    replies = Replies(stream())
    assert replies and drawn == [0]
    for number, reply in enumerate(replies):
        assert reply.client == number and len(drawn) == number + 1 and reply.release.size == SIZE
    assert [reply.client for reply in replies] == [0, 1, 2] and len(replies) == 3
    assert all(reply.release is FORGOTTEN for reply in replies)
    for whole in (list(Replies(stream())), Replies(stream())[:], tuple(Replies(stream()))):
        assert [reply.release.size for reply in whole] == 3 * [SIZE]
    assert not Replies(iter(())) and len(Replies(iter(()))) == 0


def test_too_few_replies_end_the_run_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, strategy = FakeGrid(), build(min_replies=4)
    grid.answer = lambda m, c: refusal(Refusal.FAILED, m, "died") if c == cohort()[0] else honest(m, c)
    with pytest.raises(RunFailed, match="3 usable replies of 4"):
        play(strategy, grid)
    assert np.array_equal(strategy.current.theta, THETA)


LARGE = 300_000


class LargeGrid(FakeGrid):
    def deliver(self, messages: list[Message], deadline: float = 0.0) -> Iterable[Message]:
        for message in messages:
            yield Message(reply_content(np.full(LARGE, 0.5, np.float32), 1, None), reply_to=message)


def test_the_servers_memory_does_not_grow_with_the_cohort() -> None:
    def peak(clients: int) -> float:
        """MiB above the start, of a round's aggregation."""
        strategy, grid = build(num_clients=clients, clients_per_round=clients), LargeGrid(clients)
        messages = strategy.configure_train(1, pack_vector(np.zeros(LARGE, np.float32)), ConfigRecord(), grid)
        gc.collect()
        tracemalloc.start()
        strategy.aggregate_train(1, grid.send_and_receive(messages))
        found = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        assert len(strategy.current.replies) == clients
        return found

    few, many = peak(8), peak(64)
    assert many < few + 2 < 24  # 64 releases are 73 MiB


class Holding:
    """Counts the releases that are alive on the server at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most, self.total, self.alive = 0, 0, 0

        def watched(*arguments: Any) -> Reply:
            reply = read_reply(*arguments)
            self.alive, self.total = self.alive + 1, self.total + 1
            self.most = max(self.most, self.alive)
            weakref.finalize(reply.release, self._gone)
            return reply

        monkeypatch.setattr("fedpriv.server.strategy.read_reply", watched)

    def _gone(self) -> None:
        self.alive -= 1


#: 64 clients, some 300,000 parameters: a release is a MiB.
WIDE = ("model=mlp", "model.hidden=4096", "num_clients=64", "clients_per_round=64", "num_rounds=1")


def test_a_round_in_this_process_holds_two_releases_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    holding = Holding(monkeypatch)
    run(*WIDE, "strategy=fedldp", "engine.trainer=sequential", "evaluate.every=0")
    assert holding.total == 64 and holding.most <= 3


# --- what all machines must have in common ---------------------------------------------------------------


def test_a_machine_that_differs_is_named_with_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _, _ = resolve(compose(SMALL), None)
    here = facts(config)
    agree(config, here)
    with pytest.raises(RunFailed, match=f"a worker on .* differs from this process: torch {here['torch']}, not 1.0"):
        agree(config, here | {"torch": "1.0"})
    with pytest.raises(RunFailed, match=r"examples [0-9a-f]+, not others, clients/fedcad.py [0-9a-f]+, not other$"):
        agree(config, here | {"clients/fedcad.py": "other", "examples": "others"})
    with pytest.raises(RunFailed, match=r"process: fedpriv/gone.py missing, not abc$"):
        agree(config, here | {"fedpriv/gone.py": "abc"})
    with pytest.raises(RunFailed, match=r"process: fedpriv/client/base.py [0-9a-f]+, not there$"):
        agree(config, {name: value for name, value in here.items() if name != "fedpriv/client/base.py"})
    dataset = config.dataset.model_copy(update={"name": "mnist", "root": str(tmp_path / "nowhere")})
    with pytest.raises(RunFailed, match=r"cannot take part: .*nowhere"):
        agree(config.model_copy(update={"dataset": dataset}), here)
    dataset = worker_for(config).data.dataset
    for name in ("train", "test"):
        part = getattr(dataset, name)
        inverted = replace(dataset, **{name: replace(part, inputs=255 - np.asarray(part.inputs))})
        monkeypatch.setattr(
            agreement, "worker_for", lambda _, found=inverted: SimpleNamespace(data=SimpleNamespace(dataset=found))
        )
        with pytest.raises(RunFailed, match=r"process: examples [0-9a-f]+, not [0-9a-f]+$"):
            agree(config, here)


# --- several machines: two nodes of one ------------------------------------------------------------------


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A cluster of two nodes with a core each, as ``ray start`` makes it on two machines; its address."""
    with ray_nodes.cluster(cpus=1) as (address, head, folder):
        other = ray_nodes.start(folder, f"--address={address}", "--num-cpus=1")
        try:
            yield address, [head, other]
        finally:
            ray.shutdown()
            ray_nodes.end(other)


class Watched:
    """Which clients went to which node. lose: called with the node's number before a worker of it gets a batch."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        nodes: list[subprocess.Popen[bytes]],
        lose: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.node_of: dict[int, int] = {}  # id of an actor -> node
        self.clients: dict[int, list[int]] = {}
        plan, join, submit = RayGrid._plan, RayGrid._join, RayGrid._submit

        def joined(grid: RayGrid, configured: Any) -> None:
            actor = grid.joining[configured]
            join(grid, configured)
            pid = ray.get(configured)
            (self.node_of[id(actor)],) = [k for k, one in enumerate(nodes) if pid in ray_nodes.descendants(one.pid)]

        def submitted(grid: RayGrid, actor: Any, batch: list[Errand], shared: Any) -> Any:
            number = self.node_of[id(actor)]
            self.clients.setdefault(number, []).extend(client_of(errand.message) for errand in batch)
            lose(number)
            return submit(grid, actor, batch, shared)

        def planned(grid: RayGrid, messages: Sequence[Message]) -> None:
            plan(grid, messages)
            while grid.joining and not self.clients:  # the first exchange begins when both nodes' workers are there
                grid._join(ray.wait(list(grid.joining), timeout=120)[0][0])

        monkeypatch.setattr(RayGrid, "_plan", planned)
        monkeypatch.setattr(RayGrid, "_join", joined)
        monkeypatch.setattr(RayGrid, "_submit", submitted)


#: 24 clients, some 300,000 parameters.
SPREAD = ("num_clients=24", "clients_per_round=24", "num_rounds=3", "engine.trainer=sequential")
SPREAD = ("strategy=fedcad", "model=mlp", "model.hidden=4096", *SPREAD)


def wait_for_nodes(address: str, count: int) -> None:
    """Until the cluster has ``count`` live nodes."""
    ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="CRITICAL")
    wait_until(lambda: sum(one["Alive"] for one in ray.nodes()) >= count)
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.rotates(8, together(7))
def test_two_nodes_share_the_clients_and_give_the_same_run_also_when_one_dies(
    machines: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both nodes train, a few large releases are held at a time, and the result is that of one process. Then a node
    dies over a batch: its clients are asked again on the other one, with fresh noise, and the run says so.
    """
    address, nodes = machines
    wait_for_nodes(address, 2)
    here = run(*SPREAD)
    on_both = ("engine=ray", f"engine.address={address}", "engine.workers=2")
    with monkeypatch.context() as patch:
        holding, watched = Holding(patch), Watched(patch, nodes)
        folder = run(*SPREAD, *on_both)
    assert result_of(folder) == result_of(here)
    assert set(watched.clients) == {0, 1} and min(map(len, watched.clients.values())) > 4
    assert set(watched.clients[0]) | set(watched.clients[1]) == set(range(24))
    assert holding.total == 72 and holding.most <= 3

    batches: list[set[int]] = []

    def lose(number: int) -> None:
        """The second node, over the third batch that it gets."""
        if number == 1:
            before = {client for batch in batches for client in batch}
            batches.append(set(watched.clients[1]) - before)
            if len(batches) == 3:
                ray_nodes.end(nodes[1])

    watched = Watched(monkeypatch, nodes, lose)
    broken = run(*SPREAD, *on_both)
    assert [row["participants"] for row in rows_of(broken)] == [24, 24, 24] and len(batches) == 3
    assert RunFolder(broken).disturbed and not RunFolder(folder).disturbed
    again = {entry["client"] for entry in ledger_of(broken) if entry["attempt"]}
    assert again and again == batches[2]
