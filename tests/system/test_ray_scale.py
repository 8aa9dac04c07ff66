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
from flwr.app import ConfigRecord, Message, RecordDict
from processes import wait_until
from ray.exceptions import RayActorError
from rotation import together

from fedpriv.common.cohort_messages import COHORT, Refused, cohort_of_message, read_cohort
from fedpriv.common.command_line import shown
from fedpriv.common.errors import ClusterLost, RunFailed
from fedpriv.common.messages import FIRST_NODE, FloatVector, Refusal, pack_vector, refusal, reply_content
from fedpriv.common.replies import FORGOTTEN, Reply, read_reply
from fedpriv.config.compose import compose
from fedpriv.engines import agreement, ray_pool
from fedpriv.engines import ray as ray_engine
from fedpriv.engines.agreement import agree, facts
from fedpriv.engines.ray import FEWEST, MOST, Errand, RayGrid, ahead, fixed_share
from fedpriv.engines.ray_pool import Pool, slots
from fedpriv.engines.worker import worker_for
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.preparation import resolve
from fedpriv.runs.session import Session
from fedpriv.runs.start import resume_run
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
    monkeypatch.setattr(ray_pool, "_cluster", lambda: "head:1")
    monkeypatch.setattr(ray_pool, "_answers", lambda address: address == "head:1")
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
        self.killed: list[Any] = []
        pool = SimpleNamespace(idle=deque(), workers=workers, new_actor=object, close=lambda: None, lost=False)
        pool.why_lost, pool.kill = lambda nobody: None, self.killed.append
        monkeypatch.setattr(ray_engine, "LOOK", 0.0)
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
        self.submitted.append([errand.place + number for errand in batch for number in range(errand.size)])
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
        return pickle.dumps(
            [([_honest(errand)], [self.grid.context_of(client) for client in errand.clients]) for errand in batch]
        )


def _honest(errand: Errand) -> Message:
    """To a message for many: whom it asked."""
    cohort = cohort_of_message(errand.light())
    if cohort is None:
        return honest(errand.message, 0)
    assert cohort == errand.clients
    return Message(RecordDict({COHORT: ConfigRecord({"clients": cohort})}), reply_to=errand.message)


def clients_of(message: Message) -> list[int]:
    return cohort_of_message(message) or [message.metadata.src_node_id - FIRST_NODE]


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
    seen: list[int] = []
    for reply in pretended.grid.send_and_receive(messages):
        seen += clients_of(reply)
        assert sum(map(len, pretended.submitted)) <= len(seen) + 12
    assert seen == list(range(200)) and len(messages) == (1 if trainer == "vectorised" else 200)
    if trainer == "vectorised":
        pieces = sorted(pretended.submitted)
        assert {len(piece) for piece in pieces[:-1]} == {len(pieces[0])} == {pretended.grid.share}
        assert [place for piece in pieces for place in piece] == list(range(200))


