"""Equal charges of a round share a line, and every reader finds one entry for each release, in the same order."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedpriv.privacy import ledger as ledger_module
from fedpriv.privacy.composition import verify
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    EVERY_CLIENT,
    SECURE_SUM,
    Entry,
    Event,
    Gaussian,
    Laplace,
    NoBound,
    RandomisedResponse,
    entry_to_json,
)
from fedpriv.privacy.ledger import MOST_NESTED, TORN, UNKNOWN_CLIENT, LedgerFile, read_line, to_lines
from fedpriv.report.reading import count_releases

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
