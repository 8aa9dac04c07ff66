"""Rows of tables of people, encoded by their public schema.

Everything here runs where the data are. Errors name the file, the row and the column, for whoever holds it; a
node sends none of these words on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.data.hashed_text import hashed
from fedpriv.data.table_files import MISSING, Form, day_of, kind_of, parsed_number, read_columns
from fedpriv.data.table_schema import Column, TableSchema
from fedpriv.mechanisms.tasks import PADDING

if TYPE_CHECKING:
    import pyarrow as pa


#: Texts that are encoded at a time: as sparse rows, then as the table's.
TEXTS = 1 << 12
#: Rows whose numbers are scaled at a time: 1 MB of 60 inputs.
TOGETHER = 1 << 12


@dataclass(frozen=True)
class Encoded:
    """Rows as a model reads them.

    inputs: float32 [n, d], or token ids [n, t] (`blank_inputs`); targets: int64 [n] (classes), float32 [n] (regression:
    scaled to [-1, 1]), float32 [n, k] (labels) or int64 [n, t] (next tokens, `PADDING` where there is none); None
    where the file has none and none were asked for. unit: int64 [n], rows with the same number are of
    one person; None where a row is a unit. remarks: what the schema changed, in sentences for whoever holds the data.
    """

    inputs: np.ndarray
    targets: np.ndarray | None
    unit: np.ndarray | None
    remarks: tuple[str, ...]


def encode_file(path: str | Path, schema: TableSchema, form: Form | None = None, targets: bool = True) -> Encoded:
    """The rows of a file. targets: whether it must hold the target and the unit. Raises `DataError` with the row."""
    names = schema.needed if targets else tuple(name for name, _ in schema.inputs)
    table = read_columns(Path(path), names, form, schema.numbers)
    return encode(table, schema, str(path), targets, (form or Form()).decimal)


# --- encoding --------------------------------------------------------------------------------------------


def encode(table: pa.Table, schema: TableSchema, name: str, targets: bool = True, decimal: str = ".") -> Encoded:
    """A table's rows (`Encoded`). Raises `DataError`, with ``name``, the column and the row (counted from 1)."""
    if schema.unfilled:
        raise OptionError("dataset.schema", "?", f"columns that hold '?': {', '.join(schema.unfilled[:8])}")
    if table.num_rows == 0:
        raise DataError(f"{name}: has no rows")
    inputs = blank_inputs(schema, table.num_rows, name)
    notes: dict[str, str] = {}
    numbers: list[_Numbers] = []
    start = 0
    for column_name, column in schema.inputs:
        where, indicated, stop = f"{name}: column {column_name}", schema.indicated(column), start + schema.width(column)
        if column.kind == "range":
            found, missing = _numbers(table.column(column_name), where, decimal)
            _check_missing(missing, indicated, where)
            numbers.append(_Numbers(column_name, found, missing, column.range, start, indicated))
        else:
            into = _values if column.kind == "values" else _text
            notes[column_name] = into(table.column(column_name), column, indicated, inputs[:, start:stop], where)
        start = stop
    notes |= _scale(numbers, inputs)
    remarks = [f"{column_name}: {notes[column_name]}" for column_name, _ in schema.inputs if notes[column_name]]
    if not targets:
        return Encoded(inputs, None, None, tuple(remarks))
    found, note = _targets(table, schema, name, decimal)
    remarks += [note] if note else []
    return Encoded(inputs, found, _units(table, schema, name), tuple(remarks))


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


def _scale(columns: list[_Numbers], inputs: np.ndarray) -> dict[str, str]:
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
        column.name: _counted(outside[column.name], len(inputs), "clipped to the range", column.missing)
        for column in columns
    }


def _check_missing(missing: np.ndarray, indicated: bool, where: str) -> None:
    if not indicated and missing.any():
        raise DataError(f"{where}, row {_first(missing)}: a value is missing, and the schema says missing: refuse")


