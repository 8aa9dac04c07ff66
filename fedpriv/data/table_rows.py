"""Tables of people: rows encoded by their public schema, and the data sets that they make.

Everything here runs where the data are. Errors name the file, the row and the column, for whoever holds it; a
node sends none of these words on.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.versions import installed
from fedpriv.config.data_schema import HUB_TABLES, DatasetConfig
from fedpriv.config.own_options import CONF
from fedpriv.data.cache import cache_folder, stored
from fedpriv.data.hub import hub_identity, read_split, table_splits
from fedpriv.data.installed_tables import INSTALLED, docstrings_version
from fedpriv.data.partition import divide_by_class
from fedpriv.data.table_files import DECIMALS, MISSING, SEPARATORS, Form, column_names, read_columns, site_form
from fedpriv.data.table_schema import (
    FOLDED,
    Column,
    TableSchema,
    Target,
    canonical,
    day_of,
    days_of,
    parsed_number,
    read_schema,
    value_places,
)
from fedpriv.data.texts import hashed
from fedpriv.data.types import Dataset, Examples, generator
from fedpriv.mechanisms.tasks import PADDING, Multilabel, NextToken, Nothing, Regression, Survival, Task, of_classes

if TYPE_CHECKING:
    import pyarrow as pa


#: Texts that are encoded at a time: as sparse rows, then as the table's.
TEXTS = 1 << 12
#: Rows whose numbers are scaled at a time: 1 MB of 60 inputs.
TOGETHER = 1 << 12
#: Truth values in a column of numbers, as a column of truth values has them.
TRUTHS = {"false": 0.0, "true": 1.0}
#: Share of a column's cells that may be lost or clipped without a warning.
MOST_LOST = 0.2
#: Names of data sets that are the user's own files, and of sets of the hub.
OWN_FILES, HUB = ("table", "on_nodes"), "huggingface"
#: Installed tables whose rows are divided into training and test rows by a column, all rows of a value on one side.
GROUPED = {"docstrings": "module", "docstrings_next": "module"}


@dataclass(frozen=True)
class Counted:
    """Of a column's cells [rows]: how many are missing, and how many the schema does not name (lost: they count as
    "other") or has outside its range (clipped: they count as its end).
    """

    column: str
    rows: int
    missing: int
    changed: int
    clipped: bool

    @property
    def words(self) -> str:
        """Nothing, where every cell is as the schema has it."""
        how = "clipped to the range" if self.clipped else "lost (of a value that the schema does not name)"
        parts = [f"{self.changed} of {self.rows} rows {how}"] if self.changed else []
        parts += [f"{self.missing} missing"] if self.missing else []
        return f"{self.column}: {', '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class Encoded:
    """Rows as a model reads them.

    inputs: float32 [n, d], or token ids [n, t] (`blank_inputs`); targets: int64 [n] (classes), float32 [n] (regression:
    scaled to [-1, 1]), float32 [n, k] (labels) or int64 [n, t] (next tokens, `PADDING` where there is none); None
    where the file has none and none were asked for. unit: int64 [n], rows with the same number are of
    one person; None where a row is a unit. remarks: what the schema changed, in sentences for whoever holds the data.
    counted: the same in numbers, of each column of numbers or categories. persons: the cells that name them, by number.
    """

    inputs: np.ndarray
    targets: np.ndarray | None
    unit: np.ndarray | None
    remarks: tuple[str, ...]
    counted: tuple[Counted, ...] = ()
    persons: tuple[str, ...] = ()


def lost_columns(encoded: Encoded, name: str) -> list[str]:
    """A warning for each column of which more than `MOST_LOST` of the cells are lost or clipped. Raises `DataError`,
    with ``name``, where all cells of a column are: its name, spelling or unit is another than the schema's.
    """
    warnings = []
    for column in encoded.counted:
        present = column.rows - column.missing
        if column.changed == present > 0:
            what = "lies in the range" if column.clipped else "is one of the values"
            words = f"none of {present} cells {what} that the schema names; another unit, code or spelling?"
            words += "" if column.clipped else " (values: in TABLE.form.yaml beside the file replaces them)"
            raise DataError(f"{name}: column {column.column} is lost: {words}")
        if column.changed > MOST_LOST * present:
            warnings.append(f"WARNING: {column.words}")
    return warnings


def encode_file(path: str | Path, schema: TableSchema, form: Form | None = None, targets: bool = True) -> Encoded:
    """The rows of a file. targets: whether it must hold the target and the unit. Raises `DataError` with the row."""
    names = schema.needed if targets else tuple(name for name, _ in schema.inputs)
    table = read_columns(Path(path), names, form, schema)
    return encode(table, schema, str(path), targets, (form or Form()).decimal)


def check(path: str | Path, schema: TableSchema, form: Form | None = None) -> tuple[list[str], list[str]]:
    """(what happens to a file's rows under a schema, in sentences; a warning for each column of which many cells are
    lost). Raises `DataError` for what a run would refuse. For whoever holds the data: neither is sent anywhere.
    """
    rows = encode_file(path, schema, form)
    warnings = lost_columns(rows, str(path))
    units = "" if rows.unit is None else f", {len(np.unique(rows.unit))} units ({schema.unit})"
    lines = [f"{len(rows.inputs)} rows{units}, {schema.num_inputs} inputs", f"digest {schema.digest}"]
    return [*lines, *rows.remarks, "this says something of the rows: keep it where they are"], warnings


# --- encoding --------------------------------------------------------------------------------------------


def encode(table: pa.Table, schema: TableSchema, name: str, targets: bool = True, decimal: str = ".") -> Encoded:
    """A table's rows (`Encoded`). Raises `DataError`, with ``name``, the column and the row (counted from 1)."""
    if schema.unfilled:
        raise OptionError("dataset.schema", "?", f"columns that hold '?': {', '.join(schema.unfilled[:8])}")
    if table.num_rows == 0:
        raise DataError(f"{name}: has no rows")
    inputs = blank_inputs(schema, table.num_rows, name)
    counted = dict.fromkeys(column for column, _ in schema.inputs)
    numbers: list[_Numbers] = []
    start = 0
    for column_name, column in schema.inputs:
        indicated, stop = schema.indicated(column), start + schema.width(column)
        where, marks = f"{name}: column {column_name}", schema.missing_marks(column)
        cells = Cells(table.column(column_name), where, decimal, marks)
        into = inputs[:, start:stop]
        if column.kind == "range":
            values, missing = cells.numbers()
            numbers.append(_Numbers(column_name, values, missing, column.range, column.fill, into))
        elif column.kind == "values":
            counted[column_name], missing = _values(column_name, cells, column, into)
        else:
            _text(cells, column, into)
        if column.kind != "text" and not indicated and missing.any():
            words = "a value is missing, and the schema says missing: refuse"
            raise DataError(f"{cells.where}, row {_first(missing)}: {words}")
        start = stop
    counted |= _scale(numbers, len(inputs))
    counts = [count for count in counted.values() if count is not None]
    outputs, unit, note, persons = None, None, "", list[str]()
    if targets:
        outputs, note = _targets(table, schema, name, decimal, counts)
        if schema.unit is not None:
            words = "nobody is named; each row needs a unit"
            unit, persons = numbered(table, schema, schema.unit, name, words, decimal)
    remarks = filter(None, [*(column.words for column in counts), note])
    return Encoded(inputs, outputs, unit, tuple(remarks), tuple(counts), tuple(persons))


