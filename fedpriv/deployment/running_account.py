"""The running account of a data folder's ledger, so that a message takes the same time however many came before.

    DATA/.fedpriv/account.json   how often each cost was charged, and what left in the newest round of each run

It is only a cache. `Tie` identifies the ledger that it sums up: the length and the digest attested by the counter
outside the folder, and the file (inode, size, times of its last change) whose bytes were checked against that digest.
Where anything differs or cannot be read, the account is not used: the ledger is read from its first line, and the
account is written anew.

A crash can leave an account that is older than the counter (it is replaced after it), so its tie is invalid; bytes that
a power cut lost do not have its digest. A restored copy can be an older account or ledger (the counter shows that), or
the ledger alone (its inode or its ctime, which cannot be set, differs). Deliberate tampering is out of scope: only the
owner can write here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedpriv.common.chain import BEFORE, followed
from fedpriv.common.errors import LedgerRefused
from fedpriv.common.files import read_regular, write_atomic
from fedpriv.config.options import Options
from fedpriv.deployment.accounting import Accounting
from fedpriv.deployment.declaration import declaring_row, read_declared
from fedpriv.deployment.guard_policy import CountsKind, Sha256
from fedpriv.deployment.policy import Booked, InForce, Spent
from fedpriv.privacy.events import MOST_WHOLE, Threat, entry_from_json, entry_to_json

log = logging.getLogger("fedpriv")

FORMAT = 5
#: Of the ledger's lines. A line with a larger number in `format` is of a newer version, and may have a cost that this
#: one cannot count. Who raises it raises `FORMAT` too: an account does not know which lines it sums up.
LEDGER_FORMAT = 1
#: What makes a line one of a kind -> the fields of that kind; a line is of at least one, and has no others but `EVERY`.
KINDS: dict[str, tuple[str, ...]] = {
    "classes": ("examples", "classes", "size", "channels"),
    "table": ("examples", "table", "schema_file", "separator", "decimal", "encoding"),
    "accountant": ("accountant", "orders", "share"),
    "signer": ("time", "signer"),
    "entries": ("time", "run", "own", "shares_secrets", "entries", "counts"),
    "policy": ("time", "policy"),
}
EVERY = ("ledger", "format", BEFORE)
#: What may be missing: ledgers begun before there was a reserve of delta have no share, and few messages open counts.
OPTIONAL = ("share", "counts")


@dataclass(frozen=True)
class Tie:
    """A ledger at one moment. chain: after its last line (`fedpriv.common.chain`); lines: how many there are (-1: an
    older counter, which does not say).
    """

    ledger: str
    size: int
    chain: str
    file: tuple[int, ...] = ()
    lines: int = 0

    def followed_by(self, line: bytes) -> Tie:
        """The tie after one more line, in a file that has not been examined."""
        chain = followed(self.chain, line.removesuffix(b"\n"))
        return Tie(self.ledger, self.size + len(line), chain, lines=self.lines + 1)

    def at(self, path: Path) -> Tie:
        """The tie with the file that holds it now. Raises OSError."""
        found = os.stat(path)
        return replace(self, file=(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@dataclass
class Balance:
    """Totals of a ledger's lines. declaration: the newest; last: time of the last release; entries: their number;
    signer: the public key (hex) that signs the ledger's heads from the newest line on that names one; policy: in force
    from the newest line on that says so (`Policy.in_force`); None: no line has said it; rounds: of each run its newest
    round, and the costs of what left in it.
    """

    declaration: dict[str, Any] = field(default_factory=dict)
    accounting: Accounting | None = None
    spent: Spent = field(default_factory=Spent)
    last: float | None = None
    entries: int = 0
    signer: str = ""
    policy: dict[str, Any] | None = None
    rounds: dict[str, tuple[int, list[Booked]]] = field(default_factory=dict)

    def add(self, row: dict[str, Any]) -> None:
        """Adds one line. Raises `LedgerRefused` for one that cannot be read."""
        check_row(row)
        if "examples" in row:
            self.declaration = declaring_row(read_declared(row))
        if "accountant" in row:
            self.accounting = Accounting(row["accountant"], dict(row["orders"]), float(row.get("share", 1.0)))
        if "signer" in row:
            self.signer = row["signer"]
        if "policy" in row:
            self.policy = row["policy"]
        declared = (self.policy or {}).get("guard") or {"counts": {}}
        if "counts" in row and row["counts"] not in declared["counts"]:
            raise LedgerRefused(f"a line opens counts {row['counts']}, which the policy in force does not declare")
        if "entries" in row:
            booked = read_booked(row)
            self.spent.add(booked)
            self.last = float(row["time"])
            self.entries += len(row["entries"])
            if booked.entries:
                number, (newest, left) = booked.entries[0].round, self.rounds.get(row["run"], (-1, []))
                if number >= newest:
                    left = [*left, booked.anywhere] if number == newest else [booked.anywhere]
                    self.rounds[row["run"]] = number, left


class RunningAccount:
    """One data folder's account."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, tie: Tie) -> Balance | None:
        """The totals, if this is the account of exactly that ledger and that file; otherwise None."""
        try:
            digest, _, content = read_regular(self.path).partition(b"\n")
            if digest.decode() != hashlib.sha256(content).hexdigest():
                return None
            kept = json.loads(content)
            if kept.pop("format") != FORMAT or kept.pop("tie") != _as_json(tie):
                return None
            known = [(read_booked(price), times) for price, times in kept.pop("prices")]
            balance = Balance(**kept)
            for booked, times in known:
                balance.spent.add(booked, times)
            balance.accounting = None if balance.accounting is None else Accounting(**kept["accounting"])
            rounds = kept["rounds"].items()
            balance.rounds = {run: (number, [known[place][0] for place in left]) for run, (number, left) in rounds}
            return balance
        except (OSError, LedgerRefused, ValueError, KeyError, IndexError, TypeError, AttributeError):
            return None

    def write(self, tie: Tie, balance: Balance) -> None:
        """Replaces the account by these totals; where it cannot be written, every message reads the whole ledger."""
        kept = vars(balance) | {"format": FORMAT, "tie": _as_json(tie)}
        kept["accounting"] = None if balance.accounting is None else vars(balance.accounting)
        prices = list(kept.pop("spent").times.items())
        kept["prices"] = [(booked_to_json(booked), times) for booked, times in prices]
        places = {booked: place for place, (booked, _) in enumerate(prices)}
        kept["rounds"] = {
            run: (number, [places[one] for one in left]) for run, (number, left) in balance.rounds.items()
        }
        content = json.dumps(kept)
        try:
            digest = hashlib.sha256(content.encode()).hexdigest()
            write_atomic(self.path, f"{digest}\n{content}", durable=False, mode=0o600)
            self.path.with_suffix(".sqlite").unlink(missing_ok=True)  # the account of earlier versions
        except OSError as error:
            log.warning("%s cannot be written (%s): every message reads the whole ledger", self.path, error)