def _values(column: Any, said: Column, indicated: bool, into: np.ndarray, where: str) -> str:
    assert isinstance(said.values, tuple)
    codes, missing = _codes(column, said.values)
    _check_missing(missing, indicated, where)
    unknown = (codes < 0) & ~missing
    rows = np.arange(len(codes))
    into[rows[~missing], np.where(unknown, len(said.values), codes)[~missing]] = 1
    if indicated:
        into[:, -1] = missing
    return _counted(int(np.count_nonzero(unknown)), len(codes), "of a value that the schema does not name", missing)


def _text(column: Any, said: Column, indicated: bool, into: np.ndarray, where: str) -> str:
    """A missing text is an empty one."""
    for start, block in texts_of(column, where):
        part = into[start : start + len(block)]
        if said.text == "tokens":
            part[:] = said.rule.ids(block, part.shape[1])
        else:
            part[:] = hashed(block, said.dims).toarray()
    return ""


def texts_of(column: Any, where: str) -> Iterator[tuple[int, list[str]]]:
    """(first row, texts) of a column's blocks. Raises `DataError` for bytes that are no UTF-8."""
    for start in range(0, len(column), TEXTS):
        part = column[start : start + TEXTS]
        try:
            cells = part.to_pylist()
        except UnicodeDecodeError:
            row = next(row for row in range(len(part)) if not _readable(part[row]))
            raise DataError(f"{where}, row {start + row + 1}: is not UTF-8") from None
        yield start, ["" if cell is None else str(cell) for cell in cells]


def _readable(cell: Any) -> bool:
    try:
        cell.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _targets(table: pa.Table, schema: TableSchema, name: str, decimal: str) -> tuple[np.ndarray, str]:
    target = schema.target
    if target.task == "multilabel":
        parts = [_codes(table.column(label), ("0", "1", "false", "true")) for label in target.columns]
        for label, (codes, _) in zip(target.columns, parts, strict=True):
            if (codes < 0).any():
                words = "a label must be 0 or 1"
                raise DataError(f"{name}: column {label}, row {_first(codes < 0)}: {words}")
        return np.stack([codes % 2 for codes, _ in parts], axis=1).astype(np.float32), ""
    assert target.column is not None
    where = f"{name}: column {target.column}"
    if target.task == "next_token":
        return next_tokens(schema, table.column(target.column), where), ""
    if target.task == "classification":
        assert isinstance(target.classes, tuple)
        codes, missing = _codes(table.column(target.column), target.classes)
        if (codes < 0).any():
            row = _first(codes < 0)
            cell = table.column(target.column)[row - 1].as_py()
            words = "the target is missing" if missing[row - 1] else f"{str(cell)[:60]!r} is none of the classes"
            raise DataError(f"{where}, row {row}: {words}; classes: {', '.join(target.classes[:12])}")
        held = np.bincount(codes, minlength=len(target.classes))
        absent = [text for text, number in zip(target.classes, held, strict=True) if not number]
        return codes, f"{target.column}: no row is of the class {', '.join(absent[:8])}" if absent else ""
    numbers, missing = _numbers(table.column(target.column), where, decimal)
    if missing.any():
        raise DataError(f"{where}, row {_first(missing)}: the target is missing")
    scaled, outside = _scaled(numbers, target.range)
    note = _counted(int(np.count_nonzero(outside)), len(outside), "clipped to the range", missing)
    return scaled.astype(np.float32), f"{target.column}: {note}" if note else ""


def next_tokens(schema: TableSchema, column: Any, where: str) -> np.ndarray:
    """Of each token of the inputs the one that follows it: int64 [n, t]."""
    said = schema.tokens
    assert said is not None and said.length is not None
    found = np.full((len(column), said.length), PADDING, np.int64)
    for start, block in texts_of(column, where):
        ids = said.rule.ids(block, said.length + 1)[:, 1:]
        found[start : start + len(block)] = np.where(ids > 0, ids, PADDING)
    return found


def _units(table: pa.Table, schema: TableSchema, name: str) -> np.ndarray | None:
    if schema.unit is None:
        return None
    return numbered(table, schema.unit, name, "nobody is named; each row needs a unit")[0]


