"""What a node has declared of its data: pictures, or a table. A ledger's lines hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.data_schema import DatasetConfig

if TYPE_CHECKING:
    from fedpriv.deployment.policy import Policy


@dataclass(frozen=True)
class Declared:
    """Pictures: their number, classes, size and channels, all of it public."""

    examples: int
    classes: tuple[str, ...]
    size: int
    channels: int

    @property
    def number(self) -> str:
        return f"{self.examples} pictures"

    def own_options(self, data: Path) -> dict[str, Any]:
        """Options of a run's ``dataset`` that this machine sets, whatever a server says."""
        return {"root": str(data)}

    def objections(self, dataset: DatasetConfig, policy: Policy) -> list[str]:
        """What of a run's ``dataset`` does not fit, in words for the local log."""
        if dataset.is_table:
            return [f"dataset.schema_file={dataset.schema_file}: this machine has declared pictures and no table"]
        if (dataset.classes, dataset.size, dataset.channels) != (self.classes, self.size, self.channels):
            asked = f"dataset.classes={list(dataset.classes)} size={dataset.size} channels={dataset.channels}"
            return [f"{asked}: this machine has declared {list(self.classes)}, {self.size} and {self.channels}"]
        return []


@dataclass(frozen=True)
class DeclaredTable:
    """A table: its number of rows, or of persons where the schema names a unit, which is public, and for this machine
    alone its file's name in the data folder, the file of its schema (an absolute path) and how a CSV file is written.
    """

    examples: int
    table: str
    schema_file: str
    separator: str = "auto"
    decimal: str = "point"
    encoding: str = "utf-8"

    @property
    def number(self) -> str:
        return f"{self.examples} {self.counted}"

    @property
    def counted(self) -> str:
        """What is declared the number of. Raises `OptionError`."""
        from fedpriv.data.table_schema import read_schema

        return "rows" if (unit := read_schema(self.schema_file).unit) is None else f"persons ({unit})"

    def own_options(self, data: Path) -> dict[str, Any]:
        """As `Declared.own_options`."""
        options = asdict(self)
        del options["examples"], options["table"]
        return {"root": str(data / self.table), **options}

    def objections(self, dataset: DatasetConfig, policy: Policy) -> list[str]:
        """As `Declared.objections`. Raises `OptionError` for a schema that cannot be read."""
        if not dataset.is_table:
            return ["dataset: the run trains on pictures, and this machine has declared a table"]
        digest, found = self.digest, []
        if digest not in policy.schemas:
            found.append(f"schemas: {list(policy.schemas)} does not approve of {self.schema_file}, {digest}")
        if dataset.schema_digest != digest:
            words = f"this machine's schema {self.schema_file} is another, {digest}"
            found.append(f"dataset.schema_digest={dataset.schema_digest}: {words}")
        return found

    @property
    def digest(self) -> str:
        """Of the schema as its file now is. Raises `OptionError`."""
        from fedpriv.data.table_schema import read_schema

        return read_schema(self.schema_file).digest


def read_declared(row: Mapping[str, Any]) -> Declared | DeclaredTable:
    """A ledger's line. Raises KeyError for one that declares nothing."""
    if "table" in row:
        names = ("examples", "table", "schema_file", "separator", "decimal", "encoding")
        return DeclaredTable(*(row[name] for name in names))
    return Declared(row["examples"], tuple(row["classes"]), row["size"], row["channels"])


def declaring_row(declared: Declared | DeclaredTable) -> dict[str, Any]:
    """What a ledger's line says of it."""
    row = asdict(declared)
    return row | {"classes": list(declared.classes)} if isinstance(declared, Declared) else row


def count_rows(declared: DeclaredTable, data: Path, warnings: list[str] | None = None) -> int:
    """Rows of a node's table, or persons where its schema names them; all rows are read as a run reads them.

    warnings: gets one for each column of which many cells are lost, and a column that is lost is refused. None: neither
    is said, since a server would see it by this machine's absence. Raises `DataError`, `OptionError`.
    """
    from fedpriv.data.table_rows import encode_file, form_of, lost_columns
    from fedpriv.data.table_schema import read_schema

    if Path(declared.table).name != declared.table or not (data / declared.table).is_file():
        raise OptionError("table", declared.table, f"must be the name of a file in {data}")
    schema, form = read_schema(declared.schema_file), form_of(declared)
    found = encode_file(data / declared.table, schema, form)
    if warnings is not None:
        warnings += lost_columns(found, str(data / declared.table))
    return len(found.inputs) if found.unit is None else int(found.unit.max()) + 1


def check_rows(declared: DeclaredTable, data: Path) -> None:
    """Raises `DataError` where the table no longer has the rows (persons) that were declared."""
    if (found := count_rows(declared, data)) != declared.examples:
        words = f"{found} {declared.counted}, declared were {declared.examples}; `declare` declares the new number"
        raise DataError(f"{data / declared.table}: {words}")
