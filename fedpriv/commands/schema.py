"""`fedpriv schema FILE` drafts a table's schema; `fedpriv schema check FILE schema_file=SCHEMA` tries one on a file.

    fedpriv schema FILE [target=COLUMN] [out=FILE]     from the names and types of the columns alone
    fedpriv schema check FILE schema_file=SCHEMA       what a run would change or refuse; statement=FILE writes
                                                       what is public of it: digests, names of columns that it has
    fedpriv schema check schema_file=SCHEMA            the schema alone: its digest, which deployments agree on
    fedpriv schema doctor FILE... [ask=RUN_FOLDER]    whether the sites' schemas and columns are the same
    fedpriv schema fill SCHEMA ask=RUN_FOLDER [out=FILE]   ranges and fills from private quantiles and means (`ask`)

Names, values, dates and the sheet of one site's FILE are in FILE.form.yaml beside it (docs/table_cells.md). Each takes
the form of a CSV file too:

    separator=auto      auto, comma, semicolon, tab or pipe
    decimal=point       point or comma: the sign before a fraction
    encoding=utf-8      of the file's text

`doctor` reads the statements of all sites and names each part of the schema in which they differ, and columns that a
site has not. Counts of lost cells tell of the rows: with noise they are a question, `fedpriv ask count:COLUMN:other`,
whose run is ask=. Where something differs the exit code is 1.

A draft holds no value, range or category of the file: fill in each "?" from what is publicly known. What `check` says
tells something of the rows: keep it where they are.

`check` refuses a file where a column is lost: none of its cells is a value, or lies in the range, that the schema names
(exit code 2). Above a fifth of a column's cells it warns (exit code 3). A lost cell counts as "other", a clipped one as
the range's end. A file without a first line of names is refused: a draft would make a person's cells public.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedpriv.common.command_line import DONE, FAILED, LOST, Existing, command, nearest
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say

if TYPE_CHECKING:
    from fedpriv.data.table_files import Form

Separator: TypeAlias = Literal["auto", "comma", "semicolon", "tab", "pipe"]
Decimal: TypeAlias = Literal["point", "comma"]


@dataclass(frozen=True)
class FormOptions:
    separator: Separator = "auto"
    decimal: Decimal = "point"
    encoding: str = "utf-8"

    @property
    def form(self) -> Form:
        from fedpriv.data.table_files import DECIMALS, SEPARATORS, Form

        return Form(SEPARATORS.get(self.separator), DECIMALS[self.decimal], self.encoding)


@command
def draft(file: Existing, *, target: str = "", out: Path | None = None, form: FormOptions) -> None:
    from fedpriv.data import table_files

    _tell(table_files.draft(file, target or None, form.form), out, "; fill in each '?'")


@command
def check(file: Existing | None = None, *, schema_file: Path, statement: Path | None = None, form: FormOptions) -> int:
    from fedpriv.data import table_files, table_rows
    from fedpriv.data.table_schema import read_schema

    schema = read_schema(schema_file)
    if statement is not None:
        names = schema.needed if file is None else table_files.column_names(file, form.form)
        lacking = [name for name in schema.needed if name not in names]
        public = {"schema": schema.digest, "parts": schema.digests, "lacking": lacking}
        write_new(statement, (json.dumps(public, indent=1, ensure_ascii=False) + "\n").encode())
        say(f"wrote {statement}, which names no cell and no count")
    if file is None:
        say(f"{schema.num_inputs} inputs, digest {schema.digest}")
        return DONE
    lines, warnings = table_rows.check(file, schema, form.form)
    say("\n".join([*lines, *warnings]))
    return LOST if warnings else DONE


@command
def doctor(*statements: str, ask: Path | None = None) -> int:
    if len(statements) < 2:
        raise OptionError("FILE", " ".join(statements), "at least two, of `schema check ... statement=FILE`")
    told = {name: _statement(Path(name)) for name in statements}
    found = [f"{name}: has no column {column}" for name, (_, lacking) in told.items() for column in lacking]
    first, _ = told[statements[0]]
    for name, (parts, _) in told.items():
        found += [
            f"{name}: {part} is not as in {statements[0]}" for part in dict(sorted({*first.items()} ^ {*parts.items()}))
        ]
    say("\n".join([*found, *([] if ask is None else _lost(ask))] or ["all schemas and columns are the same"]))
    return FAILED if found else DONE


def _statement(path: Path) -> tuple[dict[str, str], list[str]]:
    """(digests of a site's schema by part; columns that its table has not)."""
    from fedpriv.common.run_files import mapping_in

    try:
        found = mapping_in(path.parent, path.name)
        return {str(part): str(digest) for part, digest in found["parts"].items()}, [*map(str, found["lacking"])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        words = "must be a file of `schema check FILE schema_file=SCHEMA statement=FILE`"
        raise OptionError("FILE", path, words) from None


def _lost(ask: Path) -> list[str]:
    """The noisy counts of lost cells that a run answered."""
    answers = {str(one["question"]): one for one in _summary_of(ask).get("answers") or ()}
    lost = {name: one for name, one in answers.items() if re.fullmatch("count:.*:other", name)}
    if not lost:
        raise OptionError("ask", ask, "must have asked count:COLUMN:other of a column of categories")
    rows = f" of {answers['count']['values'][0]:.0f} rows" if "count" in answers else ""
    between = {name: f"{one['low'][0]:.0f} to {one['high'][0]:.0f}" for name, one in lost.items()}
    words = "are of a value that the schema does not name"
    return [
        f"{name.split(':')[1]}: {one['values'][0]:.0f} ({between[name]}){rows} {words}" for name, one in lost.items()
    ]


def _summary_of(ask: Path) -> Mapping[str, Any]:
    from fedpriv.common.run_files import mapping_in

    try:
        return mapping_in(ask, "summary.json")
    except (OSError, ValueError):
        raise OptionError("ask", ask, "must be the folder of a finished `fedpriv ask`") from None


@command
def fill(schema: Existing, *, ask: Path, out: Path | None = None) -> None:
    from fedpriv.common.run_files import fitting
    from fedpriv.data.table_schema import filled

    summary = _summary_of(ask)
    with fitting(ask):
        text, privacy = filled(schema, summary, ask.name), summary["privacy"]
        cost = f"epsilon {privacy['verified_epsilon']:.4g} at delta {privacy['delta']:g}"
    _tell(text, out, f"; its ranges are answers that cost {cost}")


@command
def main(*overrides: str) -> int:
    name, *given = overrides or ("",)
    kinds = {"check": check, "doctor": doctor, "fill": fill}
    if (work := kinds.get(name)) is not None:
        return work(given)
    if (hint := nearest(name, kinds)) and not Path(name).exists():
        raise OptionError("COMMAND", name, f"allowed: a table's FILE, {', '.join(kinds)}{hint}")
    return draft(overrides)


def _tell(text: str, out: Path | None, more: str) -> None:
    if out is None:
        say(text, end="")
    else:
        write_new(out, text.encode())
        say(f"wrote {out}{more}")


def write_new(out: Path, content: bytes) -> None:
    """Raises `OptionError` where the file is there, or cannot be written."""
    if out.exists():
        raise OptionError("out", out, "is there already; allowed: a new file")
    try:
        out.write_bytes(content)
    except OSError as error:
        raise OptionError("out", out, f"cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
