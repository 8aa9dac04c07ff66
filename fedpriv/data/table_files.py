"""Files of tables: CSV, Parquet and Excel. Which columns a file has to have, its schema says.

Everything here runs where the data are. Errors name the file and the column, for whoever holds it.

A site whose file is written in another way than the public schema says so beside it, in TABLE.form.yaml (`SiteForm`):
names, values, dates and marks of missing values are replaced as the file is read, so nothing else knows of them.
"""

from __future__ import annotations

import codecs
import datetime
import decimal
import re
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml
from pydantic import Field, ValidationError, field_validator

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.explain import first_option_error
from fedpriv.config.options import Options
from fedpriv.data.table_schema import (
    MOST_COLUMNS,
    OPEN,
    TableSchema,
    Texts,
    canonical,
    day_of,
    parsed_number,
    read_texts,
    tidy,
)

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
DECIMALS = {"point": ".", "comma": ","}
#: A first line is no longer than this, in bytes; a table has no more rows than this.
LONGEST_HEADER, MOST_ROWS = 1 << 22, 1 << 28
#: Rows that are encoded at a time.
BLOCK = 1 << 16
#: Cells that say that a value is missing, whatever the column is: an empty one, those of R, pandas and Excel, and "?".
MARKS = (
    "|NA|<NA>|N/A|n/a|NaN|nan|-NaN|-nan|NaT|null|NULL|None|?|NA_character_|NA_integer_|NA_real_|#N/A|#NA|#N/A N/A|"
    "1.#QNAN|-1.#QNAN|1.#IND|-1.#IND"
)
MISSING = frozenset(MARKS.split("|"))
HEAD = """\
# Draft of a schema, from the names and types of the columns{rows}. No value, range or
# category was read off the data: each "?" is yours to fill in from what is publicly known
# (a clinical range, a code list), since models and noise are scaled by it.
#   numbers and dates: range: [low, high]     categories: values: [a, b]
#   free text: text: hashed, dims: 256        not for the model: ignore: true
#   a target whose numbers are codes: task: classification, classes: [0, 1], positive: 1
{decimals}# {target} is taken as the target; `unit: COLUMN` protects all rows of a person together.
"""

#: What a draft says of a column, by the kind of its cells. Other kinds (lists, bytes) no model reads.
DRAFTED: dict[str, dict[str, object]] = {
    "number": {"range": OPEN},
    "date": {"range": OPEN},
    "text": {"values": OPEN},
    "other": {"ignore": True},
}
#: First bytes of files that hold a table within something else.
ZIP, BOOK = b"PK\x03\x04", "xl/workbook.xml"
PACKED = {
    ZIP: "a zip archive",
    b"\xd0\xcf\x11\xe0": "an Excel file of before 2007: save it as .xlsx",
    b"\x1f\x8b": "a gzip archive",
    b"ARRO": "a Feather file",
    b"FEA1": "a Feather file",
}


@dataclass(frozen=True)
class Form:
    """How a CSV file is written. separator: None is found by the header; decimal: the sign before the fraction."""

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        """UTF-8, utf8 and utf-8 are one encoding."""
        if _is_encoding(self.encoding):
            object.__setattr__(self, "encoding", codecs.lookup(self.encoding).name)


#: The parts of a date, as people name and as a pattern has them.
PARTS = {"day": r"(?P<day>\d{1,2})", "month": r"(?P<month>\d{1,2})", "year": r"(?P<year>\d{4})"}