def blank_inputs(schema: TableSchema, rows: int, name: str = "") -> np.ndarray:
    """float32 [rows, inputs], or of token ids the smallest type that holds them. Raises `DataError` where they do not
    fit into memory.
    """
    import psutil

    inputs, most = schema.num_inputs, schema.vocabulary
    kind = np.dtype(np.float32 if most is None else np.uint16 if most <= 1 << 16 else np.int32)
    size, free = kind.itemsize * rows * inputs, psutil.virtual_memory().available
    if size > free:
        words = f"{rows} rows of {inputs} inputs take {size >> 20} MB, and {free >> 20} MB are free"
        raise DataError(f"{name}: {words}; allowed: fewer rows, dims of texts or values")
    return np.zeros((rows, inputs), kind)


@dataclass(frozen=True)
class _Numbers:
    """A column of numbers [n], where they are missing (bool [n]), and its inputs [n, 1], with an indicator [n, 2]."""

    name: str
    numbers: np.ndarray
    missing: np.ndarray
    bounds: Any
    fill: float | None
    into: np.ndarray


def _scale(columns: list[_Numbers], rows: int) -> dict[str, Counted | None]:
    """Writes all columns of numbers; name -> what was changed. Some rows of all columns at a time, which stay in the
    processor's cache.
    """
    outside = [0] * len(columns)
    for start in range(0, rows, TOGETHER):
        block = slice(start, start + TOGETHER)
        for place, column in enumerate(columns):
            missing = column.missing[block]
            scaled, clipped = _scaled(column.numbers[block], column.bounds)
            filled = 0 if column.fill is None else _scaled(np.array(column.fill), column.bounds)[0]
            column.into[block, 0] = np.where(missing, filled, scaled)
            column.into[block, 1:] = missing[:, None]
            outside[place] += int(np.count_nonzero(clipped & ~missing))
    return {
        column.name: _counted(column.name, changed, column.missing, clipped=True)
        for column, changed in zip(columns, outside, strict=True)
    }


