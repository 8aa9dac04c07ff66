"""A first schema of a file, from the names and types of its columns alone, and what a schema would do to a file's rows.

Both are for whoever holds the data. Neither is sent anywhere.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from fedpriv.common.errors import DataError, OptionError
from fedpriv.data.table_files import Form, column_types, is_parquet
from fedpriv.data.table_rows import encode_file
from fedpriv.data.table_schema import OPEN, TableSchema

HEAD = """\
# Draft of a schema, from the names and types of the columns{rows}. No value, range or
# category was read off the data: each "?" is yours to fill in from what is publicly known
# (a clinical range, a code list), since models and noise are scaled by it.
#   numbers and dates: range: [low, high]     categories: values: [a, b]
#   free text: text: hashed, dims: 256        not for the model: ignore: true
# {target} is taken as the target; `unit: COLUMN` protects all rows of a person together.
"""

#: What a draft says of a column, by the kind of its cells. Other kinds (lists, bytes) no model reads.
DRAFTED: dict[str, dict[str, object]] = {
    "number": {"range": OPEN},
    "date": {"range": OPEN},
    "text": {"values": OPEN},
    "other": {"ignore": True},
}


def draft(path: str | Path, target: str | None = None, form: Form | None = None) -> str:
    """YAML text of a first schema. target: the column to predict (None: the last one). Raises `DataError`."""
    kinds = {name: kind for name, kind in column_types(Path(path), form).items() if name}  # "": ends of lines
    if not kinds:
        raise DataError(f"{path}: has no columns")
    chosen = target or list(kinds)[-1]
    if chosen not in kinds:
        raise OptionError("target", chosen, f"the file has no such column; allowed: {', '.join(list(kinds)[:12])}")
    number = kinds[chosen] == "number"
    aim: dict[str, object] = {"column": chosen, "task": "regression" if number else "classification"}
    aim["range" if number else "classes"] = OPEN
    columns = {name: dict(DRAFTED[kind]) for name, kind in kinds.items()}
    said = {"target": aim, "columns": {name: how for name, how in columns.items() if name != chosen}}
    text = yaml.safe_dump(said | {"missing": "indicator"}, sort_keys=False, allow_unicode=True, default_flow_style=None)
    rows = "" if is_parquet(Path(path)) else ", the types from the first 1,000 rows"
    return HEAD.format(rows=rows, target=chosen) + text


def check(path: str | Path, schema: TableSchema, form: Form | None = None) -> list[str]:
    """What happens to a file's rows under a schema, in sentences. Raises `DataError` for what a run would refuse."""
    found = encode_file(path, schema, form)
    units = "" if found.unit is None else f", {len(set(found.unit.tolist()))} units ({schema.unit})"
    lines = [f"{len(found.inputs)} rows{units}, {schema.num_inputs} inputs", f"digest {schema.digest}"]
    return [*lines, *found.remarks, "this says something of the rows: keep it where they are"]