class SiteForm(Options):
    """How one site's file is written, where that is not as the schema says; the site's own, on no other machine."""

    columns: dict[str, str] = Field(default_factory=dict, description="the file's name of a column -> the schema's")
    values: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="column, as the schema names it -> the file's cell -> the schema's value"
    )
    dates: str | dict[str, str] = Field(
        default_factory=dict, description="order of dates that are not 1997-10-18: day.month.year; or by column"
    )
    missing_values: Texts = Field(default=(), description="further cells that say that a value is missing")
    sheet: str | None = Field(default=None, description="of an Excel file (null: the first)")

    @field_validator("dates")
    @classmethod
    def _are_dates(cls, dates: str | dict[str, str]) -> str | dict[str, str]:
        for order in [dates] if isinstance(dates, str) else dates.values():
            if sorted(re.findall(r"[a-z]+", order)) != sorted(PARTS) or not re.fullmatch(r"\w+([./ -])\w+\1\w+", order):
                raise ValueError(f"{order!r}: allowed: day.month.year, month/day/year, and other orders and signs")
        return dates

    def order(self, column: str) -> str | None:
        return self.dates if isinstance(self.dates, str) else self.dates.get(column)


def site_form(path: Path) -> SiteForm:
    """What TABLE.form.yaml says, beside a table; as the schema says where there is none. Raises `DataError`."""
    file = path.with_name(f"{path.name}.form.yaml")
    if not file.is_file():
        return SiteForm()
    try:
        found = SiteForm.model_validate(read_texts(file.read_bytes()) or {})
    except ValidationError as error:
        first = first_option_error(error, model=SiteForm)
        words = first.allowed.removeprefix("Value error, ")
        raise DataError(f"{file}: {first.option}: {words}") from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read ({' '.join(str(error).split())[:300]})") from None
    return found


def _names(header: Sequence[str], site: SiteForm) -> list[str]:
    """Names of columns as the schema has them."""
    mapped = {tidy(own): tidy(public) for own, public in site.columns.items()}
    return [mapped.get(name, name) for name in map(tidy, header)]


def _as_public(table: pa.Table, site: SiteForm, path: Path, schema: TableSchema | None = None) -> pa.Table:
    """A table of the site's cells as one of the schema's."""
    import pyarrow as pa

    if unknown := next((name for name in site.values if schema and name not in schema.needed), None):
        raise DataError(f"{path}.form.yaml: values: the schema reads no column {unknown}")
    gone = {*map(canonical, site.missing_values)}
    for place, name in enumerate(table.column_names):
        to = {canonical(own): public for own, public in site.values.get(name, {}).items()}
        dated = site.order(name) if schema is None or name in schema.numbers else None
        if not (gone or to or dated):
            continue
        encoded = table.column(place).combine_chunks().dictionary_encode()
        cells = encoded.dictionary.to_pylist()
        if pa.types.is_floating(encoded.dictionary.type):  # as `Cells` has them, whichever are replaced: 0.1 of 32 bits
            cells = [str(cell) for cell in encoded.dictionary.to_numpy(zero_copy_only=False)]
        if gone and any(canonical(str(cell)) in gone for cell in cells):
            kept = pa.array([None if canonical(str(cell)) in gone else place for place, cell in enumerate(cells)])
            encoded = pa.DictionaryArray.from_arrays(kept.cast(pa.int32()).take(encoded.indices), encoded.dictionary)
        changed = [to.get(canonical(str(cell)), iso_date(cell, dated)) for cell in cells]
        if changed != cells:
            texts = [None if cell is None else str(cell) for cell in changed]
            encoded = pa.DictionaryArray.from_arrays(encoded.indices, pa.array(texts, pa.string()))
        table = table.set_column(place, name, encoded.dictionary.take(encoded.indices))
    return table


def iso_date(cell: Any, order: str | None) -> Any:
    """18.10.1997 as 1997-10-18, with a time behind it or none. What is no date of this order stays."""
    if order is None or not isinstance(cell, str):
        return cell
    pattern = re.sub(r"[a-z]+", lambda part: PARTS[part[0]], re.escape(order))
    found = re.fullmatch(rf"{pattern}(?P<time>[ T].*)?", cell.strip())
    if found is None:
        return cell
    return f"{found['year']}-{int(found['month']):02}-{int(found['day']):02}{found['time'] or ''}"


