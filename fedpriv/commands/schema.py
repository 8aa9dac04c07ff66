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
from pathlib import Path

from fedpriv.common.command_line import DONE, LOST, command, command_options, path_of
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say
from fedpriv.common.run_files import fitting, mapping_in
from fedpriv.data.table_files import DECIMALS, SEPARATORS, Form, draft
from fedpriv.data.table_rows import check
from fedpriv.data.table_schema import filled, read_schema

FORM: dict[str, str | tuple[str, ...] | None] = {
    "separator": ("auto", *SEPARATORS),
    "decimal": tuple(DECIMALS),
    "encoding": "utf-8",
}

PROGRAM = "fedpriv schema"


@command(needs_arguments=True)
def main(arguments: Sequence[str]) -> int:
    words = [argument for argument in arguments if "=" not in argument]
    given = [argument for argument in arguments if "=" in argument]
    checks = words[:1] == ["check"]
    files = words[1:] if checks else words
    if words[:1] == ["fill"]:
        return _fill(words[1:], given)
    if checks and not files:
        schema = read_schema(command_options(given, {"schema_file": None}, PROGRAM)["schema_file"])
        say(f"{schema.num_inputs} inputs, digest {schema.digest}")
        return DONE
    if len(files) != 1:
        raise OptionError("schema", " ".join(words), "one file; `fedpriv schema --help` shows the usage")
    path = Path(path_of(files[0]))
    if not path.is_file():
        raise OptionError("schema", files[0], "there is no such file")
    own: dict[str, str | tuple[str, ...] | None] = {"schema_file": None} if checks else {"target": "", "out": ""}
    options = command_options(given, own | FORM, PROGRAM, may_be_empty=("target", "out"))
    form = Form(SEPARATORS.get(options["separator"]), DECIMALS[options["decimal"]], options["encoding"])
    if checks:
        lines, warnings = check(path, read_schema(options["schema_file"]), form)
        say("\n".join([*lines, *warnings]))
        return LOST if warnings else DONE
    text = draft(path, options["target"] or None, form)
    return _told(text, options["out"], "; fill in each '?'")


def _fill(files: Sequence[str], given: Sequence[str]) -> int:
    if len(files) != 1:
        raise OptionError("schema fill", " ".join(files), "one schema; `fedpriv schema --help` shows the usage")
    options = command_options(given, {"ask": None, "out": ""}, PROGRAM, may_be_empty=("out",))
    folder = Path(path_of(options["ask"]))
    try:
        summary = mapping_in(folder, "summary.json")
    except (OSError, ValueError):
        raise OptionError("ask", options["ask"], "must be the folder of a finished `fedpriv ask`") from None
    with fitting(folder):
        text, privacy = filled(path_of(files[0]), summary, folder.name), summary["privacy"]
        cost = f"epsilon {privacy['verified_epsilon']:.4g} at delta {privacy['delta']:g}"
    return _told(text, options["out"], f"; its ranges are answers that cost {cost}")


def _told(text: str, place: str, more: str) -> int:
    """Prints a schema, or writes it into a new file."""
    if not place:
        say(text, end="")
        return DONE
    out = Path(path_of(place))
    if out.exists():
        raise OptionError("out", place, "is there already; allowed: a new file")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError("out", place, f"cannot be written ({error.strerror})") from None
    say(f"wrote {out}{more}")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
