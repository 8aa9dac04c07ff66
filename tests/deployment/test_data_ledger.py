"""The data folder's ledger: what a crash leaves, what a copy put back is worth, who may hold it, and its account."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import MACHINES, Machines, asker, context
from forked import TESTS, Forks, forks

from fedpriv.app import _config_of
from fedpriv.client.build import make_client
from fedpriv.client.memory import Answer, read_memory
from fedpriv.common.chain import before, chain_of
from fedpriv.common.errors import LedgerRefused
from fedpriv.common.messages import RUN, Refusal, Request
from fedpriv.deployment import data_ledger
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.declaration import Declared
from fedpriv.deployment.gate import Node
from fedpriv.deployment.policy import Booked, Spent
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Event, Gaussian, RandomisedResponse

DECLARED = Declared(12, ("a", "b"), 8, 1)
EVENT = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
EVENTS = (
    EVENT,
    Gaussian(threat=CLIENT_TO_SERVER, multiplier=2.5),
    RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.1, dimension=10),
)
REQUEST = Request(1, 0, {RUN: 32 * "a"})
KILLS = int(os.environ.get("FEDPRIV_KILLS", "50"))


def booked(server_round: int = 1, number: int | None = None, *events: Event) -> Booked:
    sequence = server_round if number is None else number
    return Booked(tuple(Entry(server_round, 0, sequence, 0, one) for one in events or (EVENT,)), CLIENT_TO_SERVER)


@pytest.fixture
def ledger(tmp_path: Path) -> DataLedger:
    (tmp_path / "data").mkdir()
    return DataLedger.create(tmp_path / "data", tmp_path / "kept" / "counter.json", DECLARED)


@pytest.fixture
def three(ledger: DataLedger) -> DataLedger:
    """With three messages."""
    release(ledger, 1, 2, 3)
    return ledger


def again(ledger: DataLedger) -> DataLedger:
    """As another process finds it."""
    return DataLedger(ledger.folder.parent, ledger.counter)


def account(ledger: DataLedger) -> Path:
    return ledger.folder / "account.json"


def opened(ledger: DataLedger) -> int:
    """How many messages a process that starts now reads."""
    with again(ledger).held() as found:
        return len(found.releases())


def release(ledger: DataLedger, *messages: Booked | int, run: str = "run") -> None:
    for message in messages:
        with ledger.held():
            ledger.append(message if isinstance(message, Booked) else booked(message), run)
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
    synced.clear()
    (ledger.folder / "data").mkdir()
    DataLedger.create(ledger.folder / "data", ledger.folder / "new" / "one" / "counter.json", DECLARED)
    assert {".fedpriv", "new", "one"} <= set(synced), "names of new folders too"


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


def test_of_two_copies_at_once_one_lets_a_message_out(
    ledger: DataLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a lock of its own, and both are what the counter attests when their messages come."""
    monkeypatch.setattr("fedpriv.deployment.data_ledger.PATIENCE", 0.1)
    shutil.copytree(ledger.folder.parent, tmp_path / "copy")
    copy = DataLedger(tmp_path / "copy", ledger.counter)
    with ledger.held():
        with pytest.raises(LedgerRefused, match="another process"):
            release(copy, 1)
        ledger.append(booked(1), "run")
        ledger.confirm()
    with pytest.raises(LedgerRefused, match="older copy"):
        release(copy, 1)


def test_a_counter_that_moved_into_the_data_folder_is_refused(ledger: DataLedger) -> None:
    """One backup would restore both, and what was spent since would be forgotten."""
    inside = ledger.folder.parent / "counter.json"
    shutil.copy(ledger.counter, inside)
    with pytest.raises(LedgerRefused, match="outside the data folder"):
        opened(DataLedger(ledger.folder.parent, inside))