def _values(name: str, cells: Cells, column: Column, into: np.ndarray) -> tuple[Counted, np.ndarray]:
    """(what was changed; whether a cell is missing, bool [n])."""
    assert isinstance(column.values, tuple)
    number = len(column.values)
    codes, missing = cells.codes(column.values)
    unknown = (codes < 0) & ~missing
    rows = np.flatnonzero(~missing)
    into[rows, np.where(unknown, number, codes)[rows]] = 1
    into[:, number + 1 :] = missing[:, None]
    return _counted(name, int(np.count_nonzero(unknown)), missing), missing


def _text(cells: Cells, column: Column, into: np.ndarray) -> None:
    """A missing text is an empty one."""
    for start, block in texts_of(cells.column, cells.where, cells.marks):
        part = into[start : start + len(block)]
        if column.text == "tokens":
            part[:] = column.rule.ids(block, part.shape[1])
        elif column.text == "encoder":
            part[:] = column.text_encoder.vectors(block, column.sha256)
        else:
            part[:] = hashed(block, column.dims).toarray()


def texts_of(column: Any, where: str, marks: Collection[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """(first row, texts) of a column's blocks, in Unicode's composed form; empty where a cell is one of the marks of a
    missing value. Raises `DataError` for bytes that are no UTF-8.
    """
    for start in range(0, len(column), TEXTS):
        part = column[start : start + TEXTS]
        try:
            cells = part.to_pylist()
        except UnicodeDecodeError:
            raise DataError(f"{where}, row {start + _unreadable(part) + 1}: is not UTF-8") from None
        texts = [unicodedata.normalize("NFC", "" if cell is None else str(cell)) for cell in cells]
        yield start, ["" if marks and canonical(text) in marks else text for text in texts]


def _unreadable(column: Any) -> int:
    """The first cell that is no text."""
    for row, cell in enumerate(column):
        try:
            cell.as_py()
        except UnicodeDecodeError:
            return row
    return len(column)


def _targets(
    table: pa.Table, schema: TableSchema, name: str, decimal: str, counts: list[Counted]
) -> tuple[np.ndarray, str]:
    """(targets; a remark). A number's count is added to ``counts``."""
    target, marks = schema.target, schema.missing_marks()
    if target.task == "none":
        return np.zeros(len(table), np.float32), ""
    columns = [Cells(table.column(each), f"{name}: column {each}", decimal, marks) for each in target.names]
    cells = columns[0]
    if target.task == "multilabel":
        labels, unknown = zip(*(column.codes(("0", "1")) for column in columns), strict=True)
        refused = schema.missing == "refuse"
        for column, codes, gone in zip(columns, labels, unknown, strict=True):
            if (wrong := (codes < 0) & (~gone | refused)).any():
                words = "0 or 1" if refused else "0, 1 or missing (unknown)"
                raise DataError(f"{column.where}, row {_first(wrong)}: a label must be {words}")
        counted = zip(target.columns, unknown, strict=True)
        said = [f"{label}: {gone.sum()} of {len(gone)} rows have no label" for label, gone in counted if gone.any()]
        return np.where(unknown, np.nan, labels).T.astype(np.float32), "; ".join(said)
    if target.task == "next_token":
        return next_tokens(schema, cells.column, cells.where), ""
    if target.task == "classification":
        assert isinstance(target.classes, tuple)
        codes = _classes(cells, target.classes)
        held = np.bincount(codes, minlength=len(target.classes))
        absent = [text for text, number in zip(target.classes, held, strict=True) if not number]
        return codes, f"{target.column}: no row is of the class {', '.join(absent[:8])}" if absent else ""
    numbers, missing = cells.numbers()
    if missing.any():
        raise DataError(f"{cells.where}, row {_first(missing)}: the target is missing")
    if target.task == "survival":
        return _survival(target, numbers, columns)
    scaled, outside = _scaled(numbers, target.range)
    counts.append(_counted(target.names[0], int(np.count_nonzero(outside)), missing, clipped=True))
    return scaled.astype(np.float32), ""


def _classes(cells: Cells, classes: tuple[str, ...]) -> np.ndarray:
    """int64 [n]: the place of each cell. Raises `DataError` for one that is none of them."""
    codes, missing = cells.codes(classes)
    if (codes < 0).any():
        row = _first(codes < 0)
        cell = str(cells.column[row - 1].as_py())[:60]
        words = "the target is missing" if missing[row - 1] else f"{cell!r} is none of the classes"
        raise DataError(f"{cells.where}, row {row}: {words}; classes: {', '.join(classes[:12])}")
    return codes


def _survival(target: Target, times: np.ndarray, columns: list[Cells]) -> tuple[np.ndarray, str]:
    """As `_targets`: of who reaches the end no event counts."""
    assert isinstance(target.classes, tuple) and target.until is not None
    if (times < 0).any():
        row = _first(times < 0)
        words = f"{times[row - 1]:g} is before the beginning; allowed: times from 0"
        raise DataError(f"{columns[0].where}, row {row}: {words}")
    event = target.classes.index(target.positive) if target.positive else 1
    ends = times >= target.until
    happened = (_classes(columns[1], target.classes) == event) & ~ends
    if not happened.any():
        note = f"{target.event}: no row has the event before {target.until:g}"
    else:
        note = f"{target.time}: {ends.sum()} of {len(ends)} rows reach the end, {target.until:g}" if ends.any() else ""
    return np.stack([times.clip(max=target.until) / target.until, happened], axis=1).astype(np.float32), note


def next_tokens(schema: TableSchema, column: Any, where: str) -> np.ndarray:
    """Of each token of the inputs the one that follows it: int64 [n, t]."""
    tokens = schema.tokens
    assert tokens is not None and tokens.length is not None
    targets = np.full((len(column), tokens.length), PADDING, np.int64)
    for start, block in texts_of(column, where):
        ids = tokens.rule.ids(block, tokens.length + 1)[:, 1:]
        targets[start : start + len(block)] = np.where(ids > 0, ids, PADDING)
    return targets


def numbered(
    table: pa.Table, schema: TableSchema, column: str, name: str, words: str, decimal: str = "."
) -> tuple[np.ndarray, list[str]]:
    """(int64 [n], the number of each row's cell; the cells' texts by number) of a column of names. Raises `DataError`
    with ``words`` for a missing one, and for two names that mean the same (1.1 and 1.10): who they are is not guessed.
    Of two persons in the place of one, either would move a clipped mean by up to twice the bound.
    """
    cells = Cells(table.column(column), f"{name}: column {column}", decimal, schema.missing_marks())
    encoded = cells.texts().dictionary_encode()
    ids, texts = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
    if len(written := cells.written()) > len(texts):
        named = dict[str, str]()
        other, name = next((named[one], n) for n in written if named.setdefault(one := canonical(n, decimal), n) != n)
        raise DataError(f"{cells.where}: {other!r} and {name!r} mean the same; allowed: one spelling of each name")
    blank = [number for number, text in enumerate(texts) if text in MISSING or text in cells.marks]
    missing = np.isnan(ids) | np.isin(ids, blank)
    if missing.any():
        raise DataError(f"{cells.where}, row {_first(missing)}: {words}")
    return ids.astype(np.int64), texts


# --- cells -----------------------------------------------------------------------------------------------


class Cells:
    """A column's cells by their meaning, the same of every file and type that holds them (`canonical`).

    where: file and column, for errors. sign: before a fraction in texts. marks: canonical texts of missing values.
    """

    def __init__(self, column: Any, where: str, sign: str, marks: Collection[str] = ()) -> None:
        from pyarrow import types

        self.where, self.sign, self.marks = where, sign, marks
        self.column = column.cast(column.type.value_type) if types.is_dictionary(column.type) else column
        self.type = self.column.type

    def texts(self) -> Any:
        """Canonical texts: an array of strings [n], null where a typed column has no value."""
        import pyarrow as pa
        from pyarrow import compute, types

        column = self.column.combine_chunks()
        if types.is_float16(self.type):
            column = pa.array(self._halves(), mask=compute.is_null(column).to_numpy(zero_copy_only=False))
        if types.is_timestamp(self.type):
            column = column.cast(pa.int64()).cast(pa.timestamp(self.type.unit))  # UTC
        elif types.is_date64(self.type):
            column = column.cast(pa.date32())
        texts = compute.utf8_normalize(compute.utf8_trim_whitespace(column.cast(pa.string())), "NFC")
        if compute.any(compute.match_substring_regex(texts, FOLDED)).as_py():
            encoded = texts.dictionary_encode()
            folded = [canonical(text, self.sign) for text in encoded.dictionary.to_pylist()]
            texts = pa.array(folded, pa.string()).take(encoded.indices)
        return texts

    def written(self) -> list[str]:
        """The different texts of a column of texts, without blanks around them."""
        from pyarrow import compute, types

        kinds = types.is_string, types.is_large_string, types.is_string_view
        if not any(kind(self.type) for kind in kinds):
            return []
        trimmed = compute.utf8_trim_whitespace(self.column.cast("string").unique().drop_null())
        return list(compute.utf8_normalize(trimmed, "NFC").unique().to_pylist())

    def codes(self, values: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(place among ``values``, int64 [n], -1 for none of them; whether the cell is missing, bool [n])."""
        import pyarrow as pa
        from pyarrow import compute

        texts, places = self.texts(), value_places(values)
        known = compute.fill_null(compute.index_in(texts, pa.array([*places], pa.string())), len(places))
        gone = pa.array([text for text in (*MISSING, *self.marks) if text not in places], pa.string())
        missing = compute.or_(compute.is_null(texts), compute.fill_null(compute.is_in(texts, gone), False))
        return np.array([*places.values(), -1])[known.to_numpy()], missing.to_numpy(zero_copy_only=False)

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """(numbers float64 [n], NaN where missing; whether the cell is missing). A date is its day's number; a number
        of 16 or 32 bits is the shortest decimal that names it, as a file of texts has it.
        """
        import pyarrow as pa
        from pyarrow import compute, types

        column, kind, dated = self.column, self.type, False
        if types.is_date(kind) or types.is_timestamp(kind):
            column = column if types.is_timestamp(kind) else column.cast(pa.timestamp("ms"))
            parts = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
            gone = compute.is_null(column).to_numpy()
            seconds, rest = np.divmod(compute.fill_null(column.cast(pa.int64()), 0).to_numpy(), parts)
            numbers, dated = np.where(gone, np.nan, days_of(seconds, rest * (10**9 // parts))), True
        elif types.is_float16(kind):
            numbers = self._halves()
        elif types.is_float32(kind) or types.is_decimal(kind):
            numbers = column.cast(pa.string()).cast(pa.float64()).to_numpy()
        elif types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
            numbers = column.cast(pa.float64(), safe=False).to_numpy()  # NaN where it is null
        else:
            numbers, dated = _from_texts(column, self.where, self.sign, self.marks)
        numbers = np.asarray(numbers, np.float64)
        # Marks of the column's kind: 9999 is no day, and 1900-01-01 no number.
        marked = [day_of(mark) if dated else TRUTHS.get(mark, parsed_number(mark, ".")) for mark in self.marks]
        numbers = np.where(np.isin(numbers, [mark for mark in marked if mark is not None]), np.nan, numbers)
        if (infinite := np.isinf(numbers)).any():
            row = _first(infinite)
            words = "an infinite number; allowed: finite ones, and an empty cell where a value is missing"
            raise DataError(f"{self.where}, row {row}: {str(column[row - 1].as_py())[:60]} is {words}")
        return numbers, np.isnan(numbers)

    def _halves(self) -> np.ndarray:
        """float64 [n] of a column of 16 bits, which pyarrow writes as the nearest number of 64 bits."""
        shortest = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype("U16").astype(np.float64)
        known = shortest[np.asarray(self.column.fill_null(np.float16(0)).to_numpy(), np.float16).view(np.uint16)]
        return np.where(self.column.is_null().to_numpy(), np.nan, known)


def _from_texts(column: Any, where: str, decimal: str, marks: Collection[str]) -> tuple[np.ndarray, bool]:
    """(numbers float64 [n], NaN where missing; whether they are days of dates)."""
    import pyarrow as pa
    from pyarrow import compute

    texts = compute.utf8_trim_whitespace(column.cast(pa.string()))
    texts = compute.if_else(compute.is_in(texts, pa.array(sorted({*MISSING, *marks}))), None, texts)
    try:
        if decimal == ".":
            plain = compute.cast(texts, pa.float64())
            return compute.fill_null(plain, float("nan")).to_numpy(), False
    except pa.ArrowInvalid:
        pass
    cells = texts.to_pylist()
    numbers = np.full(len(cells), np.nan)
    kinds = {True: 0, False: 0}  # the first row, counted from 1, of a date and of a number
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        value = TRUTHS.get(cell.lower(), parsed_number(cell, decimal))
        date = value is None
        if value is None:
            value = day_of(cell)
        if value is None:
            raise DataError(f"{where}, row {row + 1}: {_not_a_number(cell, decimal)}")
        kinds[date] = kinds[date] or row + 1
        if kinds[not date]:
            words = f"and row {kinds[not date]} holds a {'number' if date else 'date'}; allowed: one kind in a column"
            raise DataError(f"{where}, row {row + 1}: {cell[:60]!r} is a {'date' if date else 'number'}, {words}")
        numbers[row] = value
    return numbers, bool(kinds[True])


def _not_a_number(cell: str, decimal: str) -> str:
    words = f"{cell[:60]!r} is not a number"
    if re.match(r"\d{1,4}[./ -]\d{1,2}[./ -]\d{1,4}\b", cell):
        return (
            f"{words} and no date as 1997-10-18; say dates: day.month.year, or its like, in TABLE.form.yaml beside it"
        )
    if decimal == "," and parsed_number(cell, ".") is not None:
        return f"{words} with decimal=comma: a point in it may stand for thousands, which are not read"
    if decimal == "." and parsed_number(cell, ",") is not None:
        return f"{words}; if the comma is a decimal sign, say dataset.decimal=comma; signs for thousands are not read"
    if any(sign in cell for sign in ",.' \u00a0\u202f") and any(letter.isdigit() for letter in cell):
        return f"{words}; signs for thousands are not read"
    return f"{words}; a formula's value must be in the file" if cell.startswith("=") else words


def _scaled(numbers: np.ndarray, bounds: Any) -> tuple[np.ndarray, np.ndarray]:
    """(numbers clipped to [low, high] and scaled to [-1, 1]; whether one was clipped)."""
    low, high = bounds
    clipped = np.clip(numbers, low, high)
    return 2 * ((clipped - low) / (high - low)) - 1, clipped != numbers


def _counted(name: str, changed: int, missing: np.ndarray, clipped: bool = False) -> Counted:
    return Counted(name, len(missing), int(np.count_nonzero(missing)), changed, clipped)


def _first(flags: np.ndarray) -> int:
    """The first row, counted from 1, for which this holds."""
    return int(np.argmax(flags)) + 1


# --- data sets -------------------------------------------------------------------------------------------


def schema_of_dataset(config: DatasetConfig) -> TableSchema:
    """The public schema of a table. Raises `OptionError`."""
    if config.name in OWN_FILES:
        if config.schema_file is None:
            words = f"dataset={config.name} needs a schema; `fedpriv schema` drafts one"
            raise OptionError("dataset.schema_file", "null", words)
        return read_schema(config.schema_file)
    own = HUB_TABLES[str(config.hub_name)] if config.name == HUB and config.schema_file is None else config.name
    return read_schema(config.schema_file or CONF / "schema" / f"{own}.yaml")


def task_of(schema: TableSchema) -> Task:
    """What a model of this table predicts."""
    target = schema.target
    if target.task == "none":
        return Nothing(("nothing",))
    if target.task == "classification":
        assert isinstance(target.classes, tuple)
        return of_classes(target.classes, target.positive)
    if target.task == "multilabel":
        return Multilabel(target.columns)
    if target.task == "next_token":
        assert schema.tokens is not None and schema.tokens.length is not None
        return NextToken(schema.tokens.rule.names, schema.tokens.length)
    if target.task == "survival":
        assert target.event is not None and target.until is not None and target.intervals is not None
        return Survival((target.event,), target.until, target.intervals)
    assert target.column is not None and isinstance(target.range, tuple)
    return Regression((target.column,), *target.range)


def form_of(options: Any) -> Form:
    """How CSV files are written, by the options separator, decimal and encoding."""
    return Form(SEPARATORS.get(options.separator), DECIMALS[options.decimal], options.encoding)


def load_table(config: DatasetConfig, seed: int, site_column: str | None = None, whole: bool = False) -> Dataset:
    """The table of the configuration, from the cache where it was encoded before, divided into training and test rows
    by `seed`: of every class the same share, and all rows of a person, or of a group (`GROUPED`), on one side.

    site_column: a column whose values divide the rows among clients; a group is a client where it has training rows.
    whole: all rows, of both files where there are two, are training rows. Raises `DataError` and `OptionError`.
    """
    schema = schema_of_dataset(config)
    task, group = task_of(schema), None if whole else GROUPED.get(config.name)
    first, second = table_splits(config) if config.name == HUB else (config.root, config.test_root)
    rows, sites, remarks, persons = encoded_rows(config, first, schema, site_column)
    both = rows
    if second is not None:
        column = site_column if whole else None
        others, elsewhere, more, theirs = encoded_rows(config, second, schema, column, "dataset.test_root")
        if others.unit is not None:
            numbers = _same_numbers(persons, theirs)
            others = replace(others, unit=numbers[others.unit])
            if not whole and (known := int((numbers < len(persons)).sum())):
                what = f"{known} of the {len(numbers)} units of the test rows have training rows too"
                more += (f"{what}: what is measured on test rows tells of theirs, and no epsilon covers it",)
        if others.site is not None:
            sites = tuple(dict.fromkeys(sites + elsewhere))
            others = replace(others, site=np.array([sites.index(name) for name in elsewhere], np.int64)[others.site])
        both, remarks = rows.and_then(others), remarks + more
    if whole:
        train, test = both, _rows(rows, np.zeros(0, np.int64))
    elif second is not None:
        train, test = rows, _rows(both, np.arange(len(rows), len(both)))
    else:
        divided = rows if group is None else replace(rows, unit=encoded_rows(config, first, schema, group)[0].site)
        train, test = (_rows(rows, part) for part in _divided(divided, task, config.test_fraction, seed))
    if group is not None and site_column == group:
        assert train.site is not None
        trained, numbers = np.unique(train.site, return_inverse=True)
        train, test = replace(train, site=numbers.astype(np.int64)), replace(test, site=None)
        sites = tuple(sites[number] for number in trained)
    return Dataset(
        config.name, train, test, task, sites=sites, vocabulary=schema.vocabulary, schema=schema, remarks=remarks
    )


def _rows(examples: Examples, rows: np.ndarray) -> Examples:
    return replace(examples.chosen(rows), inputs=examples.inputs[rows])


def _divided(rows: Examples, task: Task, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows), ascending."""
    first = member = np.arange(len(rows))  # of each unit its first row, of each row its unit
    if rows.unit is not None:
        _, first, member = np.unique(rows.unit, return_index=True, return_inverse=True)
    if rows.targets.dtype == np.int64 and rows.targets.ndim == 1:
        train, test = divide_by_class(rows.targets[first], fraction, seed)
    else:
        order = generator(seed, "train-test").permutation(len(first))
        number = max(1, round(fraction * len(first)))
        train, test = order[number:], order[:number]
    if not len(train) or not len(test):
        raise DataError(f"dataset.root: {len(first)} units are too few to train and to test on")
    if rows.unit is None:
        return np.sort(train), np.sort(test)
    tested = np.isin(member, test)
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def _same_numbers(persons: np.ndarray, others: np.ndarray) -> np.ndarray:
    """int64 [m]: numbers for the persons of a second file, whose own are its places: a person of the first file has
    that file's number in both, and nobody else has it. persons, others: digests, uint8 [n, 16] and [m, 16].
    """
    known = {digest.tobytes(): number for number, digest in enumerate(persons)}
    return np.array([known.setdefault(digest.tobytes(), len(known)) for digest in others], np.int64)


def encoded_rows(
    config: DatasetConfig,
    root: str | None,
    schema: TableSchema,
    site_column: str | None = None,
    option: str = "dataset.root",
    on_node: bool = False,
) -> tuple[Examples, tuple[str, ...], tuple[str, ...], np.ndarray]:
    """All rows of the file ``root``, which ``option`` names (of a set of the hub: of the split ``root``), or of an
    installed table, the names of their sites, a warning for each column of which many cells are lost, and digests of
    the persons' names by number (uint8 [persons, 16]); from the cache where they were encoded before. on_node: nothing
    that the cells say ends a run, which a server would see; `init` has refused lost columns. Raises `DataError` (a
    column is lost, too) and `OptionError`.
    """
    identity: dict[str, Any] = {"name": config.name, "schema": schema.digest, "site": site_column}
    if config.name in OWN_FILES:
        if root is None:
            raise OptionError(option, "null", "dataset=table needs a CSV or Parquet file")
        path = Path(root)
        if not path.is_file():
            words = "is a folder; allowed: a CSV or Parquet file" if path.is_dir() else "there is no such file"
            raise DataError(f"{option}={root}: {words}")
        state, form = path.stat(), form_of(config)
        identity |= {"file": str(path.resolve()), "size": state.st_size, "changed": state.st_mtime_ns, **vars(form)}
        identity |= {"site's form": site_form(path).model_dump(mode="json")}
    elif config.name == HUB:
        identity |= hub_identity(config) | {"split": root}
    else:
        identity |= {"made of": docstrings_version() if config.name in GROUPED else installed("scikit-learn")}
    name, decimal = str(root or config.name), form_of(config).decimal

    def write(folder: Path) -> None:
        table = _read(config, root, schema, site_column)
        encoded = encode(table, schema, name, decimal=decimal)
        np.save(folder / "inputs.npy", encoded.inputs)
        rest: dict[str, Any] = {"targets": encoded.targets, "refused": ""}
        try:
            rest["warnings"] = np.array(lost_columns(encoded, name), str)
        except DataError as error:
            rest["refused"] = str(error)
        if encoded.unit is not None:
            rest["unit"] = encoded.unit
            digests = (hashlib.blake2b(name.encode(), digest_size=16).digest() for name in encoded.persons)
            rest["persons"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
        if site_column is not None:
            words = "no client is named; each row needs one"
            sites, texts = numbered(table, schema, site_column, name, words, decimal)
            order = np.argsort(texts)
            rest |= {"site": np.argsort(order)[sites], "sites": np.array(texts)[order]}
        np.savez(folder / "rest.npz", **rest)

    def read(folder: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with np.load(folder / "rest.npz", allow_pickle=False) as rest:
            return np.load(folder / "inputs.npy", mmap_mode="r", allow_pickle=False), dict(rest)

    inputs, rest = stored(cache_folder(config) / "tables", identity, write, read)
    if not on_node and (refused := str(rest["refused"])):
        raise DataError(refused)
    sites, warnings = (tuple(map(str, rest.get(part, ()))) for part in ("sites", "warnings"))
    examples = Examples(inputs, rest["targets"], None, rest.get("unit"), rest.get("site"))
    return examples, sites, warnings, rest.get("persons", np.zeros((0, 16), np.uint8))


def _read(config: DatasetConfig, root: str | None, schema: TableSchema, site_column: str | None) -> pa.Table:
    names = tuple(dict.fromkeys([*schema.needed, *([] if site_column is None else [site_column])]))
    if config.name == HUB:
        return read_split(config, names, str(root))
    if config.name in OWN_FILES:
        path, form = Path(str(root)), form_of(config)
        if site_column is not None and site_column not in (columns := column_names(path, form)):
            words = f"{root} has no such column; its columns: {', '.join(columns[:12])}"
            raise OptionError("partition.column", site_column, words)
        return read_columns(path, names, form, schema)
    table = INSTALLED[config.name]()
    if (lacking := next((name for name in names if name not in table.column_names), None)) is not None:
        words = f"{config.name} has no such column; its columns: {', '.join(table.column_names)}"
        raise OptionError("partition.column" if lacking == site_column else "dataset.schema_file", lacking, words)
    return table.select(list(names))
