"""The ledger of a data folder: everything that was ever released about its examples, by any run, strategy or server.

    DATA/.fedpriv/ledger.jsonl   first the declaration, then one line for every message that left, and one where
                                 another policy is in force from there on
    DATA/.fedpriv/runs/          the methods' state between participations, a file for each run
    DATA/.fedpriv/account.json   the ledger's running account, a cache (running_account.py)
    DATA/.fedpriv/lock           locked while a message is answered
    COUNTER (somewhere else)     identifies the ledger: its least length, and a digest of that much of it

A release goes through four steps, each on the disk before the next: its line in the ledger, the method's new state,
the counter, and only then the message. A process may be killed at any point: the ledger can overcount, never
undercount. A torn line lies beyond the length that the counter attests, and its release has not left: the next line
replaces it. A ledger that is missing, different, or shorter than the counter says is refused: it may have been deleted
or restored from a copy, and then what was spent is unknown.

The digest is a hash chain (`fedpriv.common.chain`): a message extends it without reading earlier lines, and each line
names it, so that a copy of the ledger carries the chain. A node with an identity signs the counter (`signed_head`). A
ledger begun before lines were chained goes on: its older lines are in the chain of the newer ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from fedpriv.common.chain import BEFORE, before, row_of
from fedpriv.common.errors import LedgerRefused
from fedpriv.common.files import JsonLines, fsync_folder, read_regular, write_atomic
from fedpriv.common.systems import AS_IT_IS, lock
from fedpriv.deployment.accounting import Accounting
from fedpriv.deployment.declaration import Declared, DeclaredTable, declaring_row, read_declared
from fedpriv.deployment.policy import Booked, Policy, Spent
from fedpriv.deployment.running_account import LEDGER_FORMAT, Balance, RunningAccount, Tie, booked_to_json, read_booked
from fedpriv.deployment.signed_head import Signer, check_head

log = logging.getLogger("fedpriv")

#: Inside the data folder; hidden, so no picture source reads it.
PRIVATE = ".fedpriv"
#: Seconds that a message waits for another one on the same data.
PATIENCE = 120.0


class DataLedger:
    """One data folder's ledger. Use `held`: writing requires the lock. signer: the node's identity, if it has one."""

    def __init__(self, data: Path, counter: Path, signer: Signer | None = None) -> None:
        self.folder, self.counter, self.signer = data / PRIVATE, counter, signer
        self._lines = JsonLines(self.folder / "ledger.jsonl", fsync=True, mode=0o600)
        self._account = RunningAccount(self.folder / "account.json")
        self._known = Known()

    # --- once --------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, data: Path, counter: Path, declared: Declared | DeclaredTable, accounting: Accounting | None = None
    ) -> DataLedger:
        """A new, empty ledger and its counter. Raises `LedgerRefused` where either exists already.

        accounting: how its releases are composed; None: fixed by the first policy passed to `settle`.
        """
        ledger = cls(data, counter)
        if Path(os.path.realpath(data)) in Path(os.path.realpath(counter)).parents:
            raise LedgerRefused(f"{counter}: must lie outside the data folder {data}, or one copy would restore both")
        if not counter.exists() and ledger._lines.path.exists() and (known := ledger._all()).tie.lines == 1:
            ledger._known = known  # an earlier call was killed in the middle
            _make_private(counter.parent)
            ledger.confirm()
            if ledger.declared() != declared:
                ledger.declare(declared)
            return ledger
        for path in (ledger._lines.path, counter):
            if path.exists():
                raise LedgerRefused(f"{path} is there already: a data folder keeps one ledger permanently")
        ledger.folder.mkdir(mode=0o700, exist_ok=True)
        fsync_folder(data)
        _make_private(counter.parent)
        fixed = _fixed(accounting) if accounting else {}
        head = {"ledger": secrets.token_hex(16), "format": LEDGER_FORMAT, **declaring_row(declared), **fixed}
        write_atomic(ledger._lines.path, json.dumps(head) + "\n", mode=0o600)
        ledger._known = ledger._all()
        ledger.confirm()
        return ledger

    @contextmanager
    def seen(self, thorough: bool = False) -> Iterator[DataLedger]:
        """As `held`, but read-only; takes no lock. Raises `LedgerRefused`."""
        self._check(thorough)
        yield self

    # --- under the lock ----------------------------------------------------------------------------------

    @contextmanager
    def held(self, thorough: bool = False) -> Iterator[DataLedger]:
        """The ledger, checked against its counter, locked by this process. Raises `LedgerRefused`.

        thorough: read from its first line, and compare the running account with it.
        """
        if not self.folder.is_dir():
            raise LedgerRefused(f"{self.folder} is missing: `python -m fedpriv.node init` makes it, once")
        with private_file(self.folder / "lock") as file:
            wait_for_lock(file, self.folder)
            if self._check(thorough):
                self.confirm()  # its writer was killed before confirming; nothing leaves before that
            elif self._known.chains:
                self._renew_account()
            yield self

    def spent(self) -> Spent:
        """What counts as spent; do not modify."""
        return self._known.balance.spent

    def releases(self) -> list[Booked]:
        """Everything that counts as spent, in order: read from the ledger's first line."""
        return [read_booked(row) for row in self._rows() if "entries" in row]

    def of_round(self, run: str, server_round: int) -> list[Booked]:
        """What left in one round of a run: of one before its newest, read from the ledger's first line."""
        newest, left = self._known.balance.rounds.get(run, (-1, []))
        if server_round >= newest:
            return list(left) if server_round == newest else []
        of_run = [row for row in self._rows() if row.get("run") == run and row.get("entries")]
        return [read_booked(row) for row in of_run if row["entries"][0]["round"] == server_round]

    def holds_run(self, beginning: str) -> bool:
        """Whether a message of a run whose name begins so has left: read from the ledger's first line."""
        return any(row["run"].startswith(beginning) for row in self._rows() if "run" in row)

    def num_entries(self) -> int:
        """Number of entries of all releases together."""
        return self._known.balance.entries

    def last_release(self) -> float | None:
        """When the last message was booked, by this machine's clock (Unix time in seconds); for display."""
        return self._known.balance.last

    @property
    def path(self) -> Path:
        """The ledger's own file."""
        return self._lines.path

    def head(self) -> dict[str, Any]:
        """The counter as it is: ledger, bytes, lines, chain, and where the node has an identity its signature."""
        return dict(json.loads(read_regular(self.counter)))

    def accounting(self) -> Accounting | None:
        """How releases are composed, where that is fixed."""
        return self._known.balance.accounting

    def declared(self) -> Declared | DeclaredTable:
        """The newest declaration."""
        return read_declared(self._known.balance.declaration)

    def declare(self, declared: Declared | DeclaredTable) -> None:
        """Records what is public from here on. What was spent stays: no cost follows from it."""
        self._append(declaring_row(declared))
        self.confirm()

    def sign_on(self) -> None:
        """From here on this node's identity signs the ledger's heads; a line says so, once for each identity."""
        if self.signer is not None and self.signer.public != self._known.balance.signer:
            self._append({"time": round(time.time()), "signer": self.signer.public})
            self.confirm()

    def settle(self, policy: Policy) -> Accounting:
        """How this ledger's releases are composed; what the policy adds to that is recorded first, and that the policy
        is in force, where another one was.

        Raises `LedgerRefused` where `Policy.accounting` does.
        """
        before = self._known.balance
        fixed = policy.accounting(before.accounting, self.spent())
        further = _fixed(fixed) if fixed != before.accounting else {}
        if (now := policy.in_force) != before.policy:
            further |= {"time": round(time.time()), "policy": now}
        if further:
            self._append(further)
            self.confirm()
        return fixed

    def append(self, booked: Booked, run: str, counts: str = "") -> None:
        """One message's releases, on the disk when this returns. Call `confirm` once everything else is on the disk
        too. counts: under which name the policy declares what the message opens; empty: it opens no counts.
        """
        moment = round(time.time())  # for display: no decision depends on it
        opened = {"counts": counts} if counts else {}
        self._append({"time": moment, "run": run, **opened, **booked_to_json(booked)})

    def confirm(self) -> None:
        """Updates the counter to cover all that the ledger now holds, then the running account."""
        known = self._known
        tie = known.tie.at(self._lines.path)
        if self._whole_size(tie) != tie.size:
            raise LedgerRefused(f"{self._lines.path}: another process writes into the ledger")
        write_atomic(self.counter, json.dumps(self._head(tie)) + "\n", mode=0o600)
        self._account.write(tie, known.balance)
        self._known = Known(tie, known.balance)

    # --- inside ------------------------------------------------------------------------------------------

    def _head(self, tie: Tie) -> dict[str, Any]:
        head = {"ledger": tie.ledger, "bytes": tie.size, "lines": tie.lines, "chain": tie.chain}
        signer = self._signs()
        return signer.sign(head) if signer else head

    def _signs(self) -> Signer | None:
        """Who signs heads; None where nobody does. Raises `LedgerRefused` where the key is not here."""
        if not (named := self._known.balance.signer):
            return None
        if self.signer is None or self.signer.public != named:
            words = "name this node's credentials; `declare` with credentials= takes up another identity"
            raise LedgerRefused(f"{self._lines.path}: its heads are signed by {named}, whose key is not here: {words}")
        return self.signer

    def _rows(self) -> list[dict[str, Any]]:
        return [row_of(line) for line in read_regular(self._lines.path).split(b"\n")[:-1]]

    def _append(self, row: dict[str, Any]) -> None:
        known = self._known
        if "signer" not in row:
            self._signs()  # nothing is written that could not be confirmed
        known.tie = known.tie.followed_by(self._lines.append(row | {BEFORE: known.tie.chain}))
        known.balance.add(row)

    def _whole_size(self, tie: Tie) -> int:
        """Bytes of the file's complete lines; fewer than its size only after a torn line."""
        size = tie.file[1]
        return size if size <= tie.size else read_regular(self._lines.path).rfind(b"\n") + 1

    def _renew_account(self) -> None:
        known = self._known
        tie = known.tie.at(self._lines.path)
        before = self._account.read(tie)
        if before is not None and before != known.balance:
            log.warning("%s does not agree with the ledger, which counts", self._account.path)
        if before != known.balance:
            self._account.write(tie, known.balance)
        self._known = Known(tie, known.balance)

    def _check(self, thorough: bool) -> bool:
        """Whether the ledger holds more than its counter attests. Raises `LedgerRefused`."""
        path = self._lines.path
        try:
            counter = json.loads(read_regular(self.counter))
            vouched = Tie(str(counter["ledger"]), int(counter["bytes"]), str(counter.get("chain", "")))
            vouched = replace(vouched, lines=int(counter.get("lines", -1)))  # an older counter has no number of lines
            whole = None if vouched.chain else str(counter["sha256"])  # without a chain: of all bytes
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise LedgerRefused(
                f"{self.counter}: the counter is missing or damaged, and nothing else vouches for the ledger"
            ) from None
        try:
            if not thorough and (balance := self._account.read(tie := vouched.at(path))) is not None:
                self._check_signature(counter, balance.signer)
                self._known = Known(tie, balance)
                return False
            known = self._all()
            agrees = (vouched.size, vouched.chain) in known.chains
            if whole is not None:
                agrees = hashlib.sha256(read_regular(path)[: vouched.size]).hexdigest() == whole
        except OSError as error:
            raise LedgerRefused(f"{path} is missing ({error.strerror}): what was spent is not known") from None
        if not agrees:
            raise LedgerRefused(f"{path} is not the ledger that {self.counter} vouches for, or an older copy of it")
        if known.tie.ledger != vouched.ledger:
            raise LedgerRefused(f"{path} is another ledger than {self.counter} counts")
        self._check_signature(counter, known.chains.get((vouched.size, vouched.chain), ""))
        self._known = known
        return known.tie.size > vouched.size or whole is not None or vouched.lines < 0

    def _check_signature(self, counter: dict[str, Any], signer: str) -> None:
        """Of a ledger whose heads are signed."""
        if signer:
            check_head(counter, signer, str(self.counter))

    def _all(self) -> Known:
        """The whole ledger, from its first line. Raises `LedgerRefused`, OSError."""
        content, known, chained = read_regular(self._lines.path), Known(), False
        for number, text in enumerate(content.split(b"\n")[:-1], 1):  # anything after the last newline is a torn line
            line = text + b"\n"
            try:
                row = row_of(text)
                known.balance.add(row)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise LedgerRefused(f"{self._lines.path}: line {number} is damaged") from None
            except LedgerRefused as refused:
                raise LedgerRefused(f"{self._lines.path}: line {number}: {refused}") from None
            if number == 1:
                known.tie = Tie(str(row.get("ledger")), 0, "")
            named = before(text)
            if named != known.tie.chain and (named is not None or chained):
                raise LedgerRefused(f"{self._lines.path}: line {number} does not follow from the lines before it")
            chained |= named is not None
            known.tie = known.tie.followed_by(line)
            known.chains[known.tie.size, known.tie.chain] = known.balance.signer
        return known


@dataclass
class Known:
    """A process's view of a ledger. tie: at its last complete line; chains: (size, chain) after each line, with the
    signer of heads there, if all lines were read.
    """

    tie: Tie = field(default_factory=lambda: Tie("", 0, ""))
    balance: Balance = field(default_factory=Balance)
    chains: dict[tuple[int, str], str] = field(default_factory=dict)


def wait_for_lock(file: Any, folder: Path) -> None:
    """Waits up to `PATIENCE` for another message on the same data."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            lock(file)
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise LedgerRefused(f"{folder}: another process is answering a message about this data") from None
            time.sleep(0.05)


def _fixed(accounting: Accounting) -> dict[str, Any]:
    return {"accountant": accounting.accountant, "orders": dict(accounting.orders), "share": accounting.share}


def _make_private(folder: Path) -> None:
    """Creates missing folders, accessible only to this user."""
    if not folder.exists():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path) -> TextIO:
    """Opens a file to lock, which no other user may open."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | AS_IT_IS, 0o600), "w")
