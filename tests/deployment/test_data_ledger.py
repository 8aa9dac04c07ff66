"""The data folder's ledger: what a crash leaves, what a copy put back is worth, and who may hold it."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from deployed import MACHINES, Machines, asker, context
from forked import TESTS, Forks, forks

from fedpriv.app import _config_of
from fedpriv.client.build import make_client
from fedpriv.client.memory import Answer, read_memory
from fedpriv.common.errors import LedgerRefused
from fedpriv.common.messages import RUN, Refusal, Request
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.declaration import Declared
from fedpriv.deployment.gate import Node
from fedpriv.deployment.policy import Booked
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Gaussian

DECLARED = Declared(12, ("a", "b"), 8, 1)
EVENT = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
REQUEST = Request(1, 0, {RUN: 32 * "a"})
KILLS = int(os.environ.get("FEDPRIV_KILLS", "50"))


def booked(server_round: int = 1) -> Booked:
    return Booked((Entry(server_round, 0, server_round, 0, EVENT),), CLIENT_TO_SERVER)


@pytest.fixture
def ledger(tmp_path: Path) -> DataLedger:
    (tmp_path / "data").mkdir()
    return DataLedger.create(tmp_path / "data", tmp_path / "kept" / "counter.json", DECLARED)


def opened(ledger: DataLedger) -> int:
    """How many messages a process that starts now reads."""
    with DataLedger(ledger.folder.parent, ledger.counter).held() as found:
        return len(found.releases())


def release(ledger: DataLedger, server_round: int) -> None:
    with ledger.held():
        ledger.append(booked(server_round), "run")
        ledger.confirm()


def test_what_is_booked_is_read_again(ledger: DataLedger) -> None:
    for server_round in (1, 2):
        release(ledger, server_round)
    with ledger.held():
        assert ledger.releases() == [booked(1), booked(2)]
        assert ledger.declared() == DECLARED
        ledger.declare(replace(DECLARED, examples=13))
    with ledger.held():
        assert ledger.declared().examples == 13 and len(ledger.releases()) == 2


def test_a_ledger_is_begun_once(ledger: DataLedger, tmp_path: Path) -> None:
    release(ledger, 1)
    with pytest.raises(LedgerRefused, match="there already"):
        DataLedger.create(tmp_path / "data", tmp_path / "another.json", DECLARED)
    (tmp_path / "fresh").mkdir()
    with pytest.raises(LedgerRefused, match="there already"):
        DataLedger.create(tmp_path / "fresh", ledger.counter, DECLARED)
    with pytest.raises(LedgerRefused, match="outside"):
        DataLedger.create(tmp_path / "fresh", tmp_path / "fresh" / "counter.json", DECLARED)


def test_a_beginning_that_was_cut_off_can_be_finished(ledger: DataLedger, tmp_path: Path) -> None:
    """Killed between ledger and counter: nothing was released yet, so `init` may go on; later it may not."""
    ledger.counter.unlink()
    DataLedger.create(tmp_path / "data", ledger.counter, replace(DECLARED, size=9))
    assert opened(ledger) == 0
    with ledger.held():
        assert ledger.declared().size == 9, "what the second call says is public"
    release(ledger, 1)
    ledger.counter.unlink()
    with pytest.raises(LedgerRefused, match="there already"):
        DataLedger.create(tmp_path / "data", ledger.counter, DECLARED)
    assert not ledger.counter.exists()


def test_each_step_is_on_the_disk_before_the_next(ledger: DataLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    release(ledger, 1)
    assert synced[0] == "ledger.jsonl" and synced[1].startswith(".counter.json.") and synced[2] == "kept"


def test_a_full_disk_books_nothing_that_cannot_leave(machines: MACHINES) -> None:
    """The ledger's line would fit, the state behind it does not."""
    network = machines(1)
    ask = asker(network, network.overrides().replace("model=linear", "model=mlp"))
    assert not ask(1).has_error()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096 + network.ledger(0)._lines.path.stat().st_size, hard))
    try:
        assert [ask(2, attempt).error.code for attempt in range(3)] == [Refusal.FAILED] * 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert network.booked(0) == 1 and not list(network.data(0).rglob(".*.safetensors.*"))
    assert not ask(2, 3).has_error() and network.booked(0) == 2


