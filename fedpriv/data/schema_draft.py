"""A first schema of a file, from the names and types of its columns alone, and what a schema would do to a file's rows.

Both are for whoever holds the data. Neither is sent anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedpriv.common.errors import DataError, OptionError
from fedpriv.data.table_files import Form, column_types, is_parquet
from fedpriv.data.table_rows import encode_file, lost_columns
from fedpriv.data.table_schema import OPEN, TableSchema, read_schema

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


def check(path: str | Path, schema: TableSchema, form: Form | None = None) -> tuple[list[str], list[str]]:
    """(what happens to a file's rows under a schema, in sentences; a warning for each column of which many cells are
    lost). Raises `DataError` for what a run would refuse.
    """
    found = encode_file(path, schema, form)
    warnings = lost_columns(found, str(path))
    units = "" if found.unit is None else f", {len(set(found.unit.tolist()))} units ({schema.unit})"
    lines = [f"{len(found.inputs)} rows{units}, {schema.num_inputs} inputs", f"digest {schema.digest}"]
    return [*lines, *found.remarks, "this says something of the rows: keep it where they are"], warnings


#: A filled range is at most so many times as wide as what surely lies inside it.
MOST_WIDTH = 2
FILLED = """\
# Ranges of {columns} are answers of differential privacy, of the questions of {source}.
"""


def filled(path: str | Path, summary: Mapping[str, Any], source: str) -> str:
    """YAML text of a schema whose columns have the ranges that a run with strategy=ask answered: of each column that
    quantiles were asked of, from the least end of their intervals to the largest: nobody is cut off whom the noise or a
    bin hides. summary: the run's; source: its name.

    Columns of the schema's own that say "?" and were not asked of stay so. Raises `OptionError` for a run without such
    an answer, and for intervals that are too wide to be of use.
    """
    schema = read_schema(path, unfilled=True)
    found: dict[str, tuple[float, float]] = {}
    inner: dict[str, float] = {}
    for one in summary.get("answers") or ():
        kind, name, *_ = [*str(one["question"]).split(":"), ""]
        if kind == "quantiles":
            found[name] = min(one["low"]), max(one["high"])
            inner[name] = max(one["low"]) - min(one["high"])  # between the intervals of the outermost
    own = {name: pair for name, pair in found.items() if name in schema.columns and schema.columns[name].range}
    if not own:
        words = "has no answer quantiles:COLUMN:0.01:0.99 of a column of numbers of this schema"
        raise OptionError("ask", source, words)
    for name, (low, high) in own.items():
        if not inner[name] > (high - low) / MOST_WIDTH:
            words = f"{name}: its quantiles lie between {low:.4g} and {high:.4g}, and their intervals fill half of that"
            raise OptionError(
                "ask", source, f"{words} or more; ask with less noise, more rounds or shares nearer to 0.5"
            )
    own = {name: _outward(low, high, schema.columns[name].step) for name, (low, high) in own.items()}
    said = schema.model_dump(mode="json", exclude_none=True)
    for name, (low, high) in own.items():
        said["columns"][name]["range"] = [low, high]
    privacy = summary["privacy"]
    if privacy["verified_epsilon"] is None:
        raise OptionError("ask", source, "promises nothing (its epsilon is infinite); ask with noise")
    parts = {name: privacy[name] for name in ("delta", "unit", "adjacency", "observer")}
    answered = {"columns": sorted(own), "epsilon": float(privacy["verified_epsilon"]), **parts}
    # What the asked ranges themselves came from was spent too; what this schema says of it already counts once.
    known, earlier = said.pop("answered", []), list[Any]()
    unseen = list(known)
    for one in privacy.get("spent_before", ()):
        if one in unseen:
            unseen.remove(one)
        else:
            earlier.append(one)
    said["answered"] = [*known, *earlier, answered]
    text = yaml.safe_dump(_bare(said), sort_keys=False, allow_unicode=True, default_flow_style=None)
    return FILLED.format(columns=", ".join(sorted(own)), source=source) + text


def _outward(low: float, high: float, step: float | None) -> tuple[float, float]:
    """A range with ends of four significant digits of its width, or multiples of the step, that holds this one."""
    unit = step or 10.0 ** (math.floor(math.log10(high - low)) - 3)
    ends = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return float(f"{ends[0] * unit:.12g}"), float(f"{ends[1] * unit:.12g}")


def _bare(said: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing: the width of a text that is none, and empty lists."""
    columns = {
        name: {key: value for key, value in column.items() if key != "dims" or "text" in column}
        for name, column in said["columns"].items()
    }
    target = {key: value for key, value in said["target"].items() if value not in ([], None)}
    return {**said, "target": target, "columns": columns}
