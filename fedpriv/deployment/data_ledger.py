"""The ledger of a data folder: everything that was ever released about its pictures, by any run, strategy or server.

    DATA/.fedpriv/ledger.jsonl   first what was declared, then one line for every message that left
    DATA/.fedpriv/runs/          what a method keeps between participations, a file for each run
    DATA/.fedpriv/lock           held while a message is answered
    COUNTER (somewhere else)     which ledger there is, how long it was at least, and the SHA-256 of so much of it

A release goes through four steps, each on the disk before the next: its line in the ledger, the method's new state,
the counter, and only then the message. A process may be killed anywhere: the ledger can count too much, never too
little. A line that was torn is behind what the counter vouches for, and nothing of it has left: the next line takes
its place. A ledger that is missing, another one, or shorter than the counter says is refused: it may have been deleted
or put back from a copy, and then nobody knows what was spent.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpriv.errors import FedprivError, LedgerRefused
from fedpriv.files import JsonLines, fsync_folder, write_atomic
from fedpriv.policy import Booked
from fedpriv.privacy.events import Entry, Threat, entry_from_json, entry_to_json

#: Inside the data folder; hidden, so no picture source looks into it.
PRIVATE = ".fedpriv"
#: Seconds that a message waits for another one about the same data.
PATIENCE = 120.0


@dataclass(frozen=True)
class Declared:
    """What `init` wrote down, all of it public: how many pictures, of which classes, and the form they are read in."""

    examples: int
    classes: tuple[str, ...]
    size: int
    channels: int


class DataLedger:
    """One data folder's ledger. Use `held`; whatever writes needs the lock."""

    def __init__(self, data: Path, counter: Path) -> None:
        self.folder, self.counter = data / PRIVATE, counter
        self._lines = JsonLines(self.folder / "ledger.jsonl", fsync=True)
        self._identity = ""
        self._known: list[dict[str, Any]] | None = None  # what was read, until something is written

    # --- once --------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, data: Path, counter: Path, declared: Declared) -> DataLedger:
        """A new, empty ledger and its counter. Raises `LedgerRefused` where either of them is there already."""
        ledger = cls(data, counter)
        if data.resolve() in counter.resolve().parents:
            raise LedgerRefused(f"{counter}: must lie outside the data folder {data}, or one copy would restore both")
        if not counter.exists() and len(ledger._rows()) == 1:  # killed in the middle of this very function
            ledger._identity = str(ledger._rows()[0].get("ledger"))
            counter.parent.mkdir(parents=True, exist_ok=True)
            ledger.confirm()
            return ledger
        for path in (ledger._lines.path, counter):
            if path.exists():
                raise LedgerRefused(f"{path} is there already: a data folder has one ledger for ever")
        ledger.folder.mkdir(mode=0o700, exist_ok=True)
        fsync_folder(data)
        counter.parent.mkdir(parents=True, exist_ok=True)
        head = {"ledger": secrets.token_hex(16), **_declaration(declared)}
        ledger._identity = str(head["ledger"])
        write_atomic(ledger._lines.path, json.dumps(head) + "\n")
        ledger._known = None
        ledger.confirm()
        return ledger

    @contextmanager
    def seen(self) -> Iterator[DataLedger]:
        """As `held`, only to look: nobody is kept from answering. Raises `LedgerRefused`."""
        self._check()
        yield self

    # --- under the lock ----------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[DataLedger]:
        """The ledger, checked against its counter, for this process alone. Raises `LedgerRefused`."""
        if not self.folder.is_dir():
            raise LedgerRefused(f"{self.folder} is missing: `python -m fedpriv.node init` makes it, once")
        with (self.folder / "lock").open("w") as file:
            _lock(file, self.folder)
            if self._check():
                self.confirm()  # whoever wrote the line was killed before it could: nothing leaves before this
            yield self

    def releases(self) -> list[Booked]:
        """Everything that counts as spent, in order."""
        return [_booked(row) for row in self._rows() if "entries" in row]

    def of_round(self, run: str, server_round: int) -> list[Booked]:
        """What left in one round of a run."""
        found = [_booked(row) for row in self._rows() if row.get("run") == run and "entries" in row]
        return [booked for booked in found if booked.entries and booked.entries[0].round == server_round]

    def last_release(self) -> float | None:
        """When the last message was booked, by this machine's clock (Unix time in seconds); for people."""
        times = [row["time"] for row in self._rows() if "entries" in row]
        return float(times[-1]) if times else None

    def declared(self) -> Declared:
        """The newest declaration."""
        row = [row for row in self._rows() if "examples" in row][-1]
        return Declared(row["examples"], tuple(row["classes"]), row["size"], row["channels"])

    def declare(self, declared: Declared) -> None:
        """Writes down another public number of pictures."""
        self._append(_declaration(declared))
        self.confirm()

    def append(self, booked: Booked, run: str) -> None:
        """One message's releases, on the disk when this returns. `confirm` follows once all else is there too."""
        self._append(
            {
                "time": round(time.time()),  # for people: nothing is decided by it
                "run": run,
                "own": [booked.own.unit, booked.own.adjacency, booked.own.observer],
                "shares_secrets": booked.shares_secrets,
                "entries": [entry_to_json(entry) for entry in booked.entries],
            }
        )

    def confirm(self) -> None:
        """The counter vouches for all that the ledger now holds."""
        content = self._lines.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        counter = {"ledger": self._identity, "bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
        write_atomic(self.counter, json.dumps(counter) + "\n")

    # --- inside ------------------------------------------------------------------------------------------

    def _rows(self) -> list[dict[str, Any]]:
        try:
            if self._known is None:
                self._known = self._lines.read()
            return self._known
        except FedprivError as error:
            raise LedgerRefused(str(error)) from None

    def _append(self, row: dict[str, Any]) -> None:
        self._lines.append(row)
        self._known = None

    def _check(self) -> bool:
        """Whether the ledger holds more than its counter vouches for. Raises `LedgerRefused`."""
        path = self._lines.path
        try:
            counter = json.loads(self.counter.read_text())
            identity, length, digest = str(counter["ledger"]), int(counter["bytes"]), str(counter["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            raise LedgerRefused(
                f"{self.counter}: the counter is missing or damaged, and nothing else vouches for the ledger"
            ) from None
        try:
            content = path.read_bytes()
        except OSError as error:
            raise LedgerRefused(f"{path} is missing ({error.strerror}): what was spent is not known") from None
        if len(content) < length or hashlib.sha256(content[:length]).hexdigest() != digest:
            raise LedgerRefused(f"{path} is not the ledger that {self.counter} vouches for, or an older copy of it")
        self._known = None
        rows = self._rows()
        if not rows or rows[0].get("ledger") != identity:
            raise LedgerRefused(f"{path} is another ledger than {self.counter} counts")
        self._identity = identity
        return content.rfind(b"\n") + 1 > length


def _lock(file: Any, folder: Path) -> None:
    """Waits a while for another process that answers a message about the same data."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise LedgerRefused(f"{folder}: another process is answering a message about this data") from None
            time.sleep(0.05)


def _declaration(declared: Declared) -> dict[str, Any]:
    return {**asdict(declared), "classes": list(declared.classes)}


def _booked(row: dict[str, Any]) -> Booked:
    try:
        entries: Sequence[Entry] = [entry_from_json(entry) for entry in row["entries"]]
        return Booked(tuple(entries), Threat(*row["own"]), bool(row["shares_secrets"]))
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerRefused(f"a line of the ledger cannot be read ({error}): what was spent is not known") from None
