"""The ledger survives a kill at any byte, equal charges of a round share a line, every line names what comes before it
(a data folder's ledger: test_data_ledger), and an account survives storage.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from processes import wait_until

from fedpriv.common.chain import before, broken_at, chain_of, followed
from fedpriv.privacy import ledger as ledger_module
from fedpriv.privacy.composition import make_history, verify
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    EVERY_CLIENT,
    SECURE_SUM,
    Account,
    Entries,
    Entry,
    Event,
    Gaussian,
    Laplace,
    NoBound,
    PoissonGaussian,
    RandomisedResponse,
    Threat,
    account_from_bytes,
    account_to_bytes,
    entry_to_json,
)
from fedpriv.privacy.ledger import BROKEN, MOST_NESTED, TORN, UNKNOWN_CLIENT, LedgerFile, read_line, to_lines
from fedpriv.report.reading import count_releases

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
    assert not list(ledger.path.parent.glob(".ledger.jsonl.*"))


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


# --- lines of a round ----------------------------------------------------------------------------------------------

ONE, TWO = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0), Gaussian(threat=SECURE_SUM, multiplier=3.0)
EVENTS: tuple[Event, ...] = (
    ONE,
    Gaussian(threat=CLIENT_TO_SERVER, multiplier=1),  # equal, and another text
    TWO,
    Laplace(threat=CLIENT_TO_SERVER, multiplier=math.inf, count=4),
    RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.1, dimension=7),
)


@some.composite
def entries(draw: some.DrawFn) -> Entry:
    event = draw(some.sampled_from(EVENTS))
    spent = draw(some.sampled_from([None, *(other for other in EVENTS if other.threat == event.threat)]))
    numbers = [draw(some.integers(*ends)) for ends in ((0, 3), (EVERY_CLIENT, 12), (0, 3), (0, 1))]
    return Entry(*numbers, event, spent, draw(some.booleans()))


def ordered(given: Sequence[Entry]) -> list[Entry]:
    return sorted(given, key=lambda entry: entry.order)


def texts(given: Sequence[Entry]) -> list[str]:
    return [json.dumps(entry_to_json(entry)) for entry in given]


def of_a_round(clients: int = 100, number: int = 1, event: Event = ONE) -> list[Entry]:
    return [Entry(number, 3 * client, client % 3, 0, event) for client in range(clients)]


@settings(deadline=None)
@given(batches=some.lists(some.lists(entries(), max_size=12), max_size=4))
def test_what_is_written_is_read_in_the_same_order(tmp_path_factory: pytest.TempPathFactory, batches):
    folder = tmp_path_factory.mktemp("ledger")
    alone, together = (LedgerFile(folder / name, fsync=False) for name in ("alone.jsonl", "together.jsonl"))
    for batch in batches:
        alone.append(batch)
        together.append(batch, together=True)
    expected = [entry for batch in batches for entry in ordered(batch)]
    assert texts(alone.read().entries) == texts(together.read().entries) == texts(expected)
    assert together.read().torn == () and list(together.read().entries) == expected
    sizes = [file.path.stat().st_size if file.path.exists() else 0 for file in (together, alone)]
    assert sizes[0] <= sizes[1]


@settings(deadline=None)
@given(batch=some.lists(entries(), min_size=1, max_size=8), last=some.integers(0, 3))
def test_a_ledger_is_cut_back_by_rounds(tmp_path_factory: pytest.TempPathFactory, batch, last):
    ledger = LedgerFile(tmp_path_factory.mktemp("ledger") / "ledger.jsonl", fsync=False)
    ledger.append(batch, together=True)
    ledger.append(batch, together=True)  # what is kept of the first must not run into it
    ledger.cut_back(last)
    assert list(ledger.read().entries) == 2 * [entry for entry in ordered(batch) if entry.round <= last]


def test_a_round_of_equal_charges_is_one_readable_line():
    text = to_lines(of_a_round(4), together=True)
    assert text == (
        '{"round":1,"clients":[0,3,6,9],"sequences":[0,1,2,0],"attempt":0,"mechanism":"gaussian","count":1,'
        '"multiplier":1.0,"unit":"client","adjacency":"replace-one","observer":"server"}\n'
    )
    assert '"clients":[4,5],"sequence":2,' in to_lines([Entry(1, 4, 2, 0, ONE), Entry(1, 5, 2, 0, ONE)], True)
    assert to_lines(of_a_round(1), together=True) == to_lines(of_a_round(1), together=False)


@settings(deadline=None)
@given(
    alike=some.lists(
        some.tuples(
            some.lists(entries(), min_size=1, max_size=3), some.lists(some.integers(0, 9), min_size=1, unique=True)
        ),
        max_size=4,
    )
)
def test_clients_that_are_charged_alike_have_the_lines_that_each_would_have(alike):
    """One client's entries stand for all: in the lines, in the number and in the order of entries."""
    together, each = Entries(alike), [replace(e, client=c) for own, clients in alike for c in clients for e in own]
    assert list(together) == together == ordered(each) and len(together) == len(each)
    assert to_lines(together, together=True) == to_lines(each, together=True)
    assert to_lines(together, together=False) == to_lines(each, together=False)