def test_a_line_that_may_not_be_on_the_disk_is_taken_back(ledger: DataLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some disks say that they are full when a file is synced."""
    with ledger.held(), monkeypatch.context() as full:
        full.setattr("os.fsync", lambda descriptor: os.write(-1, b""))
        with pytest.raises(OSError, match=r"ledger\.jsonl"):
            ledger.append(booked(), "run")
    assert opened(ledger) == 0


def _delete(ledger: DataLedger) -> None:
    (ledger.folder / "ledger.jsonl").unlink()


def _delete_all(ledger: DataLedger) -> None:
    for path in ledger.folder.iterdir():
        path.unlink()
    ledger.folder.rmdir()


def _older(ledger: DataLedger) -> None:
    path = ledger.folder / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def _cheaper(ledger: DataLedger) -> None:
    path = ledger.folder / "ledger.jsonl"
    path.write_text(path.read_text().replace('"multiplier": 1.0', '"multiplier": 9.0'))


def _another(ledger: DataLedger) -> None:
    other = ledger.folder.parent.parent / "other"
    other.mkdir()
    made = DataLedger.create(other, other.parent / "other.json", DECLARED)
    for number in range(5):
        release(made, number)
    (made.folder / "ledger.jsonl").replace(ledger.folder / "ledger.jsonl")


def _no_counter(ledger: DataLedger) -> None:
    ledger.counter.unlink()


def _damaged_counter(ledger: DataLedger) -> None:
    ledger.counter.write_text("{}")


def _damaged_line(ledger: DataLedger) -> None:
    with (ledger.folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"entries": [{"mechanism": "gauss\n')


def _unknown_mechanism(ledger: DataLedger) -> None:
    with (ledger.folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"run": "r", "own": ["client", "replace-one", "server"], "entries": [{}], "shares_secrets": 0}\n')


@pytest.mark.parametrize(
    "change",
    [
        _delete,
        _delete_all,
        _older,
        _cheaper,
        _another,
        _no_counter,
        _damaged_counter,
        _damaged_line,
        _unknown_mechanism,
    ],
)
def test_a_ledger_that_nothing_vouches_for_is_refused(change: Callable[[DataLedger], None], ledger: DataLedger) -> None:
    for server_round in (1, 2):
        release(ledger, server_round)
    assert opened(ledger) == 2
    change(ledger)
    with pytest.raises(LedgerRefused):
        opened(ledger)


def test_a_line_that_was_torn_has_not_left(ledger: DataLedger) -> None:
    """Behind the counter and without its end: nothing of it was answered, and the next release takes its place."""
    release(ledger, 1)
    path = ledger.folder / "ledger.jsonl"
    whole, counter = path.read_bytes(), ledger.counter.read_bytes()
    release(ledger, 2)
    line = path.read_bytes()[len(whole) :]
    for cut in range(1, len(line), 17):
        path.write_bytes(whole + line[:cut])
        ledger.counter.write_bytes(counter)
        assert opened(ledger) == 1
        release(DataLedger(ledger.folder.parent, ledger.counter), 3)
        assert opened(ledger) == 2


def test_a_whole_line_behind_the_counter_counts(ledger: DataLedger) -> None:
    """Killed between the line and the counter: nobody knows whether the message left, so it counts."""
    release(ledger, 1)
    counter = ledger.counter.read_bytes()
    release(ledger, 2)
    ledger.counter.write_bytes(counter)
    assert opened(ledger) == 2


def test_one_process_at_a_time(ledger: DataLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.deployment.data_ledger.PATIENCE", 0.1)
    with ledger.held(), pytest.raises(LedgerRefused, match="another process"):
        opened(ledger)
    assert opened(ledger) == 0


# --- kill -9 ------------------------------------------------------------------------------------------------


def release_for_ever(policy: Path, data: Path, configs: Path, pipe: Path) -> None:
    """A client's release path again and again: what `fit` does behind its training; a byte tells what was sent, the
    first that the path begins. configs: the run's and, as the policy changes it, the node's: both take long to compose.
    """
    node, (config, effective) = Node(0, policy, data), pickle.loads(configs.read_bytes())
    client = make_client(effective, examples=12)
    with pipe.open("wb", buffering=0) as sent, node.answering(config, REQUEST) as gate:
        gate.admit(client)
        sent.write(b"b")
        for server_round in range(1, 10**6):
            memory = read_memory(gate)
            release = torch.full((500,), float(memory.account.next_sequence))
            entry = Entry(server_round, 0, memory.account.next_sequence, 0, EVENT)
            gate.keep(memory.after({"last": release}, [entry], Answer(server_round, 0, release)))
            sent.write(b"x")


#: The same in a process that is killed.
RELEASE = """
import sys
from pathlib import Path
from test_data_ledger import release_for_ever

release_for_ever(*map(Path, sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("forked")
    with forks(folder, "test_data_ledger", path=(TESTS, Path(__file__).parent)) as started:
        yield started


@pytest.mark.parametrize("seed", range(max(1, KILLS // 50)))
def test_killed_at_any_moment(seed: int, forked: Forks, tmp_path: Path) -> None:
    """`FEDPRIV_KILLS` times, 50 in a ledger: what was sent is booked, at most one line more for every kill, the state
    is whole, and the next start works.
    """
    network = Machines(tmp_path, 1, None)
    policy = network.policy(0).read_text()
    network.policy(0).write_text(policy.replace("100.0", "1.0e+9").replace("50.0", "1.0e+9"))
    node = Node(0, network.policy(0), network.data(0))
    overrides = network.overrides()
    config, configs = _config_of(context(0, {}, overrides)), tmp_path / "configs"
    with network.ledger(0).seen() as ledger:
        configs.write_bytes(pickle.dumps((config, node.effective(config, ledger.declared()))))
    rng, sent, unsent, span, pipe = random.Random(seed), 0, 0, 0.05, tmp_path / "pipe"
    os.mkfifo(pipe)
    for kill in range(50):
        child = forked.start(RELEASE, str(node.policy_file), str(node.data), str(configs), str(pipe), folder=tmp_path)
        read = os.open(pipe, os.O_RDONLY)  # waits until the child opens it
        assert os.read(read, 1) == b"b"
        began, wait = time.monotonic(), rng.random() * 5 * span
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
        waited = time.monotonic() - began
        assert forked.wait(child) == -signal.SIGKILL, "the release path must not fail"
        with os.fdopen(read, "rb") as told:
            new = len(told.read())
        sent += new
        span = 0.7 * span + 0.3 * waited / new if new else span  # of one release, on this machine
        with node.answering(config, REQUEST) as gate:
            lines, memory = len(gate.ledger.releases()), read_memory(gate)
        assert sent <= lines <= sent + kill + 1
        assert memory.account.next_sequence <= lines, "the ledger is never behind the state"
        if sent:
            assert memory.state is not None and memory.answer is not None
            assert torch.equal(memory.state["last"], memory.answer.release), "state and answer are of one release"
        unsent = lines - sent
    assert sent > 50 and unsent > 0, "kills must hit the middle of the path"
