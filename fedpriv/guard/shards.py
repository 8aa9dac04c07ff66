"""A machine's data divided among virtual clients: each unit in the shard that a keyed hash of its id decides.

shard(unit) = HMAC-SHA256(salt, id) mod k. The id of a person is what the table's column says; of a row its content
(header and place in the file aside), of a file in a folder its bytes and the name of the folder that it is in. So no
unit's shard depends on another unit, nor does the order of the rest: with a row less, k - 1 shards are the same bytes,
and the last has that row less. This is of data whose form is good: a CSV file with other quotes or line ends is
refused, since there one row could swallow those after it, or the header all of them.

The salt comes from the operating system, once for a data folder, and lies in it; its digest lies beside the counter,
outside. Another salt is refused. Guarantees hold for every salt that does not depend on the data, and since nothing of
an app survives a start, a new partition for the next round would cost nothing; but who may choose again can choose by
looking at the shards, and then one row more could move every shard.

A shard has the form of the whole: a CSV file with the same header, a Parquet file with the same columns, a folder with
the same folders. An empty shard has the header, or the folders, alone: header, columns and folders are public.
With `repeat` all rows of a table's shard come again in the same order: still a function of that shard's own rows.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import itertools
import json
import os
import secrets
import shutil
import site
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.errors import DataError, LedgerRefused
from fedpriv.common.files import read_regular, write_atomic
from fedpriv.common.systems import lock
from fedpriv.deployment.data_ledger import PRIVATE
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.deployment.policy import Policy

if TYPE_CHECKING:  # flwr takes a second to import
    from fedpriv.guard.arrays import Model
    from fedpriv.guard.sandbox import Answer


SALT, SALT_BYTES = "guard.salt", 32
#: How many units are in each shard: private.
UNITS = "units"
#: Of how copies are made: those of an earlier version, which told more, are made anew.
FORM = 2
#: Of which data they are copies; the last file of them that is written, and locked while a message is at them.
STATE = "state"
BOM = b"\xef\xbb\xbf"
SEPARATORS, PARQUET = ",;\t|", (".parquet", ".pq")


def shard_of(salt: bytes, identity: bytes, shards: int) -> int:
    """A unit's shard; modulo k of 256 bits is uniform but for 2^-240."""
    return int.from_bytes(hmac.digest(salt, identity, "sha256"), "big") % shards


