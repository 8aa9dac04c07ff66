"""Large populations: clients draw their own pictures, and nothing is stored of those that never took part."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, Outcome, Run, ctrl_c, page_of, result_of
from safetensors.torch import load_file, save_file

from fedpriv.client.memories import StoredMemories, collect_entries
from fedpriv.client.memory import Answer, ClientMemory, ContextStore, Waiting
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import ResampledPartition
from fedpriv.data import FederatedData
from fedpriv.data.load import load_federated
from fedpriv.data.partition import partition_clients
from fedpriv.engines.grid import Contexts, empty_context
from fedpriv.engines.worker import Worker
from fedpriv.privacy.composition import verify
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Gaussian
from fedpriv.runs.folder import read_blobs, write_blobs
from fedpriv.runs.planning import make_plan, schedule
from fedpriv.runs.start import resume_run

LABELS = np.arange(1000) % 10
RESAMPLED = ("partition=resampled", "partition.examples_per_client=20")


def resampled(num_clients: int, seed: int = 0, examples: int = 60, test_fraction: float = 0.25) -> Any:
    config = ResampledPartition(name="resampled", examples_per_client=examples, test_fraction=test_fraction)
    return partition_clients(LABELS, config, num_clients, seed, Path("nowhere"))


# --- the partition ---------------------------------------------------------------------------------------


def test_every_client_draws_its_own_pictures_by_seed_and_number() -> None:
    one, again, other = resampled(50), resampled(100_000), resampled(50, seed=1)
    for client in (0, 1, 49):
        train, test = one.train(client), one.test(client)
        assert len(train) == 45 == one.num_train[client] and len(test) == 15
        assert len(set(train) | set(test)) == 60  # without replacement, the two parts apart
        assert (np.diff(train) > 0).all() and (np.diff(test) > 0).all()
        assert np.array_equal(train, again.train(client)) and np.array_equal(test, again.test(client))
        assert not np.array_equal(train, other.train(client))
    assert not np.array_equal(one.train(0), one.train(1))
    held = np.bincount(np.concatenate([one.train(k) for k in range(50)]), minlength=len(LABELS))
    assert held.max() > 1  # clients share examples
    assert len(resampled(5, test_fraction=0.0).test(0)) == 0
    for client in (-1, 50):
        with pytest.raises(IndexError):
            one.train(client)


def test_all_pictures_are_drawn_equally_often() -> None:
    drawn = np.bincount(np.concatenate([resampled(4000).train(k) for k in range(4000)]), minlength=len(LABELS))
    expected = 4000 * 45 / len(LABELS)  # each client holds each picture with probability 0.045
    spread = np.sqrt(4000 * 0.045 * (1 - 0.045))
    assert abs(drawn.mean() - expected) < 1e-9 and np.abs(drawn - expected).max() < 5 * spread
    assert 0.9 * spread < drawn.std() < 1.1 * spread


def test_nothing_is_built_for_clients_that_nobody_asks() -> None:
    """Ten million clients with 600 pictures each would be 48 GB."""
    tracemalloc.start()
    partition = resampled(10_000_000, examples=600)
    partition.train(9_999_999)
    assert int(partition.num_train.min()) == 450 and partition.num_clients == 10_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6


def test_impossible_requests_are_refused_in_words(cli: Callable[..., Outcome]) -> None:
    found = cli(*RESAMPLED, "partition.examples_per_client=1438")
    assert found.code == 2 and "partition.examples_per_client" in found.err and "1437 training examples" in found.err
    with pytest.raises(OptionError, match="1000 training examples"):
        resampled(3, examples=1001)
    found = cli("partition=iid", "partition.examples_per_client=20")
    assert found.code == 2 and "partition.examples_per_client" in found.err


@pytest.mark.parametrize("method", ["dpsgd", "nbafl", "dpfl_agn"])
def test_methods_that_protect_a_picture_are_refused(run: Run, method: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"partition.*resampled.*clients share examples"):
        run(f"strategy={method}", *RESAMPLED, folder=tmp_path / "refused")
    assert not (tmp_path / "refused" / "config.yaml").exists()


# --- a run -----------------------------------------------------------------------------------------------


def test_a_hundred_thousand_clients_cost_no_more_than_a_thousand(run: Run) -> None:
    """A few numbers a client (how often it is asked), for a moment; a Python object each would be a hundred bytes."""
    run(*RESAMPLED)  # imports and fills caches
    peaks = {}
    for clients in (1_000, 100_000):
        tracemalloc.start()
        folder = run(*RESAMPLED, f"num_clients={clients}")
        peaks[clients] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[100_000] - peaks[1_000] < 60 * 99_000
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["num_clients"] == 100_000
    assert summary["privacy"]["verified_median"] == 0.0 < summary["privacy"]["verified_epsilon"]
    assert any("clients draw from the same examples" in reason for reason in summary["privacy"]["reasons"])
    assert "clients draw from the same examples" in page_of(folder)


def test_a_plan_counts_clients_that_are_never_asked() -> None:
    config = compose([*SMALL, *RESAMPLED, "num_clients=50000"])
    plan = make_plan(config, Worker(config))
    assert plan.verified_median == 0.0 < plan.verified_epsilon
    assert plan.participations == (0, 1) and schedule(config).sum() == 12
    assert any("clients draw from the same examples" in reason for reason in plan.reasons)


def test_clients_without_releases_count_towards_the_median() -> None:
    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
    ledger = {client: [Entry(1, client, 0, 0, event)] for client in range(3)}
    for idle in (0, 2, 3, 4):
        explicit = verify(ledger | {client: [] for client in range(3, 3 + idle)}, 1e-5)
        found = verify(ledger, 1e-5, idle=idle)
        assert (found.maximum, found.median, found.spent_so_far) == (
            explicit.maximum,
            explicit.median,
            explicit.spent_so_far,
        )
    assert verify({}, 1e-5, idle=9).median == 0.0


def test_the_picture_of_who_holds_what_looks_at_some_clients_only(tmp_path: Path) -> None:
    from fedpriv.report.label_plot import MAX_ROWS, draw_label_distribution, label_counts

    data = load_federated(compose([*SMALL, *RESAMPLED, "num_clients=10000000"]))
    assert isinstance(data, FederatedData)
    counts = label_counts(data)
    assert counts.shape == (MAX_ROWS, 10) and (counts.sum(1) == 20).all()
    draw_label_distribution(data, tmp_path / "labels.png")
    assert (tmp_path / "labels.png").stat().st_size > 1000


# --- states on disk --------------------------------------------------------------------------------------


def contexts(most: float, folder: Path) -> Contexts:
    return Contexts(lambda client: empty_context(1, client + 2, client, 100), most, str(folder))


def blob_of(client: int) -> bytes:
    return ClientMemory({"x": torch.full((250,), float(client))}).to_bytes()


def test_states_beyond_the_limit_are_in_a_file_and_come_back(tmp_path: Path) -> None:
    found = contexts(3.5 * (512 + 1000), tmp_path)
    for client in range(10):
        ContextStore(found[client]).write(blob_of(client))
        found.settle()
    assert sorted(found._stored or ()) == list(range(7))  # the least recently asked
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["states.sqlite"]
    assert ContextStore(found[0]).read() == blob_of(0)
    found.settle()
    assert sorted(found.memories()) == list(range(10))
    assert all(blob == blob_of(client) for client, blob in found.memories().items())
    newer = blob_of(77)
    ContextStore(found[0]).write(newer)
    for client in range(20, 26):
        ContextStore(found[client]).write(blob_of(client))
        found.settle()
    assert found.memories()[0] == newer and ContextStore(found[0]).read() == newer
    assert ContextStore(found[50]).read() is None and 50 not in found.memories()
    found.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["private"]


def test_without_need_nothing_is_written(tmp_path: Path) -> None:
    found = contexts(1e6, tmp_path)
    for client in range(10):
        ContextStore(found[client]).write(blob_of(client))
        found.settle()
    assert list(tmp_path.iterdir()) == [] and len(found.memories()) == 10


def test_a_checkpoints_states_are_written_one_by_one(tmp_path: Path) -> None:
    blobs = {7: b"", 3: b"abc", 100_000: bytes(range(256)) * 5}
    write_blobs(tmp_path / "blobs", blobs)
    found = read_blobs(tmp_path / "blobs")
    assert found == blobs
    stored = load_file(tmp_path / "blobs")  # any reader of the format
    assert stored["clients"].tolist() == list(blobs)
    assert stored["memories"].numpy().tobytes() == b"".join(blobs.values())
    with pytest.raises(KeyError):
        found[4]
    write_blobs(tmp_path / "nothing", {})
    assert read_blobs(tmp_path / "nothing") == {}


def test_what_clients_have_in_common_is_written_once_and_whatever_cohorts_they_were_in(tmp_path: Path) -> None:
    found, everybody = contexts(1e9, tmp_path), list(range(3000))
    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
    for cohort in (everybody[::2], everybody[1::2], everybody[:700]):
        memory = ClientMemory().after(None, [Entry(0, 0, 1, 0, event)], Answer(1, 0, torch.zeros(len(cohort), 9)))
        found.keep(cohort, memory)
        assert len(found.memories()[cohort[3]]) > 36 + 200  # its release, of an open round
        collect_entries(found.alike(cohort))
    assert len({id(memory) for memory in found.shared.values()}) == 1
    ContextStore(found[5]).write(blob_of(5))
    sizes = write_blobs(tmp_path / "blobs", found.memories())
    assert (tmp_path / "blobs").stat().st_size < 16 * 3000 + 3000
    assert sizes[4] < sizes[5] and sum(sizes.values()) < 16 * 3000 + 3000
    again = read_blobs(tmp_path / "blobs")
    assert again == found.memories() and again[5] == blob_of(5)
    assert ClientMemory.from_bytes(again[2999]).account == ClientMemory.from_bytes(again[0]).account


@pytest.mark.parametrize(
    ("clients", "places", "ends"),
    [
        ([1, 1], [0, 1], [2, 4]),
        ([1, 2], [0, 1], [3, 2]),
        ([1, 2], [0, 1], [2, 5]),
        ([1], [0, 1], [2, 4]),
        ([1.0, 2.0], [0, 1], [2, 4]),
        ([1, 2], [0, 2], [2, 4]),
        ([1, 2], [0, -1], [2, 4]),
        ([1, 2], [0], [2, 4]),
    ],
)
def test_an_index_that_is_not_that_of_its_memories_is_refused(
    clients: Any, places: list[int], ends: list[int], tmp_path: Path
) -> None:
    index = {"clients": torch.tensor(clients), "places": torch.tensor(places), "ends": torch.tensor(ends)}
    save_file(index | {"memories": torch.zeros(4).byte()}, tmp_path / "blobs")
    with pytest.raises(ValueError, match="its index is not that of its memories"):
        read_blobs(tmp_path / "blobs")


def test_restoring_takes_time_in_proportion_to_the_clients(tmp_path: Path) -> None:
    """Also of more clients than a safetensors header has room for names (100 MB)."""

    def seconds(clients: int) -> float:
        path = tmp_path / str(clients)
        write_blobs(path, {client: bytes(200) for client in range(clients)})
        spent = []
        for _ in range(3):
            began = time.process_time()
            assert sum(len(blob) for blob in read_blobs(path).values()) == 200 * clients
            spent.append(time.process_time() - began)
        return min(spent)

    assert seconds(40_000) < 30 * seconds(4_000)  # where each read the index anew it would be 100 times


SPILLED = ("num_clients=12", "clients_per_round=4", "num_rounds=6", "checkpoint.every=2", *RESAMPLED)


def test_a_run_with_its_states_on_disk_is_the_same_run_also_resumed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of Fed-CAD is 8 kB here: at most one stays in memory."""
    options = (*SPILLED, "strategy.client.obsolete_factor=0.4")
    whole = run(*options)
    spilled = 0
    settle = Contexts.settle

    def counted(self: Contexts) -> None:
        nonlocal spilled
        settle(self)
        spilled = max(spilled, len(list(self._stored or ())))

    monkeypatch.setattr(Contexts, "settle", counted)
    small = run(*options, "engine.client_memory_mib=0.01")
    assert result_of(small) == result_of(whole) and spilled >= 8
    assert not list(small.rglob(".states-*"))  # gone with the run

    torn = small.parent / "torn"
    with ctrl_c(after=5), pytest.raises(KeyboardInterrupt):
        run(*options, "engine.client_memory_mib=0.01", folder=torn)
    (torn / "private" / ".states-killed").mkdir()  # of a process that could not clean up
    (torn / "private" / ".states-killed" / "3.safetensors").write_bytes(b"stale")
    resume_run(torn)
    assert result_of(torn) == result_of(whole)
    assert not list(torn.rglob(".states-*"))


