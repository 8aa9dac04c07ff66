"""Rows of tables of people, encoded by their public schema.

Everything here runs where the data are. Errors name the file, the row and the column, for whoever holds it; a
node sends none of these words on.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.data.hashed_text import hashed
from fedpriv.data.schema_values import FOLDED, canonical, day_of, days_of, parsed_number, value_places
from fedpriv.data.table_files import MISSING, Form, read_columns
from fedpriv.data.table_schema import Column, TableSchema
from fedpriv.mechanisms.tasks import PADDING

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
    counted: the same in numbers, of each column of numbers or categories.
    """

    inputs: np.ndarray
    targets: np.ndarray | None
    unit: np.ndarray | None
    remarks: tuple[str, ...]
    counted: tuple[Counted, ...] = ()


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
            raise DataError(f"{name}: column {column.column} is lost: {words}")
        if column.changed > MOST_LOST * present:
            warnings.append(f"WARNING: {column.words}")
    return warnings


def encode_file(path: str | Path, schema: TableSchema, form: Form | None = None, targets: bool = True) -> Encoded:
    """The rows of a file. targets: whether it must hold the target and the unit. Raises `DataError` with the row."""
    names = schema.needed if targets else tuple(name for name, _ in schema.inputs)
    table = read_columns(Path(path), names, form, schema)
    return encode(table, schema, str(path), targets, (form or Form()).decimal)


# --- encoding --------------------------------------------------------------------------------------------


def encode(table: pa.Table, schema: TableSchema, name: str, targets: bool = True, decimal: str = ".") -> Encoded:
    """A table's rows (`Encoded`). Raises `DataError`, with ``name``, the column and the row (counted from 1)."""
    if schema.unfilled:
        raise OptionError("dataset.schema", "?", f"columns that hold '?': {', '.join(schema.unfilled[:8])}")
    if table.num_rows == 0:
        raise DataError(f"{name}: has no rows")
    inputs = blank_inputs(schema, table.num_rows, name)
    counted: dict[str, Counted] = {}
    numbers: list[_Numbers] = []
    start = 0
    for column_name, column in schema.inputs:
        where, indicated, stop = f"{name}: column {column_name}", schema.indicated(column), start + schema.width(column)
        cells = Cells(table.column(column_name), where, decimal, schema.missing_marks(column))
        if column.kind == "range":
            values, missing = cells.numbers()
            _check_missing(missing, indicated, where)
            numbers.append(_Numbers(column_name, values, missing, column.range, start, indicated))
        elif column.kind == "values":
            counted[column_name] = _values(column_name, cells, column, indicated, inputs[:, start:stop])
        else:
            _text(cells, column, inputs[:, start:stop])
        start = stop
    counted |= _scale(numbers, inputs)
    counts = [counted[column_name] for column_name, _ in schema.inputs if column_name in counted]
    found, note, unit = None, "", None
    if targets:
        found, note = _targets(table, schema, name, decimal, counts)
        unit = _units(table, schema, name, decimal)
    remarks = filter(None, [*(column.words for column in counts), note])
    return Encoded(inputs, found, unit, tuple(remarks), tuple(counts))


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
    """A column of numbers [n], where they are missing (bool [n]), and the first of its inputs."""

    name: str
    numbers: np.ndarray
    missing: np.ndarray
    bounds: Any
    place: int
    indicated: bool


def _scale(columns: list[_Numbers], inputs: np.ndarray) -> dict[str, Counted]:
    """Writes all columns of numbers; name -> what was changed. Some rows of all columns at a time, which stay in the
    processor's cache.
    """
    outside = dict.fromkeys((column.name for column in columns), 0)
    for start in range(0, len(inputs), TOGETHER):
        rows = slice(start, start + TOGETHER)
        for column in columns:
            missing = column.missing[rows]
            scaled, clipped = _scaled(column.numbers[rows], column.bounds)
            inputs[rows, column.place] = np.where(missing, 0, scaled)
            if column.indicated:
                inputs[rows, column.place + 1] = missing
            outside[column.name] += int(np.count_nonzero(clipped & ~missing))
    return {
        column.name: _counted(column.name, outside[column.name], column.missing, clipped=True) for column in columns
    }


def _check_missing(missing: np.ndarray, indicated: bool, where: str) -> None:
    if not indicated and missing.any():
        raise DataError(f"{where}, row {_first(missing)}: a value is missing, and the schema says missing: refuse")


def _values(name: str, cells: Cells, said: Column, indicated: bool, into: np.ndarray) -> Counted:
    assert isinstance(said.values, tuple)
    codes, missing = cells.codes(said.values)
    _check_missing(missing, indicated, cells.where)
    unknown = (codes < 0) & ~missing
    rows = np.arange(len(codes))
    into[rows[~missing], np.where(unknown, len(said.values), codes)[~missing]] = 1
    if indicated:
        into[:, -1] = missing
    return _counted(name, int(np.count_nonzero(unknown)), missing)