@pytest.mark.parametrize("trainer", ["sequential", "vectorised"])
def test_a_lost_worker_holds_nobody_back(trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its clients is asked once more, alone: one that kills its worker takes no other down with it twice."""
    config = compose([*SMALL, "num_clients=50", "clients_per_round=50", f"engine.trainer={trainer}"])
    pretended = Pretended(config, monkeypatch, 2, lambda count: count - 1)
    pretended.dead = {1, 2}
    disturbed = []
    pretended.grid.on_disturbance = lambda: disturbed.append(1)
    replies = list(pretended.grid.send_and_receive(messages_for(pretended.grid, 50, 10)))
    seen = [client for reply in replies for client in clients_of(reply)]
    assert seen == list(range(50)) and len(disturbed) == 2 == len(pretended.killed)
    assert all(reply.has_content() for reply in replies)
    asked = Counter(place for batch in pretended.submitted for place in batch)
    assert max(asked.values()) == 2 and all(len(batch) == 1 for batch in pretended.submitted[2:4])


def test_a_share_whose_worker_dies_twice_is_an_error_of_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([*SMALL, "num_clients=20", "clients_per_round=20", "engine.trainer=vectorised"])
    pretended = Pretended(config, monkeypatch, 2, lambda count: 0)
    pretended.dead = {1, 3, 4}
    grid, strategy = pretended.grid, build(num_clients=20, clients_per_round=20)
    messages = list(strategy.configure_train(1, pack_vector(np.zeros(10, np.float32)), ConfigRecord(), grid))
    lost = [reply for reply in grid.send_and_receive(messages) if "codes" in reply.content[COHORT]]
    found = [outcome for reply in lost for outcome in read_cohort(reply, 10, lambda client: 1)]
    expected = Refused(int(Refusal.WORKER_LOST), "its worker process died 2 times")
    assert found and all(outcome == expected for _, outcome in found)
    assert {client for client, _ in found} == {batch[0] for batch in pretended.submitted[2:4]}


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
            pid, _ = ray.get(configured)
            (self.node_of[id(actor)],) = [k for k, one in enumerate(nodes) if pid in ray_nodes.descendants(one.pid)]

        def submitted(grid: RayGrid, actor: Any, batch: list[Errand], shared: Any) -> Any:
            number = self.node_of[id(actor)]
            self.clients.setdefault(number, []).extend(one for errand in batch for one in errand.clients)
            lose(number)
            return submit(grid, actor, batch, shared)

        def planned(grid: RayGrid, messages: Sequence[Message], number: int) -> None:
            plan(grid, messages, number)
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


# --- a cluster that is lost --------------------------------------------------------------------------------

LINEAR = ("num_clients=12", "clients_per_round=12", "num_rounds=4", "checkpoint.every=1")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_whose_head_is_lost_says_the_command_that_goes_on_and_moves_to_another_cluster(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a look of its own; Ray would end this process a minute later. Nothing has disturbed the rounds: same bits."""
    folder, ended = tmp_path / "run", Session._end_round
    with ray_nodes.cluster(cpus=1) as (address, head, _):

        def lose(session: Session, current: Any) -> None:
            ended(session, current)
            if current.number == 2:
                ray_nodes.end(head)

        with monkeypatch.context() as patch, pytest.raises(ClusterLost) as caught:
            patch.setattr(Session, "_end_round", lose)
            run(*LINEAR, "engine=ray", f"engine.address={address}", "engine.workers=1", folder=folder)
    other = "engine=ray engine.address=HOST:PORT of another cluster"
    command = f"fedpriv resume={shown(folder)} engine=inprocess, or {other}, goes on from the last checkpoint"
    assert str(caught.value).startswith(f"engine.address={address}: the head of the Ray cluster (")
    assert str(caught.value).endswith(f") does not answer any more; {command}")
    assert not RunFolder(folder).disturbed and [path.name for path in RunFolder(folder).checkpoints()][-1:] == [
        "round-000002"
    ]
    with ray_nodes.cluster(cpus=1) as (address, head, _):
        resume_run(folder, ("engine=ray", f"engine.address={address}"))
        assert ray_pool._answers(address) and not ray_pool._leaving
    found, expected = result_of(folder), result_of(run(*LINEAR))
    assert found == expected


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_objects_that_ray_spills_to_disk_give_the_same_bits(run: Run) -> None:
    """An object store of the smallest size that Ray allows, what is under way larger than that."""
    large = ("model=mlp", "model.hidden=30000", "num_clients=6", "clients_per_round=6", "num_rounds=2")
    large += ("evaluate.every=0", "checkpoint.every=0", "engine.trainer=sequential")
    with ray_nodes.cluster(2, f"--object-store-memory={75 * 2**20}") as (address, _, folder):
        there = run(*large, "engine=ray", f"engine.address={address}", "engine.workers=2")
        assert any("Spilled" in log.read_text() for log in folder.rglob("raylet*.out"))
    assert result_of(there) == result_of(run(*large))


@pytest.mark.parametrize("ends", ["with a word", "without one"])
def test_a_process_that_ray_ends_leaves_the_command_that_goes_on(
    ends: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Somebody else says it: Ray leaves no time where the object store of the process's own machine is gone."""
    config = compose([*SMALL, "engine=ray", "engine.address=head:1"]).model_copy(update={"run_dir": "there"})
    grid = Pretended(config, monkeypatch, 1, lambda count: 0).grid
    assert grid.sentinel is not None and grid.sentinel.stdin is not None
    if ends == "with a word":
        grid.close()
    else:
        grid.sentinel.stdin.close()
    assert grid.sentinel.wait() == 0
    said = capfd.readouterr().err
    assert (said == "") == (ends == "with a word")
    assert not said or "; fedpriv resume=there engine=inprocess, or engine=ray engine.address=" in said


def test_a_silent_head_is_asked_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [0.0], []

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(ray_pool, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(ray_pool, "_cluster", lambda: "head:1")
    monkeypatch.setattr(ray_pool, "_answers", lambda address: asked.append(address) or len(asked) > 5)
    pool = Pool(compose(["engine=ray", "engine.address=head:2"]).engine, 4)
    assert pool.why_lost(nobody=False) is None and len(asked) == 6 and not pool.lost
    monkeypatch.setattr(ray, "nodes", lambda: [node(0), node(8, alive=False)])
    assert pool.why_lost(nobody=False) is None
    words = "engine.address=head:2: no machine of the Ray cluster (head:1) is left for a worker"
    assert pool.why_lost(nobody=True) == words and not pool.lost
    monkeypatch.setattr(ray, "nodes", lambda: [node(0), node(8)])
    assert pool.why_lost(nobody=True) is None
    began = clock[0]
    monkeypatch.setattr(ray_pool, "_answers", lambda address: False)
    lost = "engine.address=head:2: the head of the Ray cluster (head:1) does not answer any more"
    assert pool.why_lost(nobody=False) == lost and pool.lost and 4.0 <= clock[0] - began < 5.0


def test_the_grid_looks_before_a_round_at_every_wait_and_after_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([*SMALL, "num_clients=20", "clients_per_round=20", "engine.trainer=vectorised"])
    pretended = Pretended(config, monkeypatch, 2, lambda count: 0)
    looks: list[bool] = []
    pretended.grid.pool.why_lost = lambda nobody: looks.append(nobody)
    list(pretended.grid.send_and_receive(messages_for(pretended.grid, 20, 10)))
    assert len(looks) >= 3 and not any(looks)
    disturbed: list[int] = []
    pretended.dead, pretended.grid.on_disturbance = {3}, lambda: disturbed.append(1)
    pretended.grid.pool.why_lost = lambda nobody: "gone" if pretended.calls > 3 else None
    monkeypatch.setattr(ray_engine, "LOOK", 1e9)  # only the death makes it look
    with pytest.raises(ClusterLost, match=r"^gone; fedpriv resume=RUN_FOLDER .*, begins anew: no checkpoint$"):
        list(pretended.grid.send_and_receive(messages_for(pretended.grid, 20, 10)))
    assert not disturbed  # else a resumed run could not repeat the round