def read_salt(data: Path, counter: Path, used: Callable[[], bool]) -> bytes:
    """The data folder's salt. Raises `LedgerRefused`.

    used: whether a guarded message has left; asked where one of its two files is missing. Before that, a crash left one
    without the other, and both are made again. After it, a salt that is gone is not replaced: a new one could be chosen
    by what it does to the data.
    """
    place, vouched = data / PRIVATE / SALT, counter.with_name(counter.name + ".salt")
    there = [place.exists(), vouched.exists()]
    if not all(there) and not used():
        write_atomic(place, secrets.token_hex(SALT_BYTES) + "\n", mode=0o600)
        digest = hashlib.sha256(read_regular(place)).hexdigest()
        write_atomic(vouched, json.dumps({"salt": digest}) + "\n", mode=0o600)
    try:
        text = read_regular(place)
        known = json.loads(read_regular(vouched))["salt"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerRefused(f"{place} and {vouched} go together, and one cannot be read ({error})") from None
    if hashlib.sha256(text).hexdigest() != known:
        raise LedgerRefused(f"{place} is another salt than {vouched} vouches for: the shards are fixed for this folder")
    return bytes.fromhex(text.decode())


@dataclass(frozen=True)
class Shards:
    """The shards of a machine's data. place: where the app finds its data, of whichever shard."""

    data: Path
    policy: GuardPolicy
    salt: bytes

    @property
    def place(self) -> Path:
        return self.data / self.policy.table if self.policy.table else self.data

    def files(self) -> list[Path]:
        """One file or folder for each shard, in the ledger's folder. Made anew where the data have changed; under the
        same names, since an app may see where its data come from, unless a message is still at the old ones. The caller
        holds the ledger where other processes answer messages about these data. Raises `DataError`.
        """
        if self.policy.unit == "client" and self.policy.table:
            return [self.place]  # the data folder itself holds the ledger and a sum's secrets: a copy without them
        state, _ = self.state(), self.forget_changed()
        if (folder := self._copies(state)) is None:
            folder = next(place for place in map(self._folder, itertools.count()) if not place.exists())
            folder.mkdir(mode=0o700, parents=True)
            units = self._divide(folder)
            for file in sorted(folder.rglob("*"), reverse=True):
                os.utime(file, (0, 0))  # when the data changed is nothing that an app may know
            write_atomic(folder / UNITS, json.dumps(units) + "\n", mode=0o600)
            write_atomic(folder / STATE, state, mode=0o600)
        return [folder / str(number) / self.place.name for number in range(self.policy.shards)]

    def asked(self) -> list[Path | None]:
        """What the app is started on, for each shard; None: with `single`, one without exactly one unit."""
        return self._asked(self.files())

    def _asked(self, files: list[Path]) -> list[Path | None]:
        if not self.policy.single:
            return [*files]
        units = json.loads((files[0].parents[1] / UNITS).read_text())
        return [file if count == 1 else None for file, count in zip(files, units, strict=True)]

    @contextmanager
    def lent(self) -> Iterator[list[Path | None]]:
        """As `asked`, of copies that stay while this lasts, whatever becomes of the data; the end of the process ends
        it too, since the kernel then drops the lock.
        """
        with ExitStack() as stack:
            if (files := self.files()) != [self.place]:
                lock(stack.enter_context(open(files[0].parents[1] / STATE)), shared=True)
            yield self._asked(files)

    def forget_changed(self) -> bool:
        """Deletes copies of data that have changed since: what was deleted is in them still. The caller holds the
        ledger. Copies that a message is at stay until this is asked again. Returns whether any were deleted.
        """
        kept = self._copies(self.state())
        gone = [self._delete(place) for place in self._folder("").glob("*") if place != kept]
        return any(gone)

    def _copies(self, state: str) -> Path | None:
        """Of the data in this state, whole; None: there are none."""
        known = self._folder("").glob(f"*/{STATE}")
        return next((file.parent for file in known if file.read_text() == state), None)

    def _folder(self, number: int | str) -> Path:
        return self.data / PRIVATE / "shards" / str(number)

    @staticmethod
    def _delete(place: Path) -> bool:
        """Copies, unless a message is at them."""
        with ExitStack() as stack:
            if (state := place / STATE).exists():
                try:
                    lock(stack.enter_context(open(state, "r+")))
                except OSError:
                    return False
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        return True

    def state(self) -> str:
        """A digest of what the division depends on: salt, policy, and the data as they are. Raises `DataError`."""
        files = sorted(_files(self.place)) if self.place.is_dir() else [self.place]
        try:
            found = [(str(file.relative_to(self.place)), file.stat()) for file in files]  # however the folder is named
            state = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found]
        except OSError as error:
            raise DataError(f"{self.place}: {error.strerror}") from None
        rules = [self.policy.shards, self.policy.unit, self.policy.column, self.policy.repeat]
        text = json.dumps([UNITS, FORM, self.salt.hex(), *rules, state])
        return hashlib.sha256(text.encode()).hexdigest()

    def _divide(self, into: Path) -> list[int]:
        """Returns the number of units in each shard."""
        count = self.policy.shards
        for number in range(count):
            (into / str(number)).mkdir(mode=0o700)
        targets = [into / str(number) / self.place.name for number in range(count)]
        repeat = self.policy.repeat
        if self.place.is_dir():
            if self.policy.unit == "person":
                raise DataError(f"{self.place}: unit person needs a table, whose column names the person")
            _no_repeat(self.place, self.policy)
            return _divide_folder(self.place, targets, self.salt)
        if self.place.suffix.lower() in PARQUET:
            return _divide_parquet(self.place, targets, self.salt, self.policy.column, repeat)
        return _divide_csv(self.place, targets, self.salt, self.policy.column, repeat)


