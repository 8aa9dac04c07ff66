"""What a client keeps: one record, written as a whole, the same after a round trip through bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from torch import Tensor

from fedpriv.client.memories import collect_entries
from fedpriv.client.memory import (
    Answer,
    ClientMemory,
    ContextStore,
    FileStore,
    MemoryStore,
    Shelf,
    Waiting,
    read_memory,
    state_to_tensors,
    tensors_to_state,
)
from fedpriv.config.compose import compose
from fedpriv.engines.grid import LocalGrid
from fedpriv.privacy.events import CLIENT_TO_SERVER, Account, Entry, Gaussian, NoBound


@dataclass(frozen=True)
class Kept:
    """One field of every kind that a method may keep."""

    vector: Tensor
    scalar: Tensor
    threshold: float
    participation: int


def kept() -> Kept:
    return Kept(torch.randn(7), torch.tensor(1 / 3, dtype=torch.float64), 0.1, 2**40)


def entry(server_round: int, client: int, sequence: int, multiplier: float = 0.05, **changes: object) -> Entry:
    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=multiplier)
    return Entry(server_round, client, sequence, 0, event, **changes)  # type: ignore[arg-type]


def context(client: int = 3) -> Context:
    return Context(run_id=1, node_id=2, node_config={"partition-id": client}, state=RecordDict(), run_config={})


@pytest.fixture(params=["context", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore:
    return ContextStore(context()) if request.param == "context" else FileStore(tmp_path / "clients", 3)


def assert_same(one: Kept, other: Kept) -> None:
    for name in ("vector", "scalar"):
        first, second = getattr(one, name), getattr(other, name)
        assert torch.equal(first, second) and first.dtype == second.dtype and first.shape == second.shape
    for name in ("threshold", "participation"):
        assert getattr(one, name) == getattr(other, name) and type(getattr(one, name)) is type(getattr(other, name))


def test_a_state_comes_back_bit_for_bit() -> None:
    state = kept()
    assert_same(state, tensors_to_state(Kept, state_to_tensors(state)))
    memory = ClientMemory().after(state_to_tensors(state), [])
    assert_same(state, tensors_to_state(Kept, ClientMemory.from_bytes(memory.to_bytes()).state))


def test_no_state_is_no_state() -> None:
    assert state_to_tensors(None) is None and tensors_to_state(Kept, None) is None
    assert ClientMemory.from_bytes(ClientMemory().to_bytes()) == ClientMemory()


def test_a_state_that_is_no_dataclass_is_refused() -> None:
    with pytest.raises(TypeError, match="dataclass, not dict"):
        state_to_tensors({"x": torch.ones(1)})


def test_slices_of_larger_vectors_and_shared_memory_survive() -> None:
    """A slice with a stride, and two fields that are one and the same tensor."""
    whole = torch.arange(20.0)
    state = {"x": whole[::3], "y": whole[5:9], "z": whole[5:9]}
    found = ClientMemory.from_bytes(ClientMemory(state).to_bytes()).state
    assert found is not None and all(torch.equal(found[name], value) for name, value in state.items())


def test_an_empty_store_is_an_empty_memory(store: MemoryStore) -> None:
    assert store.read() is None
    assert read_memory(store) == ClientMemory()


def test_state_account_and_entries_are_one_record(store: MemoryStore) -> None:
    first = [entry(1, 3, 0), entry(1, 3, 1, adaptive=True, realised=Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.01))]
    store.write(ClientMemory().after(state_to_tensors(kept()), first).to_bytes())
    second = [Entry(4, 3, 2, 1, NoBound(threat=CLIENT_TO_SERVER, reason="sent as it is"))]
    newer = kept()
    store.write(read_memory(store).after(state_to_tensors(newer), second).to_bytes())
    found = read_memory(store)
    assert_same(newer, tensors_to_state(Kept, found.state))
    assert found.uncollected == (*first, *second)
    assert found.account == Account([*first, *second]) and found.account.next_sequence == 3
    assert len(found.account.spent()) == 3


def test_the_next_memory_leaves_the_last_one_as_it_was() -> None:
    """A release that is refused, or fails, must find what was there before."""
    before = ClientMemory().after(state_to_tensors(kept()), [entry(1, 0, 0)])
    blob = before.to_bytes()
    before.after(None, [entry(2, 0, 1)])
    assert before.to_bytes() == blob and before.account.next_sequence == 1


def test_collecting_takes_every_entry_once_and_keeps_the_account(tmp_path: Path) -> None:
    stores = [ContextStore(context(0)), FileStore(tmp_path, 1), ContextStore(context(2))]
    entries = {0: [entry(2, 0, 5), entry(1, 0, 4)], 1: [entry(1, 1, 0), entry(2, 1, 1)], 2: []}
    for client, one in enumerate(stores):
        one.write(ClientMemory().after({"x": torch.ones(2)}, entries[client]).to_bytes())
    found = collect_entries(stores)
    assert [(e.round, e.client, e.sequence) for e in found] == [(1, 0, 4), (1, 1, 0), (2, 0, 5), (2, 1, 1)]
    assert collect_entries(stores) == []
    memory = read_memory(stores[0])
    assert memory.account.next_sequence == 6 and memory.state is not None


def test_a_collected_memory_has_the_bytes_of_one_without_entries() -> None:
    """Entries are cut out of the bytes: whatever lies before and behind them is as if it had been written anew."""
    waiting = Waiting(2, 1, {"raw": torch.arange(7.0), "key": torch.arange(5, dtype=torch.uint8)}, {"norm": 1.5})
    answer = Answer(2, 1, torch.arange(3.0), torch.ones(2, dtype=torch.float64))
    state = {"bits": torch.ones(3, dtype=torch.bool), "zeta": torch.arange(9, dtype=torch.uint8), "x": torch.ones(2, 3)}
    for entries in ([entry(2, 0, 0)], [entry(2, 0, k) for k in range(40)]):
        memory = ClientMemory().after(state, entries, answer, torch.ones(4), waiting)
        store = ContextStore(context(0))
        store.write(memory.to_bytes())
        assert collect_entries([store]) == entries
        assert store.read() == replace(memory, uncollected=(), answer=answer.closed()).to_bytes()


def test_a_broken_memory_is_never_an_empty_one(store: MemoryStore) -> None:
    """An empty one would forget what was spent."""
    whole = ClientMemory().after({"x": torch.ones(50)}, [entry(1, 3, 0)]).to_bytes()
    for broken in (b"", whole[:-1], whole[: len(whole) // 2], b"x" + whole):
        store.write(broken)
        with pytest.raises(Exception):  # noqa: B017 - safetensors' own error, and ours
            read_memory(store)


def test_files_of_clients_are_apart_and_a_new_process_finds_them(tmp_path: Path) -> None:
    for client in (1, 11):
        FileStore(tmp_path / "new" / "folder", client).write(ClientMemory({"x": torch.tensor(client)}).to_bytes())
    for client in (1, 11):
        found = read_memory(FileStore(tmp_path / "new" / "folder", client)).state
        assert found is not None and int(found["x"]) == client
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 2  # nothing temporary is left


class _Grid(LocalGrid):
    def deliver(self, messages: object, deadline: float) -> object:  # type: ignore[override]
        raise NotImplementedError


def test_a_checkpoint_holds_every_memory_and_restores_no_other() -> None:
    grid = _Grid(compose(["num_clients=5", "clients_per_round=5"]))
    for client in (0, 3):
        ContextStore(grid.context_of(client)).write(ClientMemory({"x": torch.tensor(client)}).to_bytes())
    grid.context_of(4)  # asked, never released
    memories = dict(grid.memories())
    assert sorted(memories) == [0, 3]
    ContextStore(grid.context_of(1)).write(ClientMemory({"x": torch.tensor(1)}).to_bytes())
    grid.restore(memories)
    assert grid.memories() == memories


def test_a_memory_that_is_kept_holds_no_table_of_a_cohort() -> None:
    """Rows of a computation are copied out of it, whatever they are for; the memory is the same."""
    rows = torch.randn(50, 9)
    memory = ClientMemory(
        {"vector": rows[1], "alone": torch.ones(9)},
        answer=Answer(1, 0, rows[2], rows.double()[3, :2]),
        kept=rows[4],
        waiting=Waiting(1, 0, {"update": rows[5]}, {"train_loss": 1.0}),
    )
    found = memory.alone()
    assert found.to_bytes() == memory.to_bytes()
    assert all(tensor.untyped_storage().nbytes() <= 2 * tensor.nbytes + 64 for tensor in found.tensors())
    assert len(list(found.tensors())) == len(list(memory.tensors())) == 6
    assert found.alone() is found


# --- what several clients share ----------------------------------------------------------------------------


def shared(shelf: Shelf, clients: Sequence[int], number: int = 1) -> ClientMemory:
    """Keeps a memory whose vectors have a row for each of these clients: [client, client, client]."""
    rows = torch.tensor(clients, dtype=torch.float32)[:, None].expand(-1, 3).clone()
    memory = ClientMemory().after(
        {"x": rows, "n": torch.tensor(7)}, [entry(number, clients[0], 0)], Answer(number, 0, -rows)
    )
    shelf.keep(clients, memory)
    return memory


def held_by(shelf: Shelf, client: int) -> tuple[list[float], list[int]]:
    memory = shelf.load(client)
    assert memory is not None and memory.state is not None and int(memory.state["n"]) == 7
    return memory.state["x"].tolist(), [entry.client for entry in memory.uncollected]


def test_each_client_reads_its_own_row_and_its_own_entries_of_what_it_shares() -> None:
    shelf = Shelf()
    shared(shelf, [4, 9, 2])
    assert len({id(memory) for memory in shelf.shared.values()}) == 1
    for client in (4, 9, 2):
        assert held_by(shelf, client) == ([client] * 3, [client])
        memory = shelf.load(client)
        assert memory is not None and memory.answer is not None and memory.answer.release.tolist() == [-client] * 3  # type: ignore[union-attr]
    assert {one.clients for one in shelf.alike([2, 4, 9])} == {(2, 4, 9)}
    assert {one.clients for one in shelf.alike([2, 4, 9], asked=True)} == {(2,), (4,), (9,)}  # a repeat is one client's


@pytest.mark.parametrize("order", [[4, 9, 2, 7], [7, 2, 9, 4], [9, 7]])
def test_entries_are_collected_from_what_is_shared_and_every_row_stays_its_clients(order: list[int]) -> None:
    shelf = Shelf()
    shared(shelf, [4, 9, 2, 7])
    found = collect_entries(shelf.alike(order))
    assert [(one.client, one.sequence) for one in found] == [(client, 0) for client in sorted(order)]
    for client in (4, 9, 2, 7):
        assert held_by(shelf, client) == ([client] * 3, [] if client in order else [client])
    assert [one.clients for one in shelf.alike(order, asked=True)] == [tuple(order)]  # closed: together again
    assert collect_entries(shelf.alike(order)) == []


def test_rows_that_are_nobodys_are_at_most_half() -> None:
    """What is left of a memory is taken apart, and holds no table."""
    shelf = Shelf()
    shared(shelf, range(8))
    for client in range(4):
        shelf.keep((client,), ClientMemory({"x": torch.zeros(3), "n": torch.tensor(7)}))
    assert len({id(shelf.shared[client]) for client in range(4, 8)}) == 1
    shelf.forget(4)  # as one that is spilled
    assert len({id(shelf.shared[client]) for client in range(5, 8)}) == 3 and not shelf.rows
    for client in range(5, 8):
        memory = shelf.load(client)
        assert memory is not None and held_by(shelf, client) == ([client] * 3, [client])
        assert all(tensor.untyped_storage().nbytes() <= 2 * tensor.nbytes + 64 for tensor in memory.tensors())
    assert shelf.load(4) is None and shelf.held == sum(memory.num_bytes for memory in shelf.shared.values())


def test_what_waits_for_its_round_is_never_asked_together() -> None:
    """Two clients of one block of three, in another order: what they answered is theirs."""
    shelf = Shelf()
    shared(shelf, [1, 2, 3])
    for one in shelf.alike([3, 1], asked=True):
        memory = read_memory(one)
        assert memory.answer is not None and memory.answer.release.tolist() == [-one.clients[0]] * 3  # type: ignore[union-attr]