def test_one_process_at_a_time(ledger: DataLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.deployment.data_ledger.PATIENCE", 0.1)
    with ledger.held(), pytest.raises(LedgerRefused, match="another process"):
        opened(ledger)
    assert opened(ledger) == 0


# --- the chain ----------------------------------------------------------------------------------------------------


def test_a_nodes_lines_name_the_counters_chain(three: DataLedger) -> None:
    lines = three.path.read_bytes().splitlines()
    assert [before(line) for line in lines] == [None, *(chain_of(lines[:number]) for number in (1, 2, 3))]
    assert three.head()["chain"] == chain_of(lines) and three.head()["lines"] == 4


def test_lines_that_do_not_follow_are_refused_whatever_the_counter_says(three: DataLedger) -> None:
    lines = three.path.read_bytes().splitlines()
    kept = [lines[0], *lines[2:]]
    three.path.write_bytes(b"".join(line + b"\n" for line in kept))
    head = three.head() | {"bytes": three.path.stat().st_size, "lines": 3, "chain": chain_of(kept)}
    three.counter.write_text(json.dumps(head))
    with pytest.raises(LedgerRefused, match="line 2 does not follow"), three.held():
        pass


def test_a_nodes_ledger_of_before_goes_on(three: DataLedger) -> None:
    old = [line[: line.rindex(b', "before"')] + b"}" if before(line) is not None else line
           for line in three.path.read_bytes().splitlines()]  # fmt: skip
    three.path.write_bytes(b"".join(line + b"\n" for line in old))
    head = {"ledger": three.head()["ledger"], "bytes": three.path.stat().st_size, "chain": chain_of(old)}
    three.counter.write_text(json.dumps(head))
    release(three, 4)
    with three.held(thorough=True):
        assert len(three.releases()) == 4
    assert three.head()["lines"] == 5 and before(three.path.read_bytes().splitlines()[-1]) == chain_of(old)


# --- the running account ------------------------------------------------------------------------------------------


@pytest.fixture
def whole_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever the ledger is read from its first line."""
    reads: list[int] = []
    for name in ("_all", "_rows"):
        real = getattr(DataLedger, name)
        monkeypatch.setattr(DataLedger, name, lambda self, real=real: reads.append(1) or real(self))
    return reads


# --- what it says ------------------------------------------------------------------------------------------------


def test_a_message_reads_no_line_of_the_ledger(
    tmp_path: Path, whole_reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Machines(tmp_path, 1)
    ask = asker(network, network.overrides("num_rounds=4"))
    for server_round in range(1, 5):
        whole_reads.clear()
        assert not ask(server_round).has_error()
        assert not whole_reads
    assert network.command("status", 0) == 0 and whole_reads, "a person's command reads all of it"
    whole_reads.clear()
    monkeypatch.setattr("fedpriv.deployment.bundles.guard_bundles", lambda *given: sys.exit("before the SuperLink"))
    with pytest.raises(SystemExit, match="before the SuperLink"):
        network.command("run", 0, "superlink=127.0.0.1:1", f"credentials={tmp_path}", "client=0")
    assert whole_reads, "and so does a node's start"


@pytest.mark.parametrize("seed", range(3))
def test_it_says_what_the_ledger_says(seed: int, three: DataLedger, whole_reads: list[int]) -> None:
    rng, known = random.Random(seed), {}
    for number in range(40):
        run, server_round = rng.choice("ab") * 32, rng.randrange(1, 6)
        message = booked(server_round, number, *rng.choices(EVENTS, k=rng.randrange(1, 3)))
        release(again(three), message, run=run)
        known.setdefault((run, server_round), []).append(message.anywhere)
    whole_reads.clear()
    with again(three).held() as found:
        for (run, server_round), messages in known.items():
            whole_reads.clear()
            assert [one.anywhere for one in found.of_round(run, server_round)] == messages
            assert bool(whole_reads) == (server_round < max(number for name, number in known if name == run))
        whole_reads.clear()
        assert found.of_round("a" * 32, 99) == found.of_round("c" * 32, 1) == []
        assert found.num_entries() == 3 + sum(len(one.entries) for of_round in known.values() for one in of_round)
        quick, declared, last = found.spent(), found.declared(), found.last_release()
        assert not whole_reads
        assert quick == Spent(found.releases()) and quick.messages == 43
        assert quick.totals(CLIENT_TO_SERVER) == Spent(found.releases()).totals(CLIENT_TO_SERVER)
    with again(three).held(thorough=True) as found:
        assert (found.spent(), found.declared(), found.last_release()) == (quick, declared, last)


def test_equal_prices_are_counted_and_not_listed(three: DataLedger) -> None:
    kept = json.loads(account(three).read_bytes().partition(b"\n")[2])
    assert [times for _, times in kept["prices"]] == [3] and kept["rounds"] == {"run": [3, [0]]}


def test_the_account_of_earlier_versions_goes_when_a_new_one_is_written(three: DataLedger) -> None:
    older = account(three).with_suffix(".sqlite")
    older.write_bytes(b"SQLite format 3")
    release(again(three), booked(4, 4, EVENTS[0]))
    assert not older.exists() and account(three).exists()


# --- what is tied to nothing -------------------------------------------------------------------------------------


def _older_account(ledger: DataLedger, kept: Path) -> None:
    shutil.copy2(kept / "account.json", account(ledger))


def _missing(ledger: DataLedger, kept: Path) -> None:
    account(ledger).unlink()


def _garbage(ledger: DataLedger, kept: Path) -> None:
    account(ledger).write_bytes(os.urandom(5000))


def _empty(ledger: DataLedger, kept: Path) -> None:
    account(ledger).write_bytes(b"")


def _cut(ledger: DataLedger, kept: Path) -> None:
    account(ledger).write_bytes(account(ledger).read_bytes()[:-100])


def _fewer(ledger: DataLedger, kept: Path) -> None:
    text = account(ledger).read_bytes()
    assert b", 4]" in text
    account(ledger).write_bytes(text.replace(b", 4]", b", 1]"))


def _another_format(ledger: DataLedger, kept: Path) -> None:
    content = account(ledger).read_bytes().partition(b"\n")[2].replace(b'"format": 6', b'"format": 5')
    account(ledger).write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def _deep(ledger: DataLedger, kept: Path) -> None:
    content = b"[" * 10**5
    account(ledger).write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def _ledger_touched(ledger: DataLedger, kept: Path) -> None:
    """The same bytes in another file, with the same times: what a copy that was put back is."""
    path = ledger.folder / "ledger.jsonl"
    shutil.copy2(path, kept / "same")
    (kept / "same").replace(path)


@pytest.mark.parametrize(
    "change", [_older_account, _missing, _garbage, _empty, _cut, _fewer, _another_format, _deep, _ledger_touched]
)
def test_what_is_not_tied_to_the_ledger_is_made_anew(
    change: Callable[[DataLedger, Path], None], three: DataLedger, tmp_path: Path, whole_reads: list[int]
) -> None:
    kept = tmp_path / "copy"
    shutil.copytree(three.folder, kept)
    release(three, booked(4, 4, EVENTS[1]), booked(5, 5, EVENTS[0]))
    change(three, kept)
    whole_reads.clear()
    with again(three).held() as found:
        assert whole_reads
        assert found.spent() == Spent(found.releases()) and found.spent().messages == 5
        assert len(found.of_round("run", 4)) == 1
    release(again(three), booked(6, 6, EVENTS[0]))
    whole_reads.clear()
    with again(three).held() as found:
        assert found.spent().messages == 6 and not whole_reads


def _cheaper_at_the_old_time(ledger: DataLedger, kept: Path) -> None:
    """Other prices of the same length, with the old times of change."""
    path = ledger.folder / "ledger.jsonl"
    before = path.stat()
    path.write_text(path.read_text().replace('"multiplier": 1.0', '"multiplier": 9.0'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _older_together(ledger: DataLedger, kept: Path) -> None:
    """The whole folder, put back: the account agrees with the ledger, and neither with the counter."""
    shutil.rmtree(ledger.folder)
    shutil.copytree(kept, ledger.folder)


@pytest.mark.parametrize("change", [_cheaper_at_the_old_time, _older_together])
def test_no_account_makes_another_ledger_good(
    change: Callable[[DataLedger, Path], None], three: DataLedger, tmp_path: Path
) -> None:
    kept = tmp_path / "copy"
    shutil.copytree(three.folder, kept)
    release(three, booked(4, 4, EVENTS[1]))
    change(three, kept)
    with pytest.raises(LedgerRefused), again(three).held():
        pass


@pytest.mark.parametrize("step", ["write_atomic", "write"])
def test_killed_before_the_account_follows(step: str, three: DataLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the counter, and between counter and account."""

    class Killed(BaseException):
        pass

    def killed(*given: Any, **named: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(data_ledger if step == "write_atomic" else data_ledger.RunningAccount, step, killed)
        with pytest.raises(Killed):
            release(again(three), booked(4, 4, EVENTS[1]))
    with again(three).held() as found:
        assert found.spent().messages == 4 and found.spent() == Spent(found.releases())


def test_an_account_that_cannot_be_written_keeps_nobody_from_answering(three: DataLedger) -> None:
    account(three).unlink()
    account(three).mkdir()
    release(again(three), booked(4, 4, EVENTS[1]))
    with again(three).held() as found:
        assert found.spent().messages == 4 and len(found.of_round("run", 4)) == 1


def test_a_counter_without_a_chain_vouches_for_all_bytes(three: DataLedger) -> None:
    path = three.folder / "ledger.jsonl"
    content = path.read_bytes()
    counter = {"ledger": json.loads(three.counter.read_text())["ledger"], "bytes": len(content)}
    for digest, fits in ((hashlib.sha256(content).hexdigest(), True), ("0" * 64, False)):
        three.counter.write_text(json.dumps(counter | {"sha256": digest}))
        if not fits:
            with pytest.raises(LedgerRefused), again(three).held():
                pass
            continue
        with again(three).held() as found:
            assert found.spent().messages == 3
        assert "chain" in json.loads(three.counter.read_text())


# --- whose files these are ---------------------------------------------------------------------------------------


def test_what_a_node_writes_is_nobody_elses(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        network = Machines(tmp_path, 1)
        ask = asker(network, network.overrides())
        assert not ask(1).has_error()
        assert ask(1, exchange="nothing").has_error()  # a refusal is counted
    finally:
        os.umask(before)
    own = network.data(0) / ".fedpriv"
    written = {path for path in (own, *own.rglob("*")) if "cache" not in path.relative_to(own).parts}
    written |= {tmp_path / "counters", tmp_path / "counters" / "0.json"}
    assert {path.name for path in written} >= {"ledger.jsonl", "lock", "account.json", "refusals.json", "runs"}
    open_to_others = {path.name: oct(path.stat().st_mode) for path in written if path.stat().st_mode & 0o077}
    assert not open_to_others and stat.S_IMODE((own / "ledger.jsonl").stat().st_mode) == 0o600


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
