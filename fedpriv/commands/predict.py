"""`fedpriv predict run=RUN_FOLDER FILE...`: what a finished run's model says of pictures, or of a table's rows.

    run     the run's folder
    FILE    of a run on pictures: files in any format that Pillow reads, each cropped and scaled as the training
            pictures were; of a run on a table: one CSV or Parquet file with the columns that its schema names

Of pictures it prints one line each: file, class, probability; files that are no pictures are named at the end. Of a
table it prints the table with columns more. Of a target `death` with the classes no and yes (or more than two): `death
predicted`, the likeliest class, then `death=no probability` and `death=yes probability`. Of labels: `LABEL probability`
each. Of a regression: `TARGET predicted`, the number in its own units. Of the next token: `COLUMN perplexity` and
`COLUMN continued`. Of survival: `EVENT by UNTIL probability`, the risk up to the end, and `no EVENT by TIME
probability` at the end of each interval.

    out=FILE            a table goes there, in the form of the file that was read
    separator=          auto, comma, semicolon, tab or pipe; these three: as the run's table where none is given
    decimal=            point or comma: the sign before a fraction
    encoding=           of the file's text

Cells of the file are copied as they are. A class that a spreadsheet would read as a formula gets an apostrophe before
it. In Python: `fedpriv.load(RUN_FOLDER).model`, whose `probability(table)` is that of the schema's `positive` class
(of survival: `survival(table, times)`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.commands.schema import Decimal, FormOptions, Separator, write_new
from fedpriv.common.command_line import command, path_of
from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.places import use_own_methods
from fedpriv.common.printing import printable, say
from fedpriv.data.table_files import cells_of_parquet, kind_of_file
from fedpriv.training.trained_model import TableModel, load_model

#: Of a Parquet file, whose cells are all in memory: 2^26, half a gigabyte of numbers.
MOST_CELLS = 1 << 26


@command
def main(
    *files: str,
    run: Path,
    out: Path | None = None,
    separator: Separator | None = None,
    decimal: Decimal | None = None,
    encoding: str = "",
) -> None:
    use_own_methods()
    if not files:
        raise OptionError("FILE", "", "is missing; --help shows the usage")
    model = load_model(run)
    of_tables = {"out": out, "separator": separator, "decimal": decimal, "encoding": encoding}
    if isinstance(model, TableModel):
        form = vars(FormOptions(separator or "auto", decimal or "point", encoding).form)
        changes = {name: form[name] for name in form if of_tables[name]}
        return _complete(replace(model, form=replace(model.form, **changes)), files, out)
    if wrong := next((name for name, value in of_tables.items() if value), None):
        raise OptionError(wrong, of_tables[wrong], "of a table, and this run is of pictures: leave it out")
    refused = []
    for path in files:
        try:
            picture = model.read_picture(path)
        except DataError as error:
            refused.append(str(error))
            continue
        likely, best = model.probabilities(picture[None])[0].max(0)
        say(f"{printable(path)}\t{printable(model.classes[int(best)])}\t{float(likely):.4f}", flush=True)
    if refused:
        raise DataError(f"{len(refused)} of {len(files)} files: {'; '.join(refused)}")


def _complete(model: TableModel, files: Sequence[str], out: Path | None) -> None:
    if len(files) > 1:
        raise OptionError("FILE", " ".join(files), "one table at a time")
    path = Path(path_of(files[0]))
    parquet = kind_of_file(path) == "parquet"
    if not out and parquet:
        raise OptionError("out", "", "a Parquet table is no text to be printed; name a new file")
    if out and out.exists():
        raise OptionError("out", out, "is there already; allowed: a new file")
    if parquet and (cells := cells_of_parquet(path)) > MOST_CELLS:
        raise DataError(f"{path}: {cells} cells; at most {MOST_CELLS} are allowed: give the table in parts")
    content = model.complete(path)
    if out:
        write_new(out, content)
        say(f"wrote {out}")
    else:
        text = content.decode(model.form.encoding)
        (say if sys.stdout.isatty() else print)(text, end="")  # another program reads the cells as they are


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
