"""Tables of people: CSV and Parquet files, read column by column and encoded by their public schema.

Everything here runs where the data are. Errors name the file, the row and the column, for whoever holds it; a
node sends none of these words on.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.data.hashed_text import hashed
from fedpriv.data.table_schema import MOST_COLUMNS, Column, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
#: A first line is no longer than this, in bytes; a table has no more rows than this.
LONGEST_HEADER, MOST_ROWS = 1 << 22, 1 << 28
#: Rows that are encoded at a time.
BLOCK = 1 << 16
#: Cells that say that a value is missing, whatever the column is.
MISSING = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"})


@dataclass(frozen=True)
class Form:
    """How a CSV file is written. separator: None is found by the header; decimal: the sign before the fraction."""

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Encoded:
    """Rows as a model reads them.

    inputs: float32 [n, d]; targets: int64 [n] (classes), float32 [n] (regression: scaled to [-1, 1]) or float32 [n, k]
    (labels); None where the file has none and none were asked for. unit: int64 [n], rows with the same number are of
    one person; None where a row is a unit. remarks: what the schema changed, in sentences for whoever holds the data.
    """

    inputs: np.ndarray
    targets: np.ndarray | None
    unit: np.ndarray | None
    remarks: tuple[str, ...]


def encode_file(path: str | Path, schema: TableSchema, form: Form | None = None, targets: bool = True) -> Encoded:
    """The rows of a file. targets: whether it must hold the target and the unit. Raises `DataError` with the row."""
    table = read_columns(Path(path), schema.needed if targets else tuple(name for name, _ in schema.inputs), form)
    return encode(table, schema, str(path), targets, (form or Form()).decimal)


# --- reading ---------------------------------------------------------------------------------------------


def read_columns(path: Path, names: Sequence[str], form: Form | None = None) -> pa.Table:
    """These columns of a file. Raises `DataError`."""
    try:
        with path.open("rb") as file:
            first = file.read(4)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return _read_parquet(path, names) if first == b"PAR1" else _read_csv(path, names, form or Form())


def column_types(path: Path, form: Form | None = None) -> dict[str, str]:
    """Name -> "number", "date" or "text", of every column; of a CSV file from its first 1,000 rows."""
    import pyarrow as pa

    with path.open("rb") as file:
        parquet = file.read(4) == b"PAR1"
    if parquet:
        found = _parquet(path).schema_arrow
        return {field.name: _kind(field.type) for field in found}
    form = form or Form()
    header, separator = _header(path, (), form)
    head = _csv(path, header, separator, form, rows=1000)
    kinds = {}
    for name in header:
        cells = [cell for cell in head.column(name).to_pylist() if cell is not None and cell.strip() not in MISSING]
        parsed = [_parsed(cell, form.decimal) for cell in cells]
        number = bool(cells) and all(value is not None for value in parsed)
        kinds[name] = "number" if number else "date" if cells and all(map(_is_date, cells)) else "text"
    assert isinstance(head, pa.Table)
    return kinds


def _header(path: Path, names: Sequence[str], form: Form) -> tuple[list[str], str]:
    """(names of all columns, separator): the separator under which the first line has all ``names``."""
    import csv

    with path.open("rb") as file:
        line = file.readline(LONGEST_HEADER)
    if len(line) == LONGEST_HEADER:
        raise DataError(f"{path}: the first line is longer than {LONGEST_HEADER} bytes; it must name the columns")
    try:
        text = line.decode("utf-8-sig" if form.encoding == "utf-8" else form.encoding).rstrip("\r\n")
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not {form.encoding}; name its encoding, as in dataset.encoding=latin-1") from None
    if not text.strip():
        raise DataError(f"{path}: the first line is empty; it must name the columns")
    tried = [form.separator] if form.separator else list(SEPARATORS.values())
    found = {separator: next(csv.reader([text], delimiter=separator)) for separator in tried}
    separator = max(tried, key=lambda each: (len({*names} & {*found[each]}), len(found[each])))
    header = [name.strip() for name in found[separator]]
    if len(header) > MOST_COLUMNS:
        raise DataError(f"{path}: {len(header)} columns; at most {MOST_COLUMNS} are allowed")
    _check_names(path, header, names)
    return header, separator


def _check_names(path: Path, header: Sequence[str], names: Sequence[str]) -> None:
    import difflib

    lacking = [name for name in names if name not in header]
    if lacking:
        close = difflib.get_close_matches(lacking[0], header, 1)
        guess = f" (did the file rename it to {close[0]}?)" if close else ""
        shown = ", ".join(header[:12]) + (", ..." if len(header) > 12 else "")
        raise DataError(f"{path}: has no column {lacking[0]}, which the schema names{guess}; its columns: {shown}")
    wanted = names or header
    twice = [name for name in wanted if header.count(name) > 1] if len(header) > len(set(header)) else []
    if twice:
        raise DataError(f"{path}: has the column {twice[0]} twice")


def _read_csv(path: Path, names: Sequence[str], form: Form) -> pa.Table:
    header, separator = _header(path, names, form)
    return _csv(path, header, separator, form, list(names))


def _csv(
    path: Path, header: list[str], separator: str, form: Form, names: list[str] | None = None, rows: int | None = None
) -> pa.Table:
    """Columns as texts: what they mean is the schema's business, not a guess's."""
    import pyarrow as pa
    from pyarrow import csv

    reading = csv.ReadOptions(column_names=header, skip_rows=1, encoding=form.encoding, block_size=1 << 24)
    parsing = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    converting = csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), include_columns=names or [], strings_can_be_null=False
    )
    try:
        if rows is None:
            return csv.read_csv(path, reading, parsing, converting)
        with csv.open_csv(path, reading, parsing, converting) as stream:
            batch = next(iter(stream), None)
        return pa.Table.from_batches([] if batch is None else [batch[:rows]], stream.schema)
    except (pa.ArrowInvalid, UnicodeDecodeError, LookupError) as error:
        words = " ".join(str(error).split())[:300]
        if "UTF8" in words or isinstance(error, UnicodeDecodeError):
            words = f"is not {form.encoding}; name its encoding, as in dataset.encoding=latin-1"
        if words.startswith("Empty CSV"):
            return pa.table({name: pa.array([], pa.string()) for name in names or header})
        raise DataError(f"{path}: {words}") from None
    except MemoryError:
        raise DataError(f"{path}: does not fit into memory") from None


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise DataError(f"{path}: is not a readable Parquet file ({' '.join(str(error).split())[:200]})") from None


def _read_parquet(path: Path, names: Sequence[str]) -> pa.Table:
    import psutil
    import pyarrow as pa

    file = _parquet(path)
    _check_names(path, file.schema_arrow.names, names)
    rows = file.metadata.num_rows
    for name in names:
        kind = file.schema_arrow.field(name).type
        if _kind(kind) == "other":
            raise DataError(f"{path}: the column {name} is {kind}; allowed: numbers, texts, truth values, dates")
    # What a file says of its own size may be wrong: it is read in pieces, and each counts.
    most = psutil.virtual_memory().available // 2
    if rows > MOST_ROWS:
        raise DataError(f"{path}: {rows} rows; at most {MOST_ROWS} are allowed")
    pieces, size = [], 0
    try:
        for batch in file.iter_batches(BLOCK, columns=list(names)):
            pieces.append(batch)
            size += batch.nbytes
            if size > most:
                raise DataError(f"{path}: more than {most >> 20} MB when unpacked, half of the free memory")
    except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is damaged ({' '.join(str(error).split())[:200]})") from None
    return pa.Table.from_batches(pieces, pa.schema([file.schema_arrow.field(name) for name in names]))


def _kind(kind: Any) -> str:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    plain = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return "text" if plain or types.is_boolean(kind) or types.is_null(kind) else "other"


# --- encoding --------------------------------------------------------------------------------------------


def encode(table: pa.Table, schema: TableSchema, name: str, targets: bool = True, decimal: str = ".") -> Encoded:
    """A table's rows (`Encoded`). Raises `DataError`, with ``name``, the column and the row (counted from 1)."""
    if schema.unfilled:
        raise OptionError("dataset.schema", "?", f"columns that hold '?': {', '.join(schema.unfilled[:8])}")
    if table.num_rows == 0:
        raise DataError(f"{name}: has no rows")
    inputs = np.zeros((table.num_rows, schema.num_inputs), np.float32)
    remarks: list[str] = []
    start = 0
    for column_name, column in schema.inputs:
        part = inputs[:, start : start + schema.width(column)]
        where = f"{name}: column {column_name}"
        note = _INTO[column.kind](table.column(column_name), column, schema.indicated(column), part, where, decimal)
        remarks += [f"{column_name}: {note}"] if note else []
        start += schema.width(column)
    if not targets:
        return Encoded(inputs, None, None, tuple(remarks))
    found, note = _targets(table, schema, name, decimal)
    remarks += [note] if note else []
    return Encoded(inputs, found, _units(table, schema, name), tuple(remarks))


