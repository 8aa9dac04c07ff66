"""The chain of a run's ledger: every line names what comes before it. A data folder's: test_data_ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpriv.common.chain import before, broken_at, chain_of, followed
from fedpriv.privacy.composition import verify
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Gaussian
from fedpriv.privacy.ledger import BROKEN, LedgerFile

EVENT = Gaussian(threat=CLIENT_TO_SERVER, multiplier=4.0)
Lines = list[bytes]


def entries(number: int, clients: int = 3) -> list[Entry]:
    return [Entry(number, client, number, 0, EVENT) for client in range(clients)]


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerFile:
    made = LedgerFile(tmp_path / "ledger.jsonl", fsync=False)
    for number in range(1, 5):
        made.append(entries(number), together=True)
    return made


def lines_of(ledger: LedgerFile) -> Lines:
    return ledger.path.read_bytes().splitlines()


def epsilon(ledger: LedgerFile) -> float:
    return verify(ledger.read().by_client(), 1e-5).maximum


def test_each_line_names_the_hash_of_all_before_it(ledger: LedgerFile) -> None:
    lines, chain = lines_of(ledger), ""
    for line in lines:
        assert before(line) == json.loads(line)["before"] == chain
        chain = followed(chain, line)
    assert ledger.head() == {"count": 4, "head": chain} and chain == chain_of(lines)
    assert ledger.read().broken is None and epsilon(ledger) < 10


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
def test_a_change_makes_the_total_infinite(ledger: LedgerFile, change: Callable[[Lines], Lines]) -> None:
    ledger.path.write_bytes(b"".join(line + b"\n" for line in change(lines_of(ledger))))
    found = ledger.read()
    assert found.broken is not None and epsilon(ledger) == math.inf
    assert BROKEN in {getattr(entry.event, "reason", "") for entry in found.entries}


def test_a_cut_end_has_another_head(ledger: LedgerFile) -> None:
    head = ledger.head()
    ledger.path.write_bytes(b"".join(line + b"\n" for line in lines_of(ledger)[:-1]))
    assert ledger.read().broken is None and ledger.head() != head


def test_a_torn_line_is_in_the_chain(ledger: LedgerFile) -> None:
    ledger.path.write_bytes(ledger.path.read_bytes()[:-30])
    again = LedgerFile(ledger.path, fsync=False)
    again.append(entries(5))
    again.append(entries(6))
    found = again.read()
    assert found.torn == (4,) and found.broken is None
    lines = lines_of(again)
    again.path.write_bytes(b"".join(line + b"\n" for line in [*lines[:3], *lines[4:]]))
    assert again.read().broken == 4


def test_a_ledger_without_a_chain_goes_on(ledger: LedgerFile) -> None:
    old = [line[: line.index(b',"before"')] + b"}" for line in lines_of(ledger)]
    ledger.path.write_bytes(b"".join(line + b"\n" for line in old))
    assert ledger.read().broken is None and before(old[0]) is None
    newer = LedgerFile(ledger.path, fsync=False)
    newer.append(entries(5), together=True)
    assert newer.read().broken is None and before(lines_of(newer)[-1]) == chain_of(old)
    newer.path.write_bytes(b"".join(line + b"\n" for line in lines_of(newer)[1:]))
    assert newer.read().broken == 4


def test_what_is_cut_back_keeps_a_chain_unless_it_had_none(ledger: LedgerFile) -> None:
    ledger.append(entries(2))  # late ones
    ledger.append(entries(5))
    lines = lines_of(ledger)
    ledger.cut_back(2)
    assert ledger.read().broken is None and [entry.round for entry in ledger.read().entries] == [1] * 3 + [2] * 6
    ledger.append(entries(3))
    assert ledger.read().broken is None
    ledger.path.write_bytes(b"".join(line + b"\n" for line in [lines[0], *lines[2:]]))
    ledger.cut_back(2)
    assert ledger.read().broken is not None


def test_another_process_goes_on_where_the_first_ended(ledger: LedgerFile) -> None:
    LedgerFile(ledger.path, fsync=False).append(entries(5))
    ledger.append(entries(6))  # its own end is older than the file
    assert ledger.read().broken is None and broken_at([], []) is None