def read_columns(source: Any, names: Sequence[str], form: Form | None, schema: TableSchema) -> pa.Table:
    """These columns of a table: the path of a CSV or Parquet file, a DataFrame or a mapping of columns. Columns that
    the schema says are numbers are numbers, and those of a CSV file are texts where a cell of any of them is something
    else. Raises `DataError`.
    """
    if not isinstance(source, str | Path):
        return frame_columns(source, names, (form or Form()).decimal)
    path, form = Path(source), form or Form()
    kind, site = kind_of_file(path), site_form(path)
    if kind == "parquet":
        return _as_public(_read_parquet(path, names, site, names), site, path, schema)
    if kind == "excel":
        return _as_public(_excel(path, names, site)[1].select(list(names)), site, path, schema)
    header, separator, _ = _header(path, names, form)
    numbers = schema.numbers - {
        name for name in names if site.missing_values or site.order(name) or name in site.values
    }
    table = _csv(path, header, separator, form, list(names), numbers=numbers)
    if _num_lines(path) > table.num_rows + 1:
        _check_lines(path, _csv(path, header, separator, form), separator, names, schema)
    return _as_public(table, site, path, schema)


def frame_columns(table: Any, names: Sequence[str] | None = None, sign: str = ".") -> pa.Table:
    """These columns, or all, of a DataFrame or of a mapping. sign: before a fraction in texts. Raises `DataError`."""
    import pyarrow as pa

    if not hasattr(table, "keys") or not hasattr(table, "__getitem__"):
        words = "a table is a DataFrame, a mapping of columns, or the path of a CSV or Parquet file"
        raise DataError(f"{words}, not {type(table).__name__}")
    key_of = {tidy(str(key)): key for key in table}
    check_names("the table", [tidy(str(key)) for key in table], names or ())
    columns = {}
    for name in key_of if names is None else names:
        try:
            columns[name] = _array(table[key_of[name]], sign)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the table: column {name}: {' '.join(str(error).split())[:200]}") from None
        if names is not None:
            _check_kind("the table", name, columns[name].type)
    if len(lengths := {len(column) for column in columns.values()}) > 1:
        raise DataError(f"the table: its columns have {', '.join(map(str, sorted(lengths)))} rows")
    return pa.table(columns)


def _array(column: Any, sign: str) -> Any:
    """Of cells of several types, as an object column has them, or of numbers beyond 64 bits: of their texts, as a CSV
    file would hold them. What pyarrow makes of such cells together is no function of each (1 beside 0.5 is 1.0), and a
    row more would change the others.
    """
    import pyarrow as pa

    if getattr(column, "dtype", np.dtype(object)) != np.dtype(object):
        return pa.array(column, from_pandas=True)
    numbers = (float, decimal.Decimal, np.floating)
    plain = (str, int, datetime.date, np.bool_, np.integer, np.datetime64, type(None), *numbers)
    cells = [None if _is_gone(cell, (np.datetime64, *numbers)) else cell for cell in column]
    kinds = {(type(cell), getattr(cell, "tzinfo", None)) for cell in cells if cell is not None}
    exact = {str, int, float, bool, datetime.date, datetime.datetime}
    together = len(kinds) < 2 and {kind for kind, _ in kinds} <= exact
    if together or not all(isinstance(cell, plain) for cell in cells):
        try:
            return pa.array(column, from_pandas=True)
        except OverflowError:
            if not together:
                raise
    texts = (str(cell).replace(".", sign) if isinstance(cell, numbers) else cell for cell in cells)
    return pa.array([None if text is None else str(text) for text in texts], pa.string())


def _is_gone(cell: Any, numbers: tuple[type, ...]) -> bool:
    """Whether a cell of a frame is none: None, NaN, and what pandas has for it."""
    return type(cell).__name__ in ("NoneType", "NAType", "NaTType") or (isinstance(cell, numbers) and cell != cell)


def _check_kind(where: Path | str, name: str, kind: Any) -> None:
    if kind_of(kind) == "other":
        raise DataError(f"{where}: the column {name} is {kind}; allowed: numbers, texts, truth values, dates")


