"""The lines of a ledger: one entry as a JSON object, or the equal charges of one round as one.

    {"round":7,"client":3,"sequence":2,"attempt":0,"mechanism":"gaussian",...}
    {"round":7,"clients":[3,8,20],"sequences":[2,0,1],"attempt":0,"mechanism":"gaussian",...}

A line of several clients has one ``sequence`` where all have the same. ``with_previous``: its entries belong between
those of the line before, by (client, sequence, attempt); both were appended together. The last field, ``before``, is
added where lines are written to a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fedpriv.common.chain import BEFORE, row_of
from fedpriv.privacy.events import Entry, Event, NoBound, charge_from_json, charge_to_json

UNKNOWN_CLIENT = -1
TORN = "a ledger line is torn: what it recorded counts as spent and cannot be read"


@dataclass(frozen=True)
class Line:
    """What one line records: at least one entry, all of one round."""

    entries: tuple[Entry, ...]
    with_previous: bool

    @property
    def round(self) -> int:
        return self.entries[0].round


# --- writing -----------------------------------------------------------------------------------------------------


class _Charges:
    """What entries are charged with, as JSON text without its opening brace; equal objects are written once."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int, bool], str] = {}

    def of(self, entry: Entry) -> str:
        key = id(entry.event), id(entry.realised), entry.adaptive
        if key not in self._texts:
            charge = charge_to_json(entry.event, entry.realised, entry.adaptive)
            self._texts[key] = json.dumps(charge, separators=(",", ":"), allow_nan=False)[1:]
        return self._texts[key]


def to_lines(entries: Iterable[Entry], together: bool) -> str:
    """The lines of entries that are appended together, by (round, client, sequence, attempt).

    together: equal charges of one round share a line where that makes the ledger smaller.
    """
    charges, ordered = _Charges(), sorted(entries, key=lambda entry: entry.order)
    if not together:
        return "".join(_line([entry], charges.of(entry)) for entry in ordered)
    return "".join(_round_lines(list(some), charges) for _, some in groupby(ordered, key=lambda entry: entry.round))


def _round_lines(ordered: Sequence[Entry], charges: _Charges) -> str:
    groups: dict[tuple[int, str], list[Entry]] = {}
    for entry in ordered:
        groups.setdefault((entry.attempt, charges.of(entry)), []).append(entry)
    shared = [entry for group in groups.values() for entry in group]
    if _same(shared, ordered):
        return "".join(_line(group, charge) for (_, charge), group in groups.items())
    alone = "".join(_line([entry], charges.of(entry)) for entry in ordered)
    if not _same(sorted(shared, key=lambda entry: entry.order), ordered):  # entries of one place and several charges
        return alone
    mixed = "".join(_line(group, charge, place > 0) for place, ((_, charge), group) in enumerate(groups.items()))
    return min(mixed, alone, key=len)


def _same(some: Sequence[Entry], others: Sequence[Entry]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


def _line(group: Sequence[Entry], charge: str, with_previous: bool = False) -> str:
    first, sequences = group[0], [entry.sequence for entry in group]
    if len(group) == 1:
        who = f'"client":{first.client},"sequence":{first.sequence}'
    else:
        clients = ",".join(str(entry.client) for entry in group)
        equal = sequences.count(sequences[0]) == len(sequences)
        which = f'"sequence":{sequences[0]}' if equal else f'"sequences":[{",".join(map(str, sequences))}]'
        who = f'"clients":[{clients}],{which}'
    mark = '"with_previous":true,' if with_previous else ""
    return f'{{"round":{first.round},{who},"attempt":{first.attempt},{mark}{charge}\n'


# --- reading -----------------------------------------------------------------------------------------------------


def read_line(line: bytes) -> Line | None:
    """What a line records, or None if it is torn: no proper prefix of a JSON object is one."""
    try:
        return _from_json(row_of(line))
    except (ValueError, RecursionError):
        return None


def _from_json(flat: dict[str, Any]) -> Line:
    rest = dict(flat)
    rest.pop(BEFORE, None)  # checked where the whole file is read
    try:
        server_round, attempt, with_previous = rest.pop("round"), rest.pop("attempt"), rest.pop("with_previous", False)
        clients = rest.pop("clients") if "clients" in rest else [rest.pop("client")]
        sequences = rest.pop("sequences") if "sequences" in rest else [rest.pop("sequence")] * len(clients)
        event, realised, adaptive = charge_from_json(rest)
        places = list(zip(clients, sequences, strict=True))
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a ledger line: {flat!r}: {error!r}") from None
    if not places or not isinstance(with_previous, bool):
        raise ValueError(f"not a ledger line: {flat!r}")
    entries = (Entry(server_round, client, number, attempt, event, realised, adaptive) for client, number in places)
    return Line(tuple(entries), with_previous)


def in_order(lines: Iterable[Line | None]) -> Iterator[tuple[int, tuple[Entry, ...]]]:
    """(place of its first line, entries) of each part of a ledger that stands on its own; no entries where torn."""
    first, part = 0, list[Entry]()
    for place, line in enumerate(lines):
        if line is not None and line.with_previous and part and part[0].round == line.round:
            part += line.entries
            continue
        if part:
            yield first, _sorted(part)
        first, part = place, list(line.entries) if line else []
        if line is None:
            yield place, ()
    if part:
        yield first, _sorted(part)


def _sorted(part: list[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(part, key=lambda entry: entry.order))


def torn_entries(line: bytes, events: Sequence[Event]) -> list[Entry]:
    """What a torn line counts as: these events, with its round and its clients where those can still be read.

    A list of clients that is cut off may have named anybody else, who has spent without a bound.
    """
    number, clients = _number(b"round", line) or 0, re.search(rb'"clients":\[([-\d,]*)(\]?)', line)
    if clients is None:
        client = _number(b"client", line)
        return [Entry(number, UNKNOWN_CLIENT if client is None else client, 0, 0, event) for event in events]
    named, whole = clients[1].split(b","), bool(clients[2])
    known = [int(client) for client in (named if whole else named[:-1]) if client.isdigit()]
    found = [Entry(number, client, 0, 0, event) for client in known for event in events]
    if whole and len(known) == len(named):
        return found
    threats = dict.fromkeys(event.threat for event in events)
    return found + [Entry(number, UNKNOWN_CLIENT, 0, 0, NoBound(threat=threat, reason=TORN)) for threat in threats]


def _number(key: bytes, line: bytes) -> int | None:
    found = re.search(rb'"' + key + rb'":(\d+),', line)  # the comma proves that the number is whole
    return int(found[1]) if found else None