def count_units(data: Path, policy: GuardPolicy) -> int:
    """Units in the data, for the operator: rows, files, or different persons. Raises `DataError`."""
    place = data / policy.table if policy.table else data
    if not place.exists():
        raise DataError(f"{place}: there is no such file or folder (guard.table)")
    if policy.unit == "client":
        return 1
    if place.is_dir():
        _no_repeat(place, policy)
        return sum(1 for _ in _files(place))
    if place.suffix.lower() in PARQUET:
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(place)
        if policy.column is None:
            return int(table.num_rows)
        values = _values(table[_known(place, policy.column, table.column_names)])
        return len({str(value).strip() for value in values})
    header, separator, records = _table(place)
    if policy.column is None:
        return sum(1 for _ in records)
    column = _fields(header, separator).index(_known(place, policy.column, _fields(header, separator)))
    return len({_person(record, separator, column) for record in records})


def _no_repeat(place: Path, policy: GuardPolicy) -> None:
    if policy.repeat > 1:
        raise DataError(f"{place}: guard.repeat={policy.repeat} needs a table; of a folder it is 1")


def _known(place: Path, column: str, names: list[str]) -> str:
    if column not in names:
        raise DataError(f"{place}: guard.column={column}: the table has {', '.join(names)[:300]}")
    return column


def _table(source: Path) -> tuple[bytes, str, Iterator[bytes]]:
    """A CSV file's header, separator and records."""
    text = read_regular(source).removeprefix(BOM)
    first = text.lstrip().partition(b"\n")[0]
    separator = max(SEPARATORS, key=first.decode("utf-8", "replace").count)
    records = _records(source, text, separator.encode())
    header = next(records, b"")
    names = _fields(header, separator)
    if b"\0" in header:
        raise DataError(f"{source}: must be UTF-8 text")
    if names and 2 * sum(map(_is_number, names)) >= len(names):
        raise DataError(
            f"{source}: the first line must name the columns, since every shard has it; its names are numbers"
        )
    return header, separator, records


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _person(record: bytes, separator: str, place: int) -> bytes:
    """The id's own bytes: of names in Latin-1, which is no UTF-8, two that differ are two persons."""
    fields = _fields(record, separator, "surrogateescape")
    return (fields[place].strip() if place < len(fields) else "").encode(errors="surrogateescape")


def _divide_csv(source: Path, targets: list[Path], salt: bytes, column: str | None, repeat: int) -> list[int]:
    """Records as they are written, bytes and all; a line break ends each."""
    header, separator, records = _table(source)
    parts: list[list[bytes]] = [[] for _ in targets]
    persons: list[set[bytes]] = [set() for _ in targets]
    place = None
    if column is not None:
        names = _fields(header, separator)
        place = names.index(_known(source, column, names))
    for record in records:
        identity = record if place is None else _person(record, separator, place)
        shard = shard_of(salt, identity, len(targets))
        parts[shard].append(record)
        persons[shard].add(identity)
    for target, part in zip(targets, parts, strict=True):
        target.write_bytes(b"".join(line + b"\n" for line in (header, *(part * repeat))))
    return [len(found) for found in (parts if column is None else persons)]