@dataclass(frozen=True)
class Whole:
    """A whole file. table: its cells, its columns named as the schema has them; read: the columns that the schema
    needs, with cells as it has them. header: the file's own names. separator, mark: of a CSV file, its sign between
    cells and its byte order mark, if it has one; an Excel file is as one with commas.
    """

    table: pa.Table
    read: pa.Table
    header: list[str]
    separator: str = ""
    mark: bytes = b""


def read_whole(path: Path, names: Sequence[str], form: Form, schema: TableSchema) -> Whole:
    """All columns of a file that must have ``names``; cells of a CSV file are texts. Raises `DataError`."""
    kind, site = kind_of_file(path), site_form(path)
    if kind == "parquet":
        table, header, separator, mark = _read_parquet(path, names, site), _parquet(path).schema_arrow.names, "", b""
    elif kind == "excel":
        header, table = _excel(path, names, site)
        separator, mark = ",", b""
    else:
        public, separator, header = _header(path, names, form)
        mark = codecs.BOM_UTF8 if path.open("rb").read(3) == codecs.BOM_UTF8 else b""
        table = _csv(path, public, separator, form)
        if _num_lines(path) > table.num_rows + 1:
            _check_lines(path, table, separator, names, schema)
    return Whole(table, _as_public(table.select(list(names)), site, path, schema), header, separator, mark)


def _num_lines(path: Path) -> int:
    """Lines of a file, or more."""
    ends, last = np.zeros(2, np.int64), b""
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            ends += [block.count(sign) for sign in (b"\n", b"\r")]
            last = block[-1:]
    return int(ends.max()) + (last not in b"\n\r")


def _check_lines(path: Path, table: pa.Table, separator: str, names: Sequence[str], schema: TableSchema) -> None:
    """Raises `DataError` for a cell of several lines that a quote which is not closed has made: in a column that the
    model reads and that is no text, or in any column where each further line has as many separators as a row.
    """
    from pyarrow import compute

    for place, name in enumerate(table.column_names):
        column = table.column(place)
        inner = compute.match_substring_regex(compute.utf8_trim_whitespace(column), "[\r\n]")
        flags = compute.fill_null(inner, False).to_numpy()
        for row in np.flatnonzero(flags).tolist():
            lines = column[row].as_py().splitlines()
            swallowed = [line.count(separator) == table.num_columns - 1 for line in lines[1:]]
            read = name in names and name not in schema.texts
            if read or (table.num_columns > 2 and all(swallowed)):
                what = "in a column that is no text" if read else "which look like rows"
                words = f"a cell of {len(lines)} lines, {what}: is a quote not closed?"
                raise DataError(f"{path}: column {name}, row {row + 1}: {words}")


def kind_of_file(path: Path) -> Literal["csv", "parquet", "excel"]:
    """By the file's first bytes. Raises `DataError` for a file that cannot be read, or has to be unpacked first."""
    try:
        with path.open("rb") as file:
            first = file.read(4)
        if first == ZIP and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as book:
                if BOOK in book.namelist():
                    return "excel"
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if (kind := next((name for start, name in PACKED.items() if first.startswith(start)), None)) is not None:
        raise DataError(f"{path}: is {kind}; allowed: CSV, Parquet and Excel (.xlsx) files")
    return "parquet" if first == b"PAR1" else "csv"


def column_names(path: Path, form: Form) -> list[str]:
    """Of a file, as the schema has them. Raises `DataError`."""
    kind, site = kind_of_file(path), site_form(path)
    if kind == "parquet":
        return _names(_parquet(path).schema_arrow.names, site)
    return _excel(path, (), site)[1].column_names if kind == "excel" else _header(path, (), form)[0]