def test_memories_that_change_their_form_come_back(tmp_path: Path) -> None:
    """Also of memories between two exchanges; what was written before is written over."""
    stored = StoredMemories(tmp_path)
    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.5)
    memory = ClientMemory()
    for number in range(1, 40):
        state = {"x": torch.full((5,), float(number)), "n": torch.tensor(float(number), dtype=torch.float64)}
        answer = Answer(number, 0, torch.full((5,), -1.0), torch.ones(2, dtype=torch.float64) if number % 2 else None)
        entry = Entry(number, 3, number - 1, 0, replace(event, multiplier=1.0 + number))
        waiting = Waiting(number, 0, {"update": torch.zeros(4)}, {"loss": 0.5}) if number % 5 == 0 else None
        memory = memory.after(state, [entry], answer, torch.arange(3.0), waiting)
        own = {client: replace(memory, kept=torch.full((3,), float(client))) for client in (3, 4, 5)}
        for client in own:
            stored.write(client, own[client])
        assert all(stored.read(client) == own[client].to_bytes() for client in own)
    assert set(stored) == {3, 4, 5} and 6 not in stored
    with pytest.raises(KeyError):
        stored.read(6)
    stored.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4 * (3 * len(memory.to_bytes()) + 2 * 65536)


def test_a_full_disk_names_the_file_of_states(tmp_path: Path) -> None:
    stored = StoredMemories(tmp_path)
    kept = ClientMemory({"x": torch.ones(5)})
    stored.write(0, kept)
    (pages,) = stored._file.execute("PRAGMA page_count").fetchone()
    stored._file.execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(OSError, match=r"states\.sqlite"):
        stored.write(1, ClientMemory({"x": torch.zeros(10**6)}))
    assert 1 not in stored and set(stored) == {0} and stored.read(0) == kept.to_bytes()