def _text(cells: Cells, said: Column, into: np.ndarray) -> None:
    """A missing text is an empty one."""
    for start, block in texts_of(cells.column, cells.where, cells.marks):
        part = into[start : start + len(block)]
        if said.text == "tokens":
            part[:] = said.rule.ids(block, part.shape[1])
        else:
            part[:] = hashed(block, said.dims).toarray()


def texts_of(column: Any, where: str, marks: Collection[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """(first row, texts) of a column's blocks, in Unicode's composed form; empty where a cell is one of the marks of a
    missing value. Raises `DataError` for bytes that are no UTF-8.
    """
    for start in range(0, len(column), TEXTS):
        part = column[start : start + TEXTS]
        try:
            cells = part.to_pylist()
        except UnicodeDecodeError:
            row = next(row for row in range(len(part)) if not _readable(part[row]))
            raise DataError(f"{where}, row {start + row + 1}: is not UTF-8") from None
        texts = [unicodedata.normalize("NFC", "" if cell is None else str(cell)) for cell in cells]
        yield start, ["" if marks and canonical(text) in marks else text for text in texts]


def _readable(cell: Any) -> bool:
    try:
        cell.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _targets(
    table: pa.Table, schema: TableSchema, name: str, decimal: str, counts: list[Counted]
) -> tuple[np.ndarray, str]:
    """(targets; a remark). A number's count is added to ``counts``."""
    target, marks = schema.target, schema.missing_marks()
    if target.task == "multilabel":
        labels = [Cells(table.column(label), f"{name}: column {label}", decimal, marks) for label in target.columns]
        parts = [cells.codes(("0", "1")) for cells in labels]
        for label, (codes, _) in zip(target.columns, parts, strict=True):
            if (codes < 0).any():
                words = "a label must be 0 or 1"
                raise DataError(f"{name}: column {label}, row {_first(codes < 0)}: {words}")
        return np.stack([codes for codes, _ in parts], axis=1).astype(np.float32), ""
    assert target.column is not None
    where = f"{name}: column {target.column}"
    if target.task == "next_token":
        return next_tokens(schema, table.column(target.column), where), ""
    cells = Cells(table.column(target.column), where, decimal, marks)
    if target.task == "classification":
        assert isinstance(target.classes, tuple)
        codes, missing = cells.codes(target.classes)
        if (codes < 0).any():
            row = _first(codes < 0)
            cell = table.column(target.column)[row - 1].as_py()
            words = "the target is missing" if missing[row - 1] else f"{str(cell)[:60]!r} is none of the classes"
            raise DataError(f"{where}, row {row}: {words}; classes: {', '.join(target.classes[:12])}")
        held = np.bincount(codes, minlength=len(target.classes))
        absent = [text for text, number in zip(target.classes, held, strict=True) if not number]
        return codes, f"{target.column}: no row is of the class {', '.join(absent[:8])}" if absent else ""
    numbers, missing = cells.numbers()
    if missing.any():
        raise DataError(f"{where}, row {_first(missing)}: the target is missing")
    scaled, outside = _scaled(numbers, target.range)
    counts.append(_counted(target.column, int(np.count_nonzero(outside)), missing, clipped=True))
    return scaled.astype(np.float32), ""


def next_tokens(schema: TableSchema, column: Any, where: str) -> np.ndarray:
    """Of each token of the inputs the one that follows it: int64 [n, t]."""
    said = schema.tokens
    assert said is not None and said.length is not None
    found = np.full((len(column), said.length), PADDING, np.int64)
    for start, block in texts_of(column, where):
        ids = said.rule.ids(block, said.length + 1)[:, 1:]
        found[start : start + len(block)] = np.where(ids > 0, ids, PADDING)
    return found


def _units(table: pa.Table, schema: TableSchema, name: str, decimal: str) -> np.ndarray | None:
    if schema.unit is None:
        return None
    return numbered(table, schema, schema.unit, name, "nobody is named; each row needs a unit", decimal)[0]


def numbered(
    table: pa.Table, schema: TableSchema, column: str, name: str, words: str, decimal: str = "."
) -> tuple[np.ndarray, list[str]]:
    """(int64 [n], the number of each row's cell; the cells' texts by number) of a column of names. Raises `DataError`
    with ``words`` for a missing one.
    """
    cells = Cells(table.column(column), f"{name}: column {column}", decimal, schema.missing_marks())
    found = cells.texts().dictionary_encode()
    ids, texts = found.indices.to_numpy(zero_copy_only=False), found.dictionary.to_pylist()
    gone = {number for number, text in enumerate(texts) if text in MISSING or text in cells.marks}
    missing = np.isnan(ids) if ids.dtype.kind == "f" else np.zeros(len(ids), bool)
    missing |= np.isin(ids, [*gone]) if gone else False
    if missing.any():
        raise DataError(f"{cells.where}, row {_first(missing)}: {words}")
    return ids.astype(np.int64), texts


# --- cells -----------------------------------------------------------------------------------------------


class Cells:
    """A column's cells by their meaning, the same of every file and type that holds them (`schema_values`).

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
