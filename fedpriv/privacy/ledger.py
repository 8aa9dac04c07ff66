"""The ledger on disk.

A ledger is a file of lines, only ever appended to: one JSON object for each entry or, in a simulation, for the equal
charges of one round (`ledger_lines`). An entry is written before the message leaves, with one write call. A process
killed in between leaves at most a torn last line: an unreadable line counts as spent, and the next append starts on a
new line. Each line names the hash of all lines before it (`fedpriv.common.chain`): where one was taken out, changed or
moved, what it recorded is unknown, and the total is infinite. Lines of before there was a chain are read as they are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.common.chain import before, broken_at, chain_of, chained, followed, without
from fedpriv.common.files import fsync_folder
from fedpriv.common.run_files import LARGEST, bytes_in, is_file_in
from fedpriv.common.systems import AS_IT_IS, ITSELF
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Event, NoBound
from fedpriv.privacy.ledger_lines import TORN as TORN
from fedpriv.privacy.ledger_lines import UNKNOWN_CLIENT as UNKNOWN_CLIENT
from fedpriv.privacy.ledger_lines import in_order, read_line, to_lines, torn_entries

BROKEN = "a line of the ledger is missing, changed or out of its place: what it recorded is not known"


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
        read = [read_line(line) for line in lines]
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
        rounds = [found.round if (found := read_line(line)) else None for line in lines]
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
            self._rewrite(kept)
            self._end = None
        return dropped

    def _bytes(self) -> bytes:
        folder, name = self.path.parent, self.path.name
        return bytes_in(folder, name, LARGEST) if is_file_in(folder, name) else b""

    def _lines(self) -> list[bytes]:
        content = self._bytes()
        return [line for line in content.split(b"\n") if line]

    def _rewrite(self, lines: list[bytes]) -> None:
        temporary = self.path.with_name(self.path.name + ".new")
        with open(temporary, "wb") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        fsync_folder(self.path.parent)


def _chained_again(lines: Sequence[bytes], torn: Sequence[bool]) -> list[bytes]:
    """What is kept of a ledger after lines in the middle went, with a chain of its own. Torn lines stay as they are."""
    found, chain = list[bytes](), ""
    for line, is_torn in zip(lines, torn, strict=True):
        kept = line if is_torn or before(line) is None else chained([without(line)], chain)[0][0]
        found.append(kept)
        chain = followed(chain, kept)
    return found
