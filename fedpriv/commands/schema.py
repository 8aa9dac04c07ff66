"""`fedpriv schema FILE` drafts a table's schema; `fedpriv schema check FILE schema_file=SCHEMA` tries one on a file.

    fedpriv schema FILE [target=COLUMN] [out=FILE]     from the names and types of the columns alone
    fedpriv schema check FILE schema_file=SCHEMA       what a run would change or refuse
    fedpriv schema check schema_file=SCHEMA            the schema alone: its digest, which deployments agree on
    fedpriv schema fill SCHEMA ask=RUN_FOLDER [out=FILE]   ranges from the private quantiles of a `fedpriv ask`

Each takes the form of a CSV file too:

    separator=auto      auto, comma, semicolon, tab or pipe
    decimal=point       point or comma: the sign before a fraction
    encoding=utf-8      of the file's text

A draft holds no value, range or category of the file: fill in each "?" from what is publicly known. What `check` says
tells something of the rows: keep it where they are.

`check` refuses a file where a column is lost: none of its cells is a value, or lies in the range, that the schema names
(exit code 2). Above a fifth of a column's cells it warns (exit code 3). A lost cell counts as "other", a clipped one as
the range's end. A file without a first line of names is refused: a draft would make a person's cells public.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from fedpriv.common.command_line import DONE, LOST, Existing, command
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
def check(file: Existing | None = None, *, schema_file: Path, form: FormOptions) -> int:
    from fedpriv.data import table_rows
    from fedpriv.data.table_schema import read_schema

    schema = read_schema(schema_file)
    if file is None:
        say(f"{schema.num_inputs} inputs, digest {schema.digest}")
        return DONE
    lines, warnings = table_rows.check(file, schema, form.form)
    say("\n".join([*lines, *warnings]))
    return LOST if warnings else DONE


@command
def fill(schema: Existing, *, ask: Path, out: Path | None = None) -> None:
    from fedpriv.common.run_files import fitting, mapping_in
    from fedpriv.data.table_schema import filled

    try:
        summary = mapping_in(ask, "summary.json")
    except (OSError, ValueError):
        raise OptionError("ask", ask, "must be the folder of a finished `fedpriv ask`") from None
    with fitting(ask):
        text, privacy = filled(schema, summary, ask.name), summary["privacy"]
        cost = f"epsilon {privacy['verified_epsilon']:.4g} at delta {privacy['delta']:g}"
    _tell(text, out, f"; its ranges are answers that cost {cost}")


def main(arguments: Sequence[str]) -> int:
    if work := {"check": check, "fill": fill}.get(arguments[0] if arguments else ""):
        return work(arguments[1:])
    return draft(arguments)


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