def column_types(path: Path, form: Form | None = None) -> dict[str, str]:
    """Name -> "number", "date" or "text", of every column; of a CSV file from its first 1,000 rows. Raises `DataError`
    for a CSV file whose first line looks like a row: its names would be a person's cells.
    """
    kind, site = kind_of_file(path), site_form(path)
    if kind != "csv":
        columns = _parquet(path).schema_arrow if kind == "parquet" else _excel(path, (), site)[1].schema
        return dict(zip(_names(columns.names, site), map(kind_of, columns.types), strict=True))
    form = form or Form()
    header, separator, _ = _header(path, (), form)
    head = _as_public(_csv(path, header, separator, form, rows=1000), site, path)
    kinds = {}
    for place, name in enumerate(header):
        cells = [cell for cell in head.column(place).to_pylist() if cell is not None and cell.strip() not in MISSING]
        _check_name(path, name, [tidy(cell) for cell in cells])
        tests = {"number": lambda cell: parsed_number(cell, form.decimal), "date": day_of} if cells else {}
        fits = (kind for kind, read in tests.items() if all(read(cell) is not None for cell in cells))
        kinds[name] = next(fits, "text")
    return kinds


def draft(path: str | Path, target: str | None = None, form: Form | None = None) -> str:
    """YAML text of a first schema, from the names and types of a file's columns alone, for whoever holds the data.
    target: the column to predict (None: the last one). Raises `DataError`.
    """
    kinds = {name: kind for name, kind in column_types(Path(path), form).items() if name}  # "": ends of lines
    if not kinds:
        raise DataError(f"{path}: has no columns")
    chosen = target or list(kinds)[-1]
    if chosen not in kinds:
        raise OptionError("target", chosen, f"the file has no such column; allowed: {', '.join(list(kinds)[:12])}")
    task, public = ("regression", "range") if kinds[chosen] == "number" else ("classification", "classes")
    columns = {name: dict(DRAFTED[kind]) for name, kind in kinds.items() if name != chosen}
    target_entry = {"column": chosen, "task": task, public: OPEN}
    schema = {"target": target_entry, "columns": columns, "missing": "indicator"}
    text = yaml.safe_dump(schema, sort_keys=False, allow_unicode=True, default_flow_style=None)
    if kind_of_file(Path(path)) != "csv":
        return HEAD.format(rows="", target=chosen, decimals="") + text
    form = form or Form()
    word, sign = next((word, sign) for word, sign in DECIMALS.items() if sign != form.decimal)
    others = column_types(Path(path), replace(form, decimal=sign))
    misread = [name for name, kind in others.items() if kind == "number" and kinds.get(name) == "text"]
    decimals = f"#   {', '.join(misread[:8])}: numbers, if the draft is made with decimal={word}\n" if misread else ""
    return HEAD.format(rows=", the types from the first 1,000 rows", target=chosen, decimals=decimals) + text


def _check_name(path: Path, name: str, cells: Sequence[str]) -> None:
    why = "is a number" if any(parsed_number(name, sign) is not None for sign in ".,") else ""
    why = why or ("is a date" if day_of(name) is not None else "stands again below" if name in cells else "")
    if why:
        words = f"the first line looks like a row and no names of columns: {name[:60]!r} {why}"
        raise DataError(f"{path}: {words}; allowed: a first line of names, so put one before the rows")


def _header(path: Path, names: Sequence[str], form: Form) -> tuple[list[str], str, list[str]]:
    """(names of all columns as the schema has them, separator, as the file has them): the separator under which the
    first line has all ``names``.
    """
    import csv

    if not _is_encoding(form.encoding):
        words = "is no encoding of texts; allowed: utf-8, latin-1, cp1252, utf-16, and others that Python knows"
        raise DataError(f"{path}: encoding={form.encoding}: {words}")
    try:
        with path.open(encoding="utf-8-sig" if form.encoding == "utf-8" else form.encoding) as file:
            line = file.readline(LONGEST_HEADER)  # ended by \n, \r\n or \r
    except UnicodeError:
        raise DataError(_other_encoding(path, form)) from None
    if len(line) == LONGEST_HEADER:
        raise DataError(f"{path}: the first line is longer than {LONGEST_HEADER} letters; it must name the columns")
    text = line.rstrip("\n")
    if not text.strip():
        raise DataError(f"{path}: the first line is empty; it must name the columns")
    tried = [form.separator] if form.separator else SEPARATORS.values()
    site = site_form(path)
    headers = {sign: [tidy(name) for name in next(csv.reader([text], delimiter=sign))] for sign in tried}
    public = {sign: _names(own, site) for sign, own in headers.items()}
    separator = max(headers, key=lambda sign: (len({*names} & {*public[sign]}), len(headers[sign])))
    header = public[separator]
    if len(header) > MOST_COLUMNS:
        raise DataError(f"{path}: {len(header)} columns; at most {MOST_COLUMNS} are allowed")
    check_names(path, header, names)
    return header, separator, headers[separator]