def numbered(table: pa.Table, column: str, name: str, words: str) -> tuple[np.ndarray, list[str]]:
    """(int64 [n], the number of each row's cell; the cells' texts by number) of a column of names. Raises `DataError`
    with ``words`` for a missing one.
    """
    found = _stripped(table.column(column)).combine_chunks().dictionary_encode()
    ids, texts = found.indices.to_numpy(zero_copy_only=False), found.dictionary.to_pylist()
    gone = {number for number, text in enumerate(texts) if text in MISSING}
    missing = np.isnan(ids) if ids.dtype.kind == "f" else np.zeros(len(ids), bool)
    missing |= np.isin(ids, [*gone]) if gone else False
    if missing.any():
        raise DataError(f"{name}: column {column}, row {_first(missing)}: {words}")
    return ids.astype(np.int64), texts


# --- cells -----------------------------------------------------------------------------------------------


def _stripped(column: Any) -> Any:
    """Cells as texts without surrounding blanks; whole numbers of a float column without their point."""
    import pyarrow as pa
    from pyarrow import compute, types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_dictionary(column.type):
        column = column.cast(kind)
    if types.is_floating(kind):
        whole = compute.and_kleene(
            compute.equal(column, compute.floor(column)), compute.less(compute.abs(column), 1e15)
        )
        as_whole = compute.if_else(whole, column, 0).cast(pa.int64()).cast(pa.string())
        return compute.if_else(whole, as_whole, column.cast(pa.string()))
    return compute.utf8_trim_whitespace(column.cast(pa.string()))


def _codes(column: Any, values: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(place among ``values``, int64 [n], -1 for none of them; whether the cell is missing, bool [n])."""
    import pyarrow as pa
    from pyarrow import compute

    texts = _stripped(column)
    codes = compute.fill_null(compute.index_in(texts, pa.array(values, pa.string())), -1)
    gone = [text for text in MISSING if text not in values]
    missing = compute.or_(compute.is_null(texts), compute.fill_null(compute.is_in(texts, pa.array(gone)), False))
    flags = missing.to_numpy().astype(bool)
    return np.where(flags, -1, codes.to_numpy()).astype(np.int64), flags


def _numbers(column: Any, where: str, decimal: str) -> tuple[np.ndarray, np.ndarray]:
    """(numbers float64 [n], NaN where missing; whether the cell is missing). A date is its day's number."""
    import pyarrow as pa
    from pyarrow import compute, types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_dictionary(column.type):
        column = column.cast(kind)
    if types.is_date(kind) or types.is_timestamp(kind):
        days = compute.divide(column.cast(pa.timestamp("s")).cast(pa.int64()).cast(pa.float64()), 86400.0)
        numbers = compute.fill_null(days, float("nan")).to_numpy()
    elif types.is_boolean(kind) or kind_of(kind) != "text":
        numbers = column.cast(pa.float64(), safe=False).to_numpy()  # NaN where it is null
    else:
        numbers = _from_texts(column, where, decimal)
    numbers = np.asarray(numbers, np.float64)
    if (infinite := np.isinf(numbers)).any():
        row = _first(infinite)
        words = "an infinite number; allowed: finite ones, and an empty cell where a value is missing"
        raise DataError(f"{where}, row {row}: {str(column[row - 1].as_py())[:60]} is {words}")
    return numbers, np.isnan(numbers)


def _from_texts(column: Any, where: str, decimal: str) -> np.ndarray:
    import pyarrow as pa
    from pyarrow import compute

    texts = _stripped(column)
    texts = compute.if_else(compute.is_in(texts, pa.array(sorted(MISSING))), None, texts)
    try:
        if decimal == ".":
            plain = compute.cast(texts, pa.float64())
            return compute.fill_null(plain, float("nan")).to_numpy()
    except pa.ArrowInvalid:
        pass
    cells = texts.to_pylist()
    numbers = np.full(len(cells), np.nan)
    kinds = {True: 0, False: 0}  # the first row, counted from 1, of a date and of a number
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        value = parsed_number(cell, decimal)
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
    return numbers


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


def _counted(changed: int, rows: int, what: str, missing: np.ndarray) -> str:
    parts = [f"{changed} of {rows} rows {what}"] if changed else []
    parts += [f"{int(missing.sum())} missing"] if missing.any() else []
    return ", ".join(parts)


def _first(flags: np.ndarray) -> int:
    """The first row, counted from 1, for which this holds."""
    return int(np.argmax(flags)) + 1