def _records(source: Path, text: bytes, separator: bytes) -> Iterator[bytes]:
    """Records without their line breaks; those inside quotes belong to a record. Empty lines are none.

    A quote opens a field only as its first letter, and what closes it ends the field. So where one record ends does not
    depend on the next: of such records every sequence is read as these records. Raises `DataError` for others.
    """
    waiting: list[bytes] = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if (opened := _open_after(line.removesuffix(b"\r"), separator, bool(waiting))) is None:
            raise DataError(
                f"{source}, line {number}: after a closing quote comes {separator.decode()!r} or the line's end"
            )
        if b"\r" in line.removesuffix(b"\r"):
            raise DataError(f"{source}, line {number}: lines must end with \\n or \\r\\n, and here \\r is alone")
        waiting.append(line)
        if not opened:
            record = b"\n".join(waiting).removesuffix(b"\r")
            waiting = []
            if record.strip():
                yield record
    if waiting:
        raise DataError(f"{source}: a quote that opens in one of the last {len(waiting)} lines is never closed")


def _open_after(line: bytes, separator: bytes, opened: bool) -> bool | None:
    """Whether a quoted field is open after a line, before which it was (opened); None: the quotes are wrong."""
    place = 0
    while True:
        if not opened and line[place : place + 1] == b'"':
            opened, place = True, place + 1
        while opened:
            if (place := line.find(b'"', place)) < 0:
                return True
            opened = line[place + 1 : place + 2] == b'"'  # two are one that belongs to the field
            place += 2 if opened else 1
            if not opened and line[place : place + 1] not in (b"", separator):
                return None
        if (place := line.find(separator, place)) < 0:
            return False
        place += 1


def _fields(record: bytes, separator: str, errors: str = "replace") -> list[str]:
    text = io.StringIO(record.decode("utf-8", errors), newline="")
    try:
        return next(csv.reader(text, delimiter=separator), [])
    except csv.Error as error:
        raise DataError(f"a record that cannot be read: {error}") from None


def _divide_parquet(source: Path, targets: list[Path], salt: bytes, column: str | None, repeat: int) -> list[int]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(source)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source}: no Parquet file ({' '.join(str(error).split())[:200]})") from None
    if column is not None:
        _known(source, column, table.column_names)
    rows: list[list[int]] = [[] for _ in targets]
    persons: list[set[str]] = [set() for _ in targets]
    columns = {name: _values(table[name]) for name in ([column] if column else table.column_names)}
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        identity = str(values[0]).strip() if column else repr(dict(zip(columns, values, strict=True)))
        shard = shard_of(salt, identity.encode(), len(targets))
        rows[shard].append(number)
        persons[shard].add(identity)
    # Rows alone: a schema's metadata count the rows of the whole, and dictionaries, nested ones too, name their values.
    fields = [pyarrow.field(field.name, _plain(field.type), field.nullable) for field in table.schema]
    plain = table.cast(pyarrow.schema(fields))
    for target, part in zip(targets, rows, strict=True):
        taken = plain.take(pyarrow.array(part * repeat, pyarrow.int64())).combine_chunks()
        pyarrow.parquet.write_table(taken, target)
    return [len(found) for found in (rows if column is None else persons)]


