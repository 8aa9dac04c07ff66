"""The ledger on disk.

A ledger is a file of lines, only ever appended to: one JSON object for each entry or, in a simulation, for the equal
charges of one round. An entry is written before the message leaves, with one write call. A process killed in between
leaves at most a torn last line: an unreadable line counts as spent, and the next append starts on a new line. Each line
names the hash of all lines before it (`fedpriv.common.chain`): where one was taken out, changed or moved, what it
recorded is unknown, and the total is infinite. Lines of before there was a chain are read as they are.

    {"round":7,"client":3,"sequence":2,"attempt":0,"mechanism":"gaussian",...}
    {"round":7,"clients":[3,8,20],"sequences":[2,0,1],"attempt":0,"mechanism":"gaussian",...}

A line of several clients has one ``sequence`` where all have the same. ``with_previous``: its entries belong between
those of the line before, by (client, sequence, attempt); both were appended together. The last field, ``before``, is
added where lines are written to a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.common.chain import BEFORE, before, broken_at, chain_of, chained, followed, row_of, without
from fedpriv.common.doing import counted
from fedpriv.common.files import fsync_folder, write_atomic
from fedpriv.common.run_files import LARGEST, bytes_in, is_file_in
from fedpriv.common.systems import AS_IT_IS, ITSELF
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entries, Entry, Event, NoBound, charge_from_json, charge_to_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNKNOWN_CLIENT = -1
#: Most lists and objects of a line, counted before it is parsed: a release, what was realised of it, and whom it names.
MOST_NESTED = 64
TORN = "a ledger line is torn: what it recorded counts as spent and cannot be read"
BROKEN = "a line of the ledger is missing, changed or out of its place: what it recorded is not known"


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
    charges = _Charges()
    if not together:
        ordered = sorted(entries, key=lambda entry: entry.order)
        return "".join(_line([entry.client], [entry.sequence], entry, charges.of(entry)) for entry in ordered)
    rounds: dict[int, list[tuple[Entry, Sequence[int]]]] = {}
    for own, clients in Entries.of(entries).alike:
        for entry in own:
            rounds.setdefault(entry.round, []).append((entry, clients))
    return "".join(_round_lines(rounds[number], charges) for number in sorted(rounds))


def _round_lines(charged: Sequence[tuple[Entry, Sequence[int]]], charges: _Charges) -> str:
    """Lines of one round's entries, one of which stands for the clients beside it."""
    import numpy as np

    lengths = [len(clients) for _, clients in charged]
    clients = np.concatenate([np.asarray(clients, np.int64) for _, clients in charged])
    sequences = np.repeat([entry.sequence for entry, _ in charged], lengths)
    attempts = np.repeat([entry.attempt for entry, _ in charged], lengths)
    kinds: dict[tuple[int, str], int] = {}  # (attempt, charge) -> its number
    numbers = [kinds.setdefault((entry.attempt, charges.of(entry)), len(kinds)) for entry, _ in charged]
    examples = {number: entry for number, (entry, _) in zip(numbers, charged, strict=True)}
    ordered = np.lexsort((attempts, sequences, clients))
    clients, sequences, attempts = clients[ordered], sequences[ordered], attempts[ordered]
    kind_of, texts = np.repeat(numbers, lengths)[ordered], {number: text for (_, text), number in kinds.items()}
    first_seen = kind_of[np.sort(np.unique(kind_of, return_index=True)[1])].tolist()
    groups = [np.flatnonzero(kind_of == number) for number in first_seen]

    def lines(parts: Sequence[NDArray[np.int64]], marked: bool) -> str:
        told = [(part, int(kind_of[part[0]])) for part in parts]
        return "".join(
            _line(clients[part].tolist(), sequences[part].tolist(), examples[kind], texts[kind], marked and place > 0)
            for place, (part, kind) in enumerate(told)
        )

    shared, every = np.concatenate(groups), np.arange(len(clients))
    if np.array_equal(shared, every):
        return lines(groups, marked=False)
    alone = lines(list(every[:, None]), marked=False)
    again = np.lexsort((attempts[shared], sequences[shared], clients[shared]))
    if not np.array_equal(shared[again], every):  # entries of one place and several charges
        return alone
    return min(lines(groups, marked=True), alone, key=len)


def _line(clients: Sequence[int], sequences: Sequence[int], entry: Entry, charge: str, marked: bool = False) -> str:
    """entry: has the round, the attempt and the charge. marked: with_previous."""
    if len(clients) == 1:
        who = f'"client":{clients[0]},"sequence":{sequences[0]}'
    else:
        equal = min(sequences) == max(sequences)
        which = f'"sequence":{sequences[0]}' if equal else f'"sequences":[{",".join(map(str, sequences))}]'
        who = f'"clients":[{",".join(map(str, clients))}],{which}'
    mark = '"with_previous":true,' if marked else ""
    return f'{{"round":{entry.round},{who},"attempt":{entry.attempt},{mark}{charge}\n'


# --- reading -----------------------------------------------------------------------------------------------------


def read_line(line: bytes) -> Line | None:
    """What a line records; None if it is torn (no proper prefix of a JSON object is one) or holds too much."""
    try:
        if line.count(b"[") + line.count(b"{") > MOST_NESTED:
            return None
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


# --- the file ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LedgerContent:
    """entries: all that counts as spent, in file order, including torn lines; torn: numbers of torn lines, from 1;
    broken: number of the first line that does not follow from the lines before it.
    """

    entries: tuple[Entry, ...]
    torn: tuple[int, ...]
    broken: int | None = None

    def by_client(self) -> dict[int, list[Entry]]:
        """Entries of each client (torn lines without a readable client: `UNKNOWN_CLIENT`)."""
        accounts: dict[int, list[Entry]] = {}
        for entry in self.entries:
            accounts.setdefault(entry.client, []).append(entry)
        return accounts