def test_charges_of_one_place_keep_their_order_or_share_no_line(ledger):
    """Nothing but the order of lines tells two entries of one sequence apart, and a shared line would forget it."""
    both = [Entry(1, c, 0, 0, event) for c in range(30) for event in ((ONE, TWO) if c % 2 else (TWO, ONE))]
    ledger.append(both, together=True)
    assert list(ledger.read().entries) == both


def test_two_charges_of_each_client_are_two_lines_and_come_back_client_by_client():
    both = ordered([Entry(1, c, 2 * c % 4 + s, 0, e) for c in range(50) for s, e in enumerate((ONE, TWO))])
    lines = to_lines(both, together=True).splitlines()
    assert len(lines) == 2 and ["with_previous" in line for line in lines] == [False, True]
    shuffled = of_a_round(4)[::-1]  # entries that share nothing are lines of their own, in the ledger's order
    different = [
        Entry(1, entry.client, 0, 0, Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0 + entry.client))
        for entry in shuffled
    ]
    assert to_lines(different, together=True) == to_lines(different, together=False)


@pytest.mark.parametrize("torn_counts_as", [None, ONE], ids=["no bound", "a price"])
def test_a_line_cut_at_any_byte_counts_as_spent_for_all_whom_it_may_have_named(tmp_path: Path, torn_counts_as):
    whole = of_a_round(12, number=17)
    line = to_lines(whole, together=True).encode()
    path = tmp_path / "ledger.jsonl"
    for length in range(1, len(line) - 1):
        path.write_bytes(line[:length])
        ledger = LedgerFile(path, fsync=False, torn_counts_as=torn_counts_as)
        ledger.append([Entry(18, 5, 0, 0, ONE)], together=True)
        found = ledger.read()
        assert found.torn == (1,) and found.entries[-1] == Entry(18, 5, 0, 0, ONE)
        lost = found.entries[:-1]
        named = [entry.client for entry in lost if entry.client != UNKNOWN_CLIENT]
        assert lost and named == [entry.client for entry in whole][: len(named)]  # never a cut-off number
        assert {entry.round for entry in lost} <= {0, 17}
        assert ("]" in line[:length].decode()) == (len(named) == len(whole)) == (lost[-1].client != UNKNOWN_CLIENT)
        if torn_counts_as is None:
            assert {entry.event for entry in lost} == {NoBound(threat=CLIENT_TO_SERVER, reason=TORN)}
            assert verify(found.by_client(), 1e-5).maximum == math.inf
        elif lost[-1].client == UNKNOWN_CLIENT and named:  # others may be missing, of whom nobody knows
            assert isinstance(lost[-1].event, NoBound)
        elif named:
            assert {entry.event for entry in lost} == {torn_counts_as}


def test_a_torn_first_line_does_not_take_the_second_with_it(tmp_path: Path):
    both = ordered([Entry(1, c, s, 0, e) for c in range(9) for s, e in enumerate((ONE, TWO))])
    first, second = to_lines(both, together=True).splitlines()
    (tmp_path / "ledger.jsonl").write_text(first[:-20] + "\n" + second + "\n")
    found = LedgerFile(tmp_path / "ledger.jsonl", fsync=False).read()
    assert found.torn == (1,) and found.entries[-9:] == tuple(entry for entry in both if entry.event == TWO)