def _plain(kind: Any) -> Any:
    """An Arrow type without dictionaries: of the whole column they, and statistics of them, would be in every shard."""
    import pyarrow
    from pyarrow import types

    if isinstance(kind, pyarrow.BaseExtensionType):
        plain = _plain(kind.storage_type)
        return kind if plain == kind.storage_type else plain
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_struct(kind):
        return pyarrow.struct([(field.name, _plain(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(_plain(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pyarrow.large_list(_plain(kind.value_type))
    return pyarrow.list_(_plain(kind.value_type)) if types.is_list(kind) else kind


def _values(column: Any) -> list[Any]:
    """Of a Parquet table's column. A value that Python cannot hold (a time in the year 318,857) is its bytes."""
    try:
        return list(column.to_pylist())
    except (ValueError, ArithmeticError):
        return [_value(column, number) for number in range(len(column))]


def _value(column: Any, number: int) -> Any:
    try:
        return column[number].as_py()
    except (ValueError, ArithmeticError):
        buffers = column.take([number]).combine_chunks().buffers()
        return b"".join(buffer.to_pybytes() for buffer in buffers if buffer is not None)


def _divide_folder(source: Path, targets: list[Path], salt: bytes) -> list[int]:
    units = [0] * len(targets)
    folders = sorted(place.relative_to(source) for place in _visible(source) if place.is_dir())
    for target in targets:
        for folder in (Path(), *folders):
            (target / folder).mkdir(parents=True, exist_ok=True)
    for file in sorted(_files(source)):
        content, place = read_regular(file), file.relative_to(source)
        identity = str(place.parent).encode() + b"\0" + content
        shard = shard_of(salt, identity, len(targets))
        (targets[shard] / place).write_bytes(content)
        units[shard] += 1
    return units


def _files(folder: Path) -> Iterator[Path]:
    return (place for place in _visible(folder) if place.is_file() and not place.is_symlink())


def _visible(folder: Path) -> Iterator[Path]:
    for place in folder.rglob("*"):
        if not any(part.startswith(".") for part in place.relative_to(folder).parts):
            yield place


# --- what became of the shards: for the operator alone, since it depends on the data ------------------------------
#
# Beside the ledger, and not part of it: what a message costs does not depend on how many shards answered. Of an app
# that was tried (`fedpriv.guard.trial`) the last trial decides whether it may answer.

#: In the ledger's folder: counts of shards by run, and what the last trial of each app gave.
ANSWERS, TRIALS = "guard-answers.json", "guard-trials.json"
#: Characters of a reason that are printed.
LONGEST = 200
#: Of a policy's section `guard`: what the answer of a start does not depend on.
_BESIDE_STARTS = {
    *("apps", "min_answered", "pad_seconds", "clip", "noise_multiplier", "noise", "sampling"),
    *("sites", "min_replies", "colluders", "threshold", "bits"),
}
#: What can become of a shard, by the word that `Model.fault` has for it.
SHARDS = {
    "answered": "an answer of the model's form, clipped",
    "not asked": "zero update: a shard without exactly one unit, where the policy says single",
    "no arrays": "zero update: no answer (a crash, a time-out, too much, no arrays)",
    "other form": "zero update: arrays of another number, shape or type",
    "not finite": "zero update: NaN or infinity",
}


def count_answers(data: Path, run: str, shards: Iterable[str]) -> None:
    """Adds one message's shards, each by its word."""
    with suppress(OSError, ValueError):  # a full disk must not change an answer
        counts = read_answers(data)
        of_run = counts.setdefault(run, {})
        for word in ("messages", *shards):
            of_run[word] = of_run.get(word, 0) + 1
        write_atomic(data / PRIVATE / ANSWERS, json.dumps(counts) + "\n", durable=False, mode=0o600)


def read_answers(data: Path) -> dict[str, dict[str, int]]:
    """By run: messages, and shards by their word. For display: a damaged file counts as empty."""
    try:
        found = json.loads((data / PRIVATE / ANSWERS).read_text())
        return {str(run): {str(word): int(number) for word, number in counts.items()} for run, counts in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


# --- trials -------------------------------------------------------------------------------------------------------


def last_line(fault: str) -> str:
    """Of a traceback: what was raised."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()]
    return (lines or [""])[-1].removeprefix("the app failed: ")[:LONGEST]


@dataclass
class Starts:
    """How an app's starts went. reasons: of those that did not answer."""

    answered: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    processor_s: float = 0.0
    memory_bytes: int = 0

    def add(self, model: Model, answer: Answer | None) -> None:
        """answer: None: a shard without a start, which does not count."""
        if answer is None:
            return
        self.seconds.append(answer.seconds)
        self.processor_s = np.fmax(self.processor_s, answer.processor_s)
        self.memory_bytes = max(self.memory_bytes, answer.memory_bytes)
        fault = model.fault(answer.arrays)
        if fault is None:
            self.answered += 1
        else:
            self.reasons[last_line(answer.fault or SHARDS[fault])] += 1

    @property
    def started(self) -> int:
        return self.answered + self.reasons.total()

    @property
    def share(self) -> float:
        return self.answered / self.started if self.started else 0.0

    def __str__(self) -> str:
        why = "; ".join(f"{count} x {reason}" for reason, count in self.reasons.most_common(10))
        words = f"{self.answered} of {self.started} starts answered ({100 * self.share:.1f} %)"
        return f"{words}: {why}" if why else words

    def enough(self, rules: GuardPolicy) -> bool:
        """Whether as many answered as the policy asks for."""
        return self.share >= rules.min_answered and (self.started > 0 or rules.min_answered == 0)


@dataclass
class Trial:
    """starts: by kind of message (train, or declared counts). no_model: why train is not among them. state: as
    `state_of`, when it was made.
    """

    starts: dict[str, Starts]
    no_model: str = ""
    state: str = ""

    def __str__(self) -> str:
        return "; ".join(f"{kind}: {starts}" for kind, starts in self.starts.items())

    def enough(self, rules: GuardPolicy) -> bool:
        return all(starts.enough(rules) for starts in self.starts.values())


def why_not(data: Path, digest: str, policy: Policy, client: int, kind: str = "", state: str = "") -> str | None:
    """Why an app may not answer, by its last trial; None: it may. kind: of the message; state: as `state_of`, empty
    where it does not matter. An app that nobody has tried may answer where the policy allows any.
    """
    rules = policy.guard
    assert rules is not None
    if rules.min_answered == 0:
        return None
    trial = known_trial(data, digest, policy, client)
    if trial is None or (state and state != trial.state) or (kind and kind not in trial.starts):
        since = "since its data or packages changed" if trial is not None and state else "under these rules"
        how = f"`fedpriv deploy node try guard=APP client={client}` does"
        return None if rules.apps == "any" else f"nobody has tried it {since}: {how}"
    if trial.enough(rules):
        return None
    return f"asks for more than this app has: {trial}; lower it, or see `fedpriv deploy node try`"


def known_trial(data: Path, digest: str, policy: Policy, client: int) -> Trial | None:
    """The last trial of an app under these rules, if there was one."""
    try:
        trial = _read(data)[digest]
        starts = {kind: Starts(int(one["answered"]), Counter(one["reasons"])) for kind, one in trial["starts"].items()}
        known = Trial(starts, state=str(trial["state"]))
        return known if trial["rules"] == _rules(policy, client) else None
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or a damaged file: tried again
        return None


def note_trial(data: Path, digest: str, policy: Policy, client: int, trial: Trial) -> None:
    """The caller holds the ledger: notes of several trials at once are all kept."""
    starts = {kind: {"answered": one.answered, "reasons": one.reasons} for kind, one in trial.starts.items()}
    noted = {"rules": _rules(policy, client), "state": trial.state, "starts": starts}
    write_atomic(data / PRIVATE / TRIALS, json.dumps(_read(data) | {digest: noted}) + "\n", mode=0o600)


def state_of(data: Path, policy: Policy) -> str:
    """A digest of the data and of the installed packages as they are, which no process changes for itself: libraries
    add folders to ``sys.path``. Raises `DataError`, `LedgerRefused`.
    """
    assert policy.guard is not None
    shards = Shards(data, policy.guard, read_salt(data, Path(policy.counter), used=lambda: True))
    installed = distributions(path=site.getsitepackages())
    packages = sorted({f"{package.name} {package.version}" for package in installed})
    return hashlib.sha256(json.dumps([shards.state(), packages]).encode()).hexdigest()


def _rules(policy: Policy, client: int) -> str:
    """A digest of what is not the app's and decides what a start answers, but for `state_of`."""
    assert policy.guard is not None
    rules = policy.guard.model_dump(mode="json", exclude=_BESIDE_STARTS)
    return hashlib.sha256(json.dumps([rules, policy.limits.max_parameters, client]).encode()).hexdigest()


def _read(data: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((data / PRIVATE / TRIALS).read_text()))
    except (OSError, ValueError, TypeError):
        return {}