class LedgerFile:
    """An append-only file of entries.

    fsync: return from `append` only once the line is on the disk (a deployment, where the ledger guards data that
    outlives the process); in simulation a ledger can be rebuilt by running again.
    torn_counts_as: what an unreadable line is charged as. None: a release without a bound, total infinite. A
    deployment may pass the costliest single release that its policy allows: the line was written before anything
    left, so that is never an underestimate.
    """

    def __init__(self, path: str | Path, fsync: bool, torn_counts_as: Event | None = None) -> None:
        self.path = Path(path)
        self.fsync = fsync
        self._torn_price = [torn_counts_as] if torn_counts_as else None
        self._end: tuple[int, str] | None = None  # (bytes, chain) after what this object wrote last

    def append(self, entries: Iterable[Entry], together: bool = False) -> None:
        """Appends entries, sorted by (round, client, sequence, attempt), with one write call. Raises OSError.

        together: equal charges of one round share a line. Only in a simulation: a crash may tear such a line, which
        then counts as a release without a bound of everybody whom it may have named.
        """
        lines = to_lines(entries, together)
        if not lines:
            return
        created = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | ITSELF | AS_IT_IS, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            torn_before = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            chain = self._end[1] if self._end and self._end[0] == size else chain_of(self._lines())
            written, chain = chained(lines.encode().splitlines(), chain)
            content = (b"\n" if torn_before else b"") + b"".join(line + b"\n" for line in written)
            if os.write(descriptor, content) != len(content):
                raise OSError(f"{self.path}: the disk took only part of a ledger entry; nothing may be released")
            if self.fsync:
                os.fsync(descriptor)
            self._end = size + len(content), chain
        finally:
            os.close(descriptor)
        if created and self.fsync:
            fsync_folder(self.path.parent)

    def read(self) -> LedgerContent:
        """Everything that counts as spent. A missing file is an empty ledger.

        A torn line without ``torn_counts_as`` makes epsilon infinite under every threat of the ledger.
        """
        lines = self._lines()
        read = [read_line(line) for line in counted("reading the ledger, lines", lines)]
        threats = dict.fromkeys(line.entries[0].event.threat for line in read if line) or [CLIENT_TO_SERVER]
        lost = [NoBound(threat=threat, reason=TORN) for threat in threats]
        entries: list[Entry] = []
        for place, found in in_order(read):
            entries += found or torn_entries(lines[place], self._torn_price or lost)
        torn = tuple(number for number, line in enumerate(read, 1) if line is None)
        if (broken := broken_at(lines, [line is None for line in read])) is not None:
            where = read[broken - 1]
            number = where.round if where else 0
            entries += [
                Entry(number, UNKNOWN_CLIENT, 0, 0, NoBound(threat=threat, reason=BROKEN)) for threat in threats
            ]
        return LedgerContent(tuple(entries), torn, broken)

    def head(self) -> dict[str, Any]:
        """The number of lines, and the chain after the last."""
        lines = self._lines()
        return {"count": len(lines), "head": chain_of(lines)}

    def mark(self) -> dict[str, Any]:
        """Length and SHA-256 of the file as it is now, for `agrees`."""
        content = self._bytes()
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def agrees(self, mark: Mapping[str, Any]) -> bool:
        """Whether the file still begins with what it held at ``mark``: a line that is gone or changed would make
        clients' totals smaller than what they have released.
        """
        content = self._bytes()
        held = content[: mark["bytes"]]
        return len(held) == mark["bytes"] and hashlib.sha256(held).hexdigest() == mark["sha256"]

    def cut_back(self, last_round: int) -> int:
        """Drops everything after ``last_round``, for a run that replays rounds from a checkpoint; atomic.

        A torn tail is dropped too (the checkpoint was written after its own round's lines); earlier torn lines stay.
        Returns the number of lines dropped.
        """
        lines = self._lines()
        words = f"cutting the ledger back to round {last_round}, lines"
        rounds = [found.round if (found := read_line(line)) else None for line in counted(words, lines)]
        kept_rounds = [index for index, number in enumerate(rounds) if number is not None and number <= last_round]
        end = kept_rounds[-1] + 1 if kept_rounds else 0
        kept = [
            line
            for line, number in zip(lines[:end], rounds[:end], strict=True)
            if number is None or number <= last_round
        ]
        dropped = len(lines) - len(kept)
        if dropped:
            if kept != lines[: len(kept)] and broken_at(lines, [number is None for number in rounds]) is None:
                torn = [read_line(line) is None for line in kept]
                kept = _chained_again(kept, torn)
            write_atomic(self.path, b"".join(line + b"\n" for line in kept))
            self._end = None
        return dropped

    def _bytes(self) -> bytes:
        folder, name = self.path.parent, self.path.name
        return bytes_in(folder, name, LARGEST) if is_file_in(folder, name) else b""

    def _lines(self) -> list[bytes]:
        content = self._bytes()
        return [line for line in content.split(b"\n") if line]


def _chained_again(lines: Sequence[bytes], torn: Sequence[bool]) -> list[bytes]:
    """What is kept of a ledger after lines in the middle went, with a chain of its own. Torn lines stay as they are."""
    found, chain = list[bytes](), ""
    for line, is_torn in zip(lines, torn, strict=True):
        kept = line if is_torn or before(line) is None else chained([without(line)], chain)[0][0]
        found.append(kept)
        chain = followed(chain, kept)
    return found
