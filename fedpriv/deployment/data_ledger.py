"""The ledger of a data folder: everything that was ever released about its examples, by any run, strategy or server.

    DATA/.fedpriv/ledger.jsonl   first the declaration, then one line for every message that left, and one where
                                 another policy is in force from there on
    DATA/.fedpriv/runs/          the methods' state between participations, a file for each run
    DATA/.fedpriv/account.json   the ledger's running account, a cache: how often each cost was charged, and what left
                                 in the newest round of each run
    DATA/.fedpriv/refusals.json  how often this node refused, by code; the reasons are in the local log alone
    DATA/.fedpriv/lock           locked while a message is answered
    COUNTER (somewhere else)     identifies the ledger: its least length, and a digest of that much of it

A release goes through four steps, each on the disk before the next: its line in the ledger, the method's new state,
the counter, and only then the message. A process may be killed at any point: the ledger can overcount, never
undercount. A torn line lies beyond the length that the counter attests, and its release has not left: the next line
replaces it. A ledger that is missing, different, or shorter than the counter says is refused: it may have been deleted
or restored from a copy, and then what was spent is unknown.

The digest is a hash chain (`fedpriv.common.chain`): a message extends it without reading earlier lines, and each line
names it, so that a copy of the ledger carries the chain. A node with an identity signs the counter: a line with
`signer` names the key, and from there on a counter without its signature is refused. Whoever has the public key knows
that the node had this ledger, and finds two heads that contradict each other. A ledger begun before lines were chained
goes on: its older lines are in the chain of the newer ones.

**The account**, by which a message takes the same time however many came before, is only a cache. `Tie` identifies the
ledger that it sums up: the length and the digest attested by the counter outside the folder, and the file (inode, size,
times of its last change) whose bytes were checked against that digest. Where anything differs or cannot be read, the
account is not used: the ledger is read from its first line, and the account is written anew. A crash can leave an
account that is older than the counter (it is replaced after it), so its tie is invalid; bytes that a power cut lost do
not have its digest. A restored copy can be an older account or ledger (the counter shows that), or the ledger alone
(its inode or its ctime, which cannot be set, differs). Deliberate tampering is out of scope: only the owner can write
here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from pydantic import Field, ValidationError

from fedpriv.common.chain import BEFORE, before, followed, row_of
from fedpriv.common.errors import LedgerRefused, PolicyRefused
from fedpriv.common.files import JsonLines, fsync_folder, read_regular, write_atomic
from fedpriv.common.messages import Refusal, refusal_line, shown_text
from fedpriv.common.systems import AS_IT_IS, lock
from fedpriv.config.options import Options
from fedpriv.deployment.accounting import Accounting
from fedpriv.deployment.declaration import Declared, DeclaredTable, declaring_row, read_declared
from fedpriv.deployment.guard_policy import CountsKind, Sha256
from fedpriv.deployment.policy import Booked, InForce, Policy, Spent
from fedpriv.privacy.events import MOST_WHOLE, Threat, entry_from_json, entry_to_json

log = logging.getLogger("fedpriv")

#: Inside the data folder; hidden, so no picture source reads it.
PRIVATE = ".fedpriv"
#: Seconds that a message waits for another one on the same data.
PATIENCE = 120.0
FORMAT = 6
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
PURPOSE = b"fedpriv ledger head 1\n"
REFUSALS = "refusals.json"  # beside the ledger
MOST_REASON = 2000  # characters of a refusal in the local log


# --- the running account ----------------------------------------------------------------------------------------------


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
    round, and the costs of what left in it; clients: as which client each run was answered.
    """

    declaration: dict[str, Any] = field(default_factory=dict)
    accounting: Accounting | None = None
    spent: Spent = field(default_factory=Spent)
    last: float | None = None
    entries: int = 0
    signer: str = ""
    policy: dict[str, Any] | None = None
    rounds: dict[str, tuple[int, list[Booked]]] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)

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
                self.clients.setdefault(row["run"], booked.entries[0].client)
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
        except (OSError, LedgerRefused, ValueError, LookupError, TypeError, AttributeError, RecursionError):
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