def _as_json(tie: Tie) -> list[Any]:
    return [tie.ledger, tie.size, tie.chain, list(tie.file), tie.lines]


# --- lines of a ledger -------------------------------------------------------------------------------------------


class Fields(Options):
    """All fields of all kinds of lines, each in the form that this version writes; checked where a line has it."""

    ledger: str = ""
    format: int = Field(default=LEDGER_FORMAT, ge=1, le=LEDGER_FORMAT)
    before: str = ""
    time: float = Field(default=0, ge=0, le=MOST_WHOLE)
    examples: int = Field(default=0, ge=0, le=MOST_WHOLE)
    classes: list[str] = Field(default=[])
    size: int = Field(default=0, ge=0, le=MOST_WHOLE)
    channels: int = Field(default=0, ge=0, le=MOST_WHOLE)
    table: str = ""
    schema_file: str = ""
    separator: str = ""
    decimal: str = ""
    encoding: str = ""
    accountant: Literal["gaussian", "renyi"] = "gaussian"
    orders: dict[str, Annotated[float, Field(gt=1)]] = Field(default={})
    share: float = Field(default=1.0, gt=0, le=1)
    signer: Sha256 = ""
    run: str = ""
    counts: CountsKind = "query"
    own: list[str] = Field(default=[])
    shares_secrets: bool = False
    entries: list[dict[str, Any]] = Field(default=[])
    policy: InForce | None = None


def check_row(row: dict[str, Any]) -> None:
    """Raises `LedgerRefused` for a line with a field, or a field's value, that this version does not know."""
    written, kinds = row.get("format", LEDGER_FORMAT), [fields for kind, fields in KINDS.items() if kind in row]
    known = {*EVERY, *(name for fields in kinds for name in fields)}
    if written != LEDGER_FORMAT or not kinds or not row.keys() <= known:
        what = f"format {written}" if written != LEDGER_FORMAT else ", ".join(sorted(row.keys() - known) or sorted(row))
        words = f"a line has {what}, which this version does not know (format {LEDGER_FORMAT}): what was spent"
        raise LedgerRefused(f"{words} is not known; install the newer version of fedpriv that wrote it")
    missing = [name for fields in kinds for name in fields if name not in row and name not in OPTIONAL]
    try:
        policy = Fields.model_validate(row).policy
    except ValidationError as error:
        missing += [str(wrong["loc"][0]) for wrong in error.errors()]
    else:  # every field of a policy is written, those with a default too
        missing += ["policy"] * (
            "policy" in row and (policy is None or policy.model_dump(mode="json") != row["policy"])
        )
    if missing:
        raise LedgerRefused(f"a line's {', '.join(missing)} cannot be read: what was spent is not known")


def booked_to_json(booked: Booked) -> dict[str, Any]:
    """The part of a ledger's line that determines its cost."""
    return {
        "own": [booked.own.unit, booked.own.adjacency, booked.own.observer],
        "shares_secrets": booked.shares_secrets,
        "entries": [entry_to_json(entry) for entry in booked.entries],
    }


def read_booked(row: dict[str, Any]) -> Booked:
    """Inverse of `booked_to_json`. Raises `LedgerRefused`."""
    try:
        entries = tuple(entry_from_json(entry) for entry in row["entries"])
        return Booked(entries, Threat(*row["own"]), row["shares_secrets"])
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerRefused(f"a line of the ledger cannot be read ({error}): what was spent is not known") from None
