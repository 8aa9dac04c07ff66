"""The ledger survives a kill at any byte, and an account survives storage."""

import math
import os
import signal
import subprocess
import sys

import pytest
from processes import wait_until

from fedpriv.privacy.composition import verify
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    Account,
    Entry,
    Gaussian,
    NoBound,
    PoissonGaussian,
    Threat,
    account_from_bytes,
    account_to_bytes,
)
from fedpriv.privacy.ledger import TORN, UNKNOWN_CLIENT, LedgerFile

EXAMPLE = Threat("example", "add-or-remove-one", "server")


def gaussian(multiplier=1.0, count=1):
    return Gaussian(threat=CLIENT_TO_SERVER, multiplier=multiplier, count=count)


def entry(round_number, client=0, sequence=0, attempt=0, event=None, **more):
    return Entry(round_number, client, sequence, attempt, event or gaussian(), **more)


ENTRIES = [entry(1, 0), entry(1, 11, event=gaussian(0.25)), entry(2, 0, 1, realised=gaussian(3.0)), entry(3, 11, 1, 2)]


@pytest.fixture(params=[True, False], ids=["fsync", "plain"])
def ledger(tmp_path, request):
    return LedgerFile(tmp_path / "ledger.jsonl", fsync=request.param)


def test_append_and_read(ledger):
    assert ledger.read().entries == () and not ledger.path.exists()
    ledger.append([])
    ledger.append(ENTRIES[:2])
    ledger.append(ENTRIES[2:])
    found = ledger.read()
    assert found.entries == tuple(ENTRIES) and found.torn == ()
    assert found.by_client() == {0: [ENTRIES[0], ENTRIES[2]], 11: [ENTRIES[1], ENTRIES[3]]}


def test_one_append_is_sorted_and_one_write(ledger, monkeypatch):
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    shuffled = [entry(2, 1), entry(1, 5), entry(1, 2, 1), entry(1, 2, 0, 1), entry(1, 2, 0, 0)]
    ledger.append(shuffled)
    assert len(writes) == 1
    assert list(ledger.read().entries) == [shuffled[4], shuffled[3], shuffled[2], shuffled[1], shuffled[0]]


def test_equal_entries_are_never_merged(ledger):
    ledger.append([entry(1)])
    ledger.append([entry(1)])
    assert len(ledger.read().entries) == 2


def test_a_kill_at_any_byte_counts_as_spent_and_never_breaks_the_next_append(tmp_path):
    whole = LedgerFile(tmp_path / "whole.jsonl", fsync=False)
    whole.append(ENTRIES)
    content = whole.path.read_bytes()
    ends = [index for index, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        torn = LedgerFile(tmp_path / "torn.jsonl", fsync=False)
        torn.path.write_bytes(content[:length])
        complete = sum(end <= length for end in ends)  # a line that lacks nothing but its end is complete
        partial = length > 0 and length not in ends and content[length - 1 : length] != b"\n"
        found = torn.read()
        assert found.entries[:complete] == tuple(ENTRIES[:complete])
        assert found.torn == ((complete + 1,) if partial else ())
        assert len(found.entries) == complete + partial
        if partial:
            lost = found.entries[-1]
            assert lost.event == NoBound(threat=CLIENT_TO_SERVER, reason=TORN)
            # what can be read of it is never a cut-off number
            assert lost.client in (UNKNOWN_CLIENT, ENTRIES[complete].client)
            assert lost.round in (0, ENTRIES[complete].round)
            assert verify(found.by_client(), 1e-5).maximum == math.inf
        torn.append([entry(9, 4)])
        again = torn.read()
        assert again.entries[: len(found.entries)] == found.entries and again.entries[-1] == entry(9, 4)
        assert again.torn == found.torn
        torn.path.unlink()


def test_torn_lines_are_charged_at_the_price_that_a_deployment_sets(tmp_path):
    price = gaussian(0.5)
    ledger = LedgerFile(tmp_path / "ledger.jsonl", fsync=True, torn_counts_as=price)
    ledger.append(ENTRIES[:1])
    with open(ledger.path, "ab") as file:
        file.write(b'{"round":7,"client":0,"seq')
    ledger.append(ENTRIES[1:2])
    found = ledger.read()
    assert found.entries == (ENTRIES[0], Entry(7, 0, 0, 0, price), ENTRIES[1]) and found.torn == (2,)


def test_torn_lines_make_every_threat_infinite(tmp_path):
    ledger = LedgerFile(tmp_path / "ledger.jsonl", fsync=False)
    ledger.append([entry(1, event=PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.1))])
    with open(ledger.path, "ab") as file:
        file.write(b"\0\0\0")  # what some file systems leave after a power failure
    assert verify(ledger.read().by_client(), 1e-5, threat=EXAMPLE).maximum == math.inf