# --- signed heads -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signer:
    """A node's Ed25519 identity (32 bytes)."""

    private: bytes

    @cached_property
    def public(self) -> str:
        """In hexadecimal digits."""
        from fedpriv.common.identities import public_identity  # cryptography: only where it is needed

        return public_identity(self.private).hex()

    def sign(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """The head with key, time (Unix, by this machine's clock; for display) and signature."""
        from fedpriv.common.identities import signature

        whole = dict(head) | {"key": self.public, "time": round(time.time())}
        return whole | {"signature": signature(self.private, head_text(whole)).hex()}


def head_text(head: Mapping[str, Any]) -> bytes:
    """What is signed: everything but the signature."""
    rest = {name: value for name, value in head.items() if name != "signature"}
    return PURPOSE + json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()


def check_head(head: Mapping[str, Any], signer: str, what: str) -> None:
    """Raises `LedgerRefused` unless ``signer`` (hex) has signed the head."""
    from fedpriv.common.identities import verified

    try:
        public, signed = bytes.fromhex(signer), bytes.fromhex(head.get("signature", ""))
    except (ValueError, TypeError):
        public = signed = b""
    if head.get("key") != signer or not verified(public, head_text(head), signed):
        raise LedgerRefused(f"{what} is not signed by {signer}, which signs this ledger's heads")


def signer_of(key_file: Path, option: str) -> Signer:
    """From a node's own disk. Raises `OptionError` that names the option."""
    from fedpriv.common.identities import read_private

    return Signer(read_private(key_file, option))


# --- the ledger -------------------------------------------------------------------------------------------------------


class DataLedger:
    """One data folder's ledger. Use `held`: writing requires the lock. signer: the node's identity, if it has one.

    Raises `LedgerRefused` for a counter inside the data folder.
    """

    def __init__(self, data: Path, counter: Path, signer: Signer | None = None) -> None:
        if Path(os.path.realpath(data)) in Path(os.path.realpath(counter)).parents:
            raise LedgerRefused(f"{counter}: must lie outside the data folder {data}, or one copy would restore both")
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
        self._require_folder()
        self._check(thorough)
        yield self

    # --- under the lock ----------------------------------------------------------------------------------

    @contextmanager
    def held(self, thorough: bool = False) -> Iterator[DataLedger]:
        """The ledger, checked against its counter, locked by this process. Raises `LedgerRefused`.

        thorough: read from its first line, and compare the running account with it.
        """
        self._require_folder()
        with private_file(self.folder / "lock") as file, ExitStack() as stack:
            wait_for_lock(file, self.folder)
            with suppress(OSError):  # of copies of the folder, one at a time: whoever changes it makes the others old
                counter = os.fdopen(os.open(self.counter, os.O_RDWR | AS_IT_IS), "r+b")
                wait_for_lock(stack.enter_context(counter), self.counter)
            for left in self.folder.glob("*/.*.safetensors.*"):  # by a process that was killed; with a sum's secrets
                left.unlink()
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

    def require_client(self, run: str, client: int) -> None:
        """Raises `PolicyRefused` for a run that these data answered as another client: it would count them twice."""
        if (known := self._known.balance.clients.get(run, client)) != client:
            raise PolicyRefused(f"client={client}: these data have answered this run as client {known}, and keep to it")

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
        whole = tie.file[1]  # bytes of its complete lines; fewer than all only after a torn line
        whole = whole if whole <= tie.size else read_regular(self._lines.path).rfind(b"\n") + 1
        if whole != tie.size:
            raise LedgerRefused(f"{self._lines.path}: another process writes into the ledger")
        head = {"ledger": tie.ledger, "bytes": tie.size, "lines": tie.lines, "chain": tie.chain}
        head = signer.sign(head) if (signer := self.signs_heads()) else head
        write_atomic(self.counter, json.dumps(head) + "\n", mode=0o600)
        self._account.write(tie, known.balance)
        self._known = Known(tie, known.balance)

    # --- inside ------------------------------------------------------------------------------------------

    def _require_folder(self) -> None:
        if not self.folder.is_dir():
            raise LedgerRefused(f"{self.folder} is missing: `python -m fedpriv.node init` makes it, once")

    def signs_heads(self) -> Signer | None:
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
            self.signs_heads()  # nothing is written that could not be confirmed
        known.tie = known.tie.followed_by(self._lines.append(row | {BEFORE: known.tie.chain}))
        known.balance.add(row)

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
                f"{self.counter}: the counter is missing or damaged, and nothing else vouches for the ledger: put a "
                "copy of this counter back (an older one will do), or treat the budget of these data as spent"
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
    """Creates missing folders, accessible only to this user. A power cut must not take the counter's away."""
    if not folder.exists():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        fsync_folder(folder.parent)


def private_file(path: Path) -> TextIO:
    """Opens a file to lock, which no other user may open."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | AS_IT_IS, 0o600), "w")


# --- refusals, for the node's operator --------------------------------------------------------------------------------


def note_refusal(data: Path, code: Refusal, reason: str) -> None:
    """Writes the reason into the local log and counts the code in the data folder."""
    log.warning("%s", refusal_line(code, shown_text(reason, MOST_REASON)))
    place = data / PRIVATE / REFUSALS
    # a full disk must not prevent a refusal from being sent; messages that are refused at once wait for each other
    with suppress(OSError, ValueError, LedgerRefused), private_file(place.with_name(f".{REFUSALS}.lock")) as file:
        wait_for_lock(file, place)
        counts = read_counts(data)
        counts[code.name.lower()] = counts.get(code.name.lower(), 0) + 1
        write_atomic(place, json.dumps(counts) + "\n", durable=False, mode=0o600)


def read_counts(data: Path) -> dict[str, int]:
    """How often this node refused, by code. For display: a file torn by a crash counts as empty."""
    try:
        found = json.loads((data / PRIVATE / REFUSALS).read_text())
        return {str(code): int(number) for code, number in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
