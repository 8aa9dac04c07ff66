"""The running account: what it says is what the ledger says, and what is not tied to the ledger says nothing."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployed import Machines, asker

from fedpriv.common.errors import LedgerRefused
from fedpriv.deployment import running_account
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.declaration import Declared
from fedpriv.deployment.policy import Booked, Spent
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Gaussian, RandomisedResponse

DECLARED = Declared(12, ("a", "b"), 8, 1)
EVENTS = (
    Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0),
    Gaussian(threat=CLIENT_TO_SERVER, multiplier=2.5),
    RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.1, dimension=10),
)


def booked(server_round: int, number: int, *events: Any) -> Booked:
    entries = tuple(Entry(server_round, 0, number, 0, event) for event in events)
    return Booked(entries, CLIENT_TO_SERVER)


def release(ledger: DataLedger, *messages: Booked, run: str = "run") -> None:
    for message in messages:
        with ledger.held():
            ledger.append(message, run)
            ledger.confirm()


@pytest.fixture
def ledger(tmp_path: Path) -> DataLedger:
    """With three messages."""
    (tmp_path / "data").mkdir()
    made = DataLedger.create(tmp_path / "data", tmp_path / "kept" / "counter.json", DECLARED)
    release(made, *(booked(number, number, EVENTS[0]) for number in range(1, 4)))
    return made


@pytest.fixture
def whole_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever the ledger is read from its first line."""
    reads: list[int] = []
    for name in ("_all", "_rows"):
        real = getattr(DataLedger, name)
        monkeypatch.setattr(DataLedger, name, lambda self, real=real: reads.append(1) or real(self))
    return reads


def again(ledger: DataLedger) -> DataLedger:
    """As another process finds it."""
    return DataLedger(ledger.folder.parent, ledger.counter)


def account(ledger: DataLedger) -> Path:
    return ledger.folder / "account.json"


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
def test_it_says_what_the_ledger_says(seed: int, ledger: DataLedger, whole_reads: list[int]) -> None:
    rng, known = random.Random(seed), {}
    for number in range(40):
        run, server_round = rng.choice("ab") * 32, rng.randrange(1, 6)
        message = booked(server_round, number, *rng.choices(EVENTS, k=rng.randrange(1, 3)))
        release(again(ledger), message, run=run)
        known.setdefault((run, server_round), []).append(message.anywhere)
    whole_reads.clear()
    with again(ledger).held() as found:
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
    with again(ledger).held(thorough=True) as found:
        assert (found.spent(), found.declared(), found.last_release()) == (quick, declared, last)


def test_equal_prices_are_counted_and_not_listed(ledger: DataLedger) -> None:
    kept = json.loads(account(ledger).read_bytes().partition(b"\n")[2])
    assert [times for _, times in kept["prices"]] == [3] and kept["rounds"] == {"run": [3, [0]]}


def test_the_account_of_earlier_versions_goes_when_a_new_one_is_written(ledger: DataLedger) -> None:
    older = account(ledger).with_suffix(".sqlite")
    older.write_bytes(b"SQLite format 3")
    release(again(ledger), booked(4, 4, EVENTS[0]))
    assert not older.exists() and account(ledger).exists()


# --- what is tied to nothing -------------------------------------------------------------------------------------


def _older(ledger: DataLedger, kept: Path) -> None:
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
    content = account(ledger).read_bytes().partition(b"\n")[2].replace(b'"format": 5', b'"format": 4')
    account(ledger).write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def _ledger_touched(ledger: DataLedger, kept: Path) -> None:
    """The same bytes in another file, with the same times: what a copy that was put back is."""
    path = ledger.folder / "ledger.jsonl"
    shutil.copy2(path, kept / "same")
    (kept / "same").replace(path)


@pytest.mark.parametrize("change", [_older, _missing, _garbage, _empty, _cut, _fewer, _another_format, _ledger_touched])
def test_what_is_not_tied_to_the_ledger_is_made_anew(
    change: Callable[[DataLedger, Path], None], ledger: DataLedger, tmp_path: Path, whole_reads: list[int]
) -> None:
    kept = tmp_path / "copy"
    shutil.copytree(ledger.folder, kept)
    release(ledger, booked(4, 4, EVENTS[1]), booked(5, 5, EVENTS[0]))
    change(ledger, kept)
    whole_reads.clear()
    with again(ledger).held() as found:
        assert found.spent() == Spent(found.releases()) and found.spent().messages == 5
        assert len(found.of_round("run", 4)) == 1
    assert whole_reads
    release(again(ledger), booked(6, 6, EVENTS[0]))
    whole_reads.clear()
    with again(ledger).held() as found:
        assert found.spent().messages == 6 and not whole_reads


def _cheaper(ledger: DataLedger, kept: Path) -> None:
    """Other prices of the same length, with the old times of change."""
    path = ledger.folder / "ledger.jsonl"
    before = path.stat()
    path.write_text(path.read_text().replace('"multiplier": 1.0', '"multiplier": 9.0'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _older_together(ledger: DataLedger, kept: Path) -> None:
    """The whole folder, put back: the account agrees with the ledger, and neither with the counter."""
    shutil.rmtree(ledger.folder)
    shutil.copytree(kept, ledger.folder)


@pytest.mark.parametrize("change", [_cheaper, _older_together])
def test_no_account_makes_another_ledger_good(
    change: Callable[[DataLedger, Path], None], ledger: DataLedger, tmp_path: Path
) -> None:
    kept = tmp_path / "copy"
    shutil.copytree(ledger.folder, kept)
    release(ledger, booked(4, 4, EVENTS[1]))
    change(ledger, kept)
    with pytest.raises(LedgerRefused), again(ledger).held():
        pass


@pytest.mark.parametrize("step", ["write_atomic", "write"])
def test_killed_before_the_account_follows(step: str, ledger: DataLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the counter, and between counter and account."""

    class Killed(BaseException):
        pass

    def killed(*given: Any, **named: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        where = (
            "fedpriv.deployment.data_ledger.write_atomic" if step == "write_atomic" else running_account.RunningAccount
        )
        patched.setattr(where, killed) if isinstance(where, str) else patched.setattr(where, "write", killed)
        with pytest.raises(Killed):
            release(again(ledger), booked(4, 4, EVENTS[1]))
    with again(ledger).held() as found:
        assert found.spent().messages == 4 and found.spent() == Spent(found.releases())


def test_an_account_that_cannot_be_written_keeps_nobody_from_answering(ledger: DataLedger) -> None:
    account(ledger).unlink()
    account(ledger).mkdir()
    release(again(ledger), booked(4, 4, EVENTS[1]))
    with again(ledger).held() as found:
        assert found.spent().messages == 4 and len(found.of_round("run", 4)) == 1


def test_a_counter_without_a_chain_vouches_for_all_bytes(ledger: DataLedger) -> None:
    path = ledger.folder / "ledger.jsonl"
    content = path.read_bytes()
    counter = {"ledger": json.loads(ledger.counter.read_text())["ledger"], "bytes": len(content)}
    for digest, fits in ((hashlib.sha256(content).hexdigest(), True), ("0" * 64, False)):
        ledger.counter.write_text(json.dumps(counter | {"sha256": digest}))
        if not fits:
            with pytest.raises(LedgerRefused), again(ledger).held():
                pass
            continue
        with again(ledger).held() as found:
            assert found.spent().messages == 3
        assert "chain" in json.loads(ledger.counter.read_text())


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