def _is_encoding(name: str) -> bool:
    """Whether Python knows how to read text by it (and not only how to pack bytes, as base64 does)."""
    try:
        return bool(codecs.lookup(name)._is_text_encoding)  # what `open` itself asks
    except (LookupError, ValueError):
        return False


def _other_encoding(path: Path, form: Form) -> str:
    return f"{path}: is not {form.encoding}; name its encoding, as in dataset.encoding=latin-1"


def check_names(path: Path | str, header: Sequence[str], names: Sequence[str]) -> None:
    """Raises `DataError` unless a table, whose columns are ``header``, has each of ``names`` once."""
    import difflib

    lacking = [name for name in names if name not in header]
    if lacking:
        folded = {name.casefold(): name for name in header}
        close = difflib.get_close_matches(lacking[0].casefold(), folded, 1)
        guess = f" (did the file rename it to {folded[close[0]]}?)" if close else ""
        shown = ", ".join(header[:12]) + (", ..." if len(header) > 12 else "")
        raise DataError(f"{path}: has no column {lacking[0]}, which the schema names{guess}; its columns: {shown}")
    wanted = names or header
    twice = [name for name in wanted if name and header.count(name) > 1] if len(header) > len(set(header)) else []
    if twice:
        raise DataError(f"{path}: has the column {twice[0]} twice")


def _csv(
    path: Path,
    header: list[str],
    separator: str,
    form: Form,
    names: list[str] | None = None,
    rows: int | None = None,
    threads: bool = True,
    numbers: Collection[str] = frozenset(),
) -> pa.Table:
    """Columns as texts: what they mean is the schema's business, not a guess's. numbers: as `read_columns`."""
    import pyarrow as pa
    from pyarrow import csv

    reading = csv.ReadOptions(
        column_names=header, skip_rows=1, encoding=form.encoding, block_size=1 << 24, use_threads=threads
    )
    parsing = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    converting = csv.ConvertOptions(
        column_types={name: pa.float64() if name in numbers else pa.string() for name in header},
        include_columns=names or [],
        strings_can_be_null=False,
        null_values=sorted(MISSING),
        decimal_point=form.decimal,
    )
    try:
        if rows is None:
            return csv.read_csv(path, reading, parsing, converting)
        with csv.open_csv(path, reading, parsing, converting) as stream:
            batch = next(iter(stream), None)
        return pa.Table.from_batches([] if batch is None else [batch[:rows]], stream.schema)
    except (pa.ArrowInvalid, UnicodeDecodeError, LookupError) as error:
        words = " ".join(str(error).split())[:300]
        if "UTF8" in words or isinstance(error, UnicodeError):
            raise DataError(_other_encoding(path, form)) from None
        if words.startswith("Empty CSV"):
            return pa.table({name: pa.array([], pa.string()) for name in names or header})
        if "conversion error" in words and numbers:  # its row is found among texts
            return _csv(path, header, separator, form, names, rows, threads)
        if "Expected" in words and threads:  # one thread alone knows the row
            return _csv(path, header, separator, form, names, rows, threads=False)
        if (match := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.{0,60})", words)) is not None:
            line, expected, got, text = match.groups()
            quote = "; is a quote not closed, or a separator in a cell without quotes?"
            words = f"row {int(line) - 1}: {got} cells, and the first line names {expected} columns{quote} ({text})"
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