def _range(column: Any, said: Column, indicated: bool, into: np.ndarray, where: str, decimal: str) -> str:
    numbers, missing = _numbers(column, where, decimal)
    if missing.any() and not indicated:
        raise DataError(f"{where}, row {_first(missing)}: a value is missing, and the schema says missing: refuse")
    scaled, outside = _scaled(numbers, said.range)
    into[:, 0] = np.where(missing, 0, scaled)
    if indicated:
        into[:, 1] = missing
    return _counted(outside & ~missing, "clipped to the range", missing)


def _values(column: Any, said: Column, indicated: bool, into: np.ndarray, where: str, decimal: str) -> str:
    assert isinstance(said.values, tuple)
    codes, missing = _codes(column, said.values)
    if missing.any() and not indicated:
        raise DataError(f"{where}, row {_first(missing)}: a value is missing, and the schema says missing: refuse")
    unknown = (codes < 0) & ~missing
    rows = np.arange(len(codes))
    into[rows[~missing], np.where(unknown, len(said.values), codes)[~missing]] = 1
    if indicated:
        into[:, -1] = missing
    return _counted(unknown, "of a value that the schema does not name", missing)


def _hashed(column: Any, said: Column, indicated: bool, into: np.ndarray, where: str, decimal: str) -> str:
    texts = column.to_pylist()
    for start in range(0, len(texts), BLOCK):
        block = ["" if text is None else str(text) for text in texts[start : start + BLOCK]]
        into[start : start + len(block)] = hashed(block, said.dims).toarray()
    return ""