@pytest.mark.parametrize(
    "changed",
    [
        {"clients": []},
        {"clients": [1, 2], "sequences": [0]},
        {"clients": [1, "2"]},
        {"clients": [1, 2.0]},
        {"clients": [1, 1, True]},
        {"clients": 3},
        {"clients": "12"},
        {"clients": [1, 2], "client": 1},
        {"clients": [1, 2], "with_previous": 1},
        {"clients": [1, -3]},
        {"clients": [1, 2], "further": 0},
    ],
)
def test_a_line_that_says_nothing_clear_is_torn(changed):
    good = {key: value for key, value in entry_to_json(Entry(1, 1, 0, 0, ONE)).items() if key != "client"}
    assert read_line(json.dumps(good | {"clients": [1, 2]}).encode()) is not None
    assert read_line(json.dumps(good | changed).encode()) is None
    assert read_line(b"[1]") is None and read_line(b"3") is None


@pytest.mark.parametrize(("inside", "is_read"), [(MOST_NESTED - 2, True), (MOST_NESTED - 1, False), (10**6, False)])
def test_a_line_of_many_lists_is_torn_and_never_parsed(
    inside: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, real = [], ledger_module.row_of
    monkeypatch.setattr(ledger_module, "row_of", lambda text: parsed.append(text) or real(text))
    event = NoBound(threat=CLIENT_TO_SERVER, reason="[" * inside)
    line = json.dumps(entry_to_json(Entry(1, 1, 0, 0, event))).encode().replace(b'"client": 1', b'"clients": [1, 2]')
    assert (read_line(line) is not None) == bool(parsed) == is_read


def test_the_report_counts_releases_of_both_kinds_of_line(tmp_path: Path):
    ledger = of_a_round(30) + of_a_round(20, number=2) + [Entry(2, 0, 9, 0, TWO), Entry(2, 7, 9, 0, TWO)]
    found = []
    for together in (False, True):
        path = tmp_path / f"{together}.jsonl"
        LedgerFile(path, fsync=False).append(ledger, together)
        found.append(count_releases(path))
    assert found[0] == found[1]
    assert [(row.total, row.clients, row.most_by_one_client) for row in found[0]] == [(50, 30, 2), (2, 2, 1)]
    assert found[1][0].parameters == {"multiplier": (1.0, 1.0)}


def test_one_line_of_a_round_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "ledger.jsonl"
    LedgerFile(path, fsync=False).append(of_a_round(10_000), together=True)
    calls = []
    real = ledger_module.row_of
    monkeypatch.setattr(ledger_module, "row_of", lambda text: calls.append(1) or real(text))
    assert len(LedgerFile(path, fsync=False).read().entries) == 10_000 and len(calls) == 1


# --- the chain -----------------------------------------------------------------------------------------------------

EVENT = Gaussian(threat=CLIENT_TO_SERVER, multiplier=4.0)
Lines = list[bytes]


def of_three(number: int, clients: int = 3) -> list[Entry]:
    return [Entry(number, client, number, 0, EVENT) for client in range(clients)]


@pytest.fixture
def chained(tmp_path: Path) -> LedgerFile:
    made = LedgerFile(tmp_path / "ledger.jsonl", fsync=False)
    for number in range(1, 5):
        made.append(of_three(number), together=True)
    return made


def lines_of(chained: LedgerFile) -> Lines:
    return chained.path.read_bytes().splitlines()


def epsilon(chained: LedgerFile) -> float:
    return verify(chained.read().by_client(), 1e-5).maximum


def test_each_line_names_the_hash_of_all_before_it(chained: LedgerFile) -> None:
    lines, chain = lines_of(chained), ""
    for line in lines:
        assert before(line) == json.loads(line)["before"] == chain
        chain = followed(chain, line)
    assert chained.head() == {"count": 4, "head": chain} and chain == chain_of(lines)
    assert chained.read().broken is None and epsilon(chained) < 10


CHANGES: dict[str, Callable[[Lines], Lines]] = {
    "the first is gone": lambda lines: lines[1:],
    "one is gone": lambda lines: [lines[0], *lines[2:]],
    "two have changed places": lambda lines: [lines[0], lines[2], lines[1], lines[3]],
    "one stands twice": lambda lines: [*lines[:2], *lines[1:]],
    "one has changed": lambda lines: [lines[0], lines[1].replace(b"4.0", b"9.0"), *lines[2:]],
    "one is another's": lambda lines: [*lines, lines[0]],
    "one has lost its name": lambda lines: [*lines[:3], lines[3][: lines[3].index(b',"before"')] + b"}"],
    "one is unreadable": lambda lines: [lines[0], lines[1][:-9], *lines[2:]],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_makes_the_total_infinite(chained: LedgerFile, change: Callable[[Lines], Lines]) -> None:
    chained.path.write_bytes(b"".join(line + b"\n" for line in change(lines_of(chained))))
    found = chained.read()
    assert found.broken is not None and epsilon(chained) == math.inf
    assert BROKEN in {getattr(entry.event, "reason", "") for entry in found.entries}


def test_a_cut_end_has_another_head(chained: LedgerFile) -> None:
    head = chained.head()
    chained.path.write_bytes(b"".join(line + b"\n" for line in lines_of(chained)[:-1]))
    assert chained.read().broken is None and chained.head() != head


def test_a_torn_line_is_in_the_chain(chained: LedgerFile) -> None:
    chained.path.write_bytes(chained.path.read_bytes()[:-30])
    again = LedgerFile(chained.path, fsync=False)
    again.append(of_three(5))
    again.append(of_three(6))
    found = again.read()
    assert found.torn == (4,) and found.broken is None
    lines = lines_of(again)
    again.path.write_bytes(b"".join(line + b"\n" for line in [*lines[:3], *lines[4:]]))
    assert again.read().broken == 4


def test_a_ledger_without_a_chain_goes_on(chained: LedgerFile) -> None:
    old = [line[: line.index(b',"before"')] + b"}" for line in lines_of(chained)]
    chained.path.write_bytes(b"".join(line + b"\n" for line in old))
    assert chained.read().broken is None and before(old[0]) is None
    newer = LedgerFile(chained.path, fsync=False)
    newer.append(of_three(5), together=True)
    assert newer.read().broken is None and before(lines_of(newer)[-1]) == chain_of(old)
    newer.path.write_bytes(b"".join(line + b"\n" for line in lines_of(newer)[1:]))
    assert newer.read().broken == 4


def test_what_is_cut_back_keeps_a_chain_unless_it_had_none(chained: LedgerFile) -> None:
    chained.append(of_three(2))  # late ones
    chained.append(of_three(5))
    lines = lines_of(chained)
    chained.cut_back(2)
    assert chained.read().broken is None and [entry.round for entry in chained.read().entries] == [1] * 3 + [2] * 6
    chained.append(of_three(3))
    assert chained.read().broken is None
    chained.path.write_bytes(b"".join(line + b"\n" for line in [lines[0], *lines[2:]]))
    chained.cut_back(2)
    assert chained.read().broken is not None


def test_another_process_goes_on_where_the_first_ended(chained: LedgerFile) -> None:
    LedgerFile(chained.path, fsync=False).append(of_three(5))
    chained.append(of_three(6))  # its own end is older than the file
    assert chained.read().broken is None and broken_at([], []) is None


# --- accounts ----------------------------------------------------------------------------------------------------


@given(batch=some.lists(entries(), max_size=12))
def test_an_account_counts_releases_and_survives_its_bytes(batch):
    """Equal releases are one with a count; bounds and what was realised are kept apart, and so are threats."""
    account = Account(batch)
    again = account_from_bytes(account_to_bytes(account))
    assert again == account and again.next_sequence == max((one.sequence + 1 for one in batch), default=0)
    for threat in (None, CLIENT_TO_SERVER, SECURE_SUM):
        left = [one.spent for one in batch if threat in (None, one.event.threat)]
        assert make_history(again.spent(threat)) == make_history(left) if threat else len(again.spent()) <= len(left)
    for bound in (lambda one: one.event, lambda one: one.spent):
        stored, given = ([(bound(one), one.adaptive) for one in left] for left in (again.entries(), batch))
        assert _counted(stored) == _counted(given)


def _counted(charges):
    found = Counter()
    for event, adaptive in charges:
        found[replace(event, count=1), adaptive] += event.count
    return found


def test_a_broken_account_is_never_an_empty_one():
    content = account_to_bytes(Account(ENTRIES))
    for length in range(len(content)):
        with pytest.raises(ValueError):
            account_from_bytes(content[:length])
    for broken in (b"{}", b"[]", b"null", content.replace(b'"times":1', b'"times":0'), b"\xff\xfe"):
        with pytest.raises(ValueError):
            account_from_bytes(broken)