def cells_of_parquet(path: Path) -> int:
    """How many cells a file says that it has: few bytes of it may be billions."""
    found = _parquet(path).metadata
    return int(found.num_rows * found.num_columns)


def _excel(path: Path, names: Sequence[str], site: SiteForm) -> tuple[list[str], pa.Table]:
    """(names of an Excel sheet's columns in the file, its cells under the schema's). The first row names the columns; a
    formula is its value at the last save. Raises `DataError`, also without openpyxl.
    """
    import psutil

    try:
        from openpyxl import load_workbook
    except ModuleNotFoundError:
        words = "is an Excel file, which needs openpyxl: pip install 'fedpriv[excel]', or save it as CSV"
        raise DataError(f"{path}: {words}") from None
    with zipfile.ZipFile(path) as packed:  # a small file may unpack to any size
        size, most = sum(part.file_size for part in packed.infolist()), psutil.virtual_memory().available // 8
    if size > most:
        raise DataError(f"{path}: {size >> 20} MB when unpacked, and {most >> 20} are allowed: save it as CSV")
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        if site.sheet is not None and site.sheet not in book.sheetnames:
            words = f"sheet: {site.sheet} is none of its sheets; allowed: {', '.join(book.sheetnames[:12])}"
            raise DataError(f"{path}: {words}")
        sheet = book[site.sheet or book.sheetnames[0]]
        rows = [row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row)]
        book.close()
    except DataError:
        raise
    except Exception as error:  # of a damaged file openpyxl raises what its parts raise
        raise DataError(f"{path}: is no readable Excel file ({' '.join(str(error).split())[:200]})") from None
    if not rows:
        raise DataError(f"{path}: the first row must name the columns, and there is none")
    header = ["" if cell is None else tidy(str(cell)) for cell in rows[0]]
    while header and not header[-1]:
        header.pop()
    public = _names(header, site)
    if len(public) > MOST_COLUMNS:
        raise DataError(f"{path}: {len(public)} columns; at most {MOST_COLUMNS} are allowed")
    check_names(path, public, [*names] or public)
    columns = [[row[place] if place < len(row) else None for row in rows[1:]] for place in range(len(public))]
    found = {name: cells for name, cells in zip(public, columns, strict=True) if name}
    for name, cells in found.items():
        _check_name(path, name, [tidy(cell) for cell in cells[:1000] if isinstance(cell, str)])
    return header, frame_columns(found)


def _read_parquet(path: Path, names: Sequence[str], site: SiteForm, columns: Sequence[str] | None = None) -> pa.Table:
    """columns: those that are read (None: all), ``names`` among them."""
    import psutil
    import pyarrow as pa

    file = _parquet(path)
    header = _names(file.schema_arrow.names, site)
    check_names(path, header, names)
    places = [*range(len(header))] if columns is None else [header.index(name) for name in columns]
    schema = pa.schema([file.schema_arrow.field(place) for place in places])
    for name in names:
        _check_kind(path, name, file.schema_arrow.field(header.index(name)).type)
    if (rows := file.metadata.num_rows) > MOST_ROWS:
        raise DataError(f"{path}: {rows} rows; at most {MOST_ROWS} are allowed")
    # What a file says of its own size may be wrong: it is read in pieces, and each counts.
    most = psutil.virtual_memory().available // 2
    pieces, size = [], 0
    try:
        for batch in file.iter_batches(BLOCK, columns=schema.names):
            pieces.append(batch.select(schema.names) if columns is not None else batch)  # a name may be a.b of a struct
            size += pieces[-1].nbytes
            if size > most:
                raise DataError(f"{path}: more than {most >> 20} MB when unpacked, half of the free memory")
    except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is damaged ({' '.join(str(error).split())[:200]})") from None
    return pa.Table.from_batches(pieces, schema).rename_columns([header[place] for place in places])


def kind_of(kind: Any) -> str:
    from pyarrow import types

    if types.is_dictionary(kind):
        return kind_of(kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    plain = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return "text" if plain or types.is_boolean(kind) or types.is_null(kind) else "other"