_INTO: dict[str, Callable[[Any, Column, bool, np.ndarray, str, str], str]] = {
    "range": _range,
    "values": _values,
    "text": _hashed,
}


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
    if target.task == "classification":
        assert isinstance(target.classes, tuple)
        codes, missing = _codes(table.column(target.column), target.classes)
        if (codes < 0).any():
            row = _first(codes < 0)
            cell = table.column(target.column)[row - 1].as_py()
            words = "the target is missing" if missing[row - 1] else f"{str(cell)[:60]!r} is none of the classes"
            raise DataError(f"{where}, row {row}: {words}; classes: {', '.join(target.classes[:12])}")
        return codes, ""
    numbers, missing = _numbers(table.column(target.column), where, decimal)
    if missing.any():
        raise DataError(f"{where}, row {_first(missing)}: the target is missing")
    scaled, outside = _scaled(numbers, target.range)
    note = _counted(outside, "clipped to the range", missing)
    return scaled.astype(np.float32), f"{target.column}: {note}" if note else ""


def _units(table: pa.Table, schema: TableSchema, name: str) -> np.ndarray | None:
    if schema.unit is None:
        return None
    found = _stripped(table.column(schema.unit)).combine_chunks().dictionary_encode()
    ids = found.indices.to_numpy(zero_copy_only=False)
    gone = {number for number, text in enumerate(found.dictionary.to_pylist()) if text in MISSING}
    missing = np.isnan(ids) if ids.dtype.kind == "f" else np.zeros(len(ids), bool)
    missing |= np.isin(ids, [*gone]) if gone else False
    if missing.any():
        raise DataError(f"{name}: column {schema.unit}, row {_first(missing)}: nobody is named; each row needs a unit")
    return ids.astype(np.int64)


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
    elif types.is_boolean(kind) or _kind(kind) != "text":
        numbers = compute.fill_null(column.cast(pa.float64(), safe=False), float("nan")).to_numpy()
    else:
        numbers = _from_texts(column, where, decimal)
    numbers = np.array(numbers, np.float64)
    if np.isinf(numbers).any():
        raise DataError(f"{where}, row {_first(np.isinf(numbers))}: an infinite number")
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
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        value = _parsed(cell, decimal)
        if value is None:
            value = _day(cell)
        if value is None:
            raise DataError(f"{where}, row {row + 1}: {_not_a_number(cell, decimal)}")
        numbers[row] = value
    return numbers


def _parsed(cell: str, decimal: str) -> float | None:
    """The number in a cell; None where it is none. A sign for thousands is not guessed at."""
    import re

    plain = cell.strip().replace(",", ".") if decimal == "," and "." not in cell else cell.strip()
    return float(plain) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", plain) else None


def _day(cell: str) -> float | None:
    """Of a date (2020-01-31, with or without a time): days since 1970-01-01."""
    try:
        moment = datetime.datetime.fromisoformat(cell.strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp() / 86400


def _is_date(cell: str) -> bool:
    return _day(cell) is not None


def _not_a_number(cell: str, decimal: str) -> str:
    words = f"{cell[:60]!r} is not a number"
    if decimal == "." and _parsed(cell, ",") is not None:
        return f"{words}; if the comma is a decimal sign, say dataset.decimal=comma; signs for thousands are not read"
    if any(sign in cell for sign in ",.' ") and any(letter.isdigit() for letter in cell):
        return f"{words}; signs for thousands are not read"
    return f"{words}; a formula's value must be in the file" if cell.startswith("=") else words


def _scaled(numbers: np.ndarray, bounds: Any) -> tuple[np.ndarray, np.ndarray]:
    """(numbers clipped to [low, high] and scaled to [-1, 1]; whether one was clipped)."""
    low, high = bounds
    clipped = np.clip(numbers, low, high)
    return 2 * ((clipped - low) / (high - low)) - 1, clipped != numbers


def _counted(changed: np.ndarray, what: str, missing: np.ndarray) -> str:
    parts = [f"{int(changed.sum())} of {len(changed)} rows {what}"] if changed.any() else []
    parts += [f"{int(missing.sum())} missing"] if missing.any() else []
    return ", ".join(parts)


def _first(flags: np.ndarray) -> int:
    """The first row, counted from 1, for which this holds."""
    return int(np.argmax(flags)) + 1