def test_cut_back_for_a_resumed_run(ledger):
    ledger.append(ENTRIES)
    with open(ledger.path, "ab") as file:
        file.write(b'{"round":3,"cli')
    assert ledger.cut_back(2) == 2  # round 3 and the torn line
    assert ledger.read().entries == tuple(ENTRIES[:3]) and ledger.read().torn == ()
    before = ledger.path.stat().st_ino
    assert ledger.cut_back(2) == 0 and ledger.path.stat().st_ino == before
    assert ledger.cut_back(0) == 3 and ledger.read().entries == ()
    assert not list(ledger.path.parent.glob("*.new"))


def test_cut_back_keeps_torn_lines_that_are_not_the_tail(ledger):
    ledger.append(ENTRIES[:1])
    with open(ledger.path, "ab") as file:
        file.write(b'{"round":1,"cli')
    ledger.append(ENTRIES[1:])
    ledger.cut_back(2)
    assert ledger.read().torn == (2,) and ledger.read().entries[-1] == ENTRIES[2]


def test_a_full_disk_stops_the_release(ledger, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
    with pytest.raises(OSError, match="part of a ledger entry"):
        ledger.append(ENTRIES[:1])
    monkeypatch.undo()
    ledger.append(ENTRIES[1:2])
    assert ledger.read().torn == (1,) and ledger.read().entries[-1] == ENTRIES[1]


def test_a_process_killed_while_appending(tmp_path):
    code = (
        "import sys; from fedpriv.privacy.ledger import LedgerFile\n"
        "from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Gaussian\n"
        "ledger, event = LedgerFile(sys.argv[1], fsync=False), Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)\n"
        "for number in range(1, 10**9): ledger.append([Entry(number, 3, number, 0, event)])\n"
    )
    path = tmp_path / "ledger.jsonl"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    wait_until(lambda: path.exists() and path.stat().st_size > 40_000, process.pid, 0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ledger = LedgerFile(path, fsync=False)
    found = ledger.read()
    rounds = [item.round for item in found.entries if item.event == gaussian()]
    assert rounds == list(range(1, len(rounds) + 1)) and len(rounds) > 100 and len(found.torn) <= 1
    ledger.append([entry(1)])
    assert ledger.read().entries[-1] == entry(1)


# --- accounts ----------------------------------------------------------------------------------------------------


def test_account_counts_equal_releases():
    account = Account([entry(1), entry(2, sequence=1), entry(2, sequence=2, event=gaussian(2.0, count=3))])
    assert account.spent() == [gaussian(count=2), gaussian(2.0, count=3)]
    assert account.next_sequence == 3
    account.charge(entry(5, sequence=3, event=gaussian(2.0, count=3)))
    assert account.spent() == [gaussian(count=2), gaussian(2.0, count=6)]


def test_account_keeps_bound_and_realised_apart():
    account = Account([entry(1, realised=gaussian(4.0)), entry(2, realised=gaussian(4.0)), entry(3, adaptive=True)])
    assert account.spent() == [gaussian(4.0, count=2), gaussian()]
    stored = account.entries()
    assert [item.event for item in stored] == [gaussian(count=2), gaussian()]
    assert [item.adaptive for item in stored] == [False, True]
    bound = verify({0: stored[:1]}, 1e-5)
    assert bound.maximum == verify({0: [entry(1), entry(2)]}, 1e-5).maximum > bound.spent_so_far


def test_account_by_threat():
    sampled = PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.1)
    account = Account([entry(1), entry(1, sequence=1, event=sampled)])
    assert account.spent(EXAMPLE) == [sampled] and account.spent(CLIENT_TO_SERVER) == [gaussian()]


def test_account_round_trip():
    account = Account([*ENTRIES, entry(4, adaptive=True), entry(5, event=NoBound(threat=CLIENT_TO_SERVER, reason="x"))])
    again = account_from_bytes(account_to_bytes(account))
    assert again == account and again.spent() == account.spent() and again.next_sequence == account.next_sequence
    assert account_from_bytes(account_to_bytes(Account())) == Account()


def test_a_broken_account_is_never_an_empty_one():
    content = account_to_bytes(Account(ENTRIES))
    for length in range(len(content)):
        with pytest.raises(ValueError):
            account_from_bytes(content[:length])
    for broken in (b"{}", b"[]", b"null", content.replace(b'"times":1', b'"times":0'), b"\xff\xfe"):
        with pytest.raises(ValueError):
            account_from_bytes(broken)
