"""``python -m fedpriv.report DIR...``: the report of one run, or the comparison of several."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from fedpriv.common.errors import FedprivError, RunFolderError
from fedpriv.report.compare import Comparison, compare
from fedpriv.report.reading import find_runs, is_run, read_run
from fedpriv.report.tables import COMPARISON_NOTE, TextTable, comparison_tables, plain_table, records, rich_table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fedpriv.report",
        description="Write the report of one run, or compare several: print a table and write comparison.html, "
        "comparison.csv and comparison.png.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders that hold some")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the comparison (default: the common parent)")
    options = parser.parse_args(arguments)
    try:
        _report(options.folders, options.out)
    except (FedprivError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _report(folders: Sequence[Path], out: Path | None) -> None:
    runs = find_runs(folders)
    from fedpriv.report import page  # draws: not needed to refuse a wrong folder

    if len(runs) == 1:
        print(page.write_report(runs[0]))
        return
    out = out or _common_parent(folders)
    comparison = compare([read_run(run) for run in runs])
    _print(comparison)
    if not comparison.groups:
        raise RunFolderError(f"none of these {len(runs)} runs can be compared")
    out.mkdir(parents=True, exist_ok=True)
    for file in page.write_comparison(comparison, out):
        print(file)


def _common_parent(folders: Sequence[Path]) -> Path:
    parents = [(folder.resolve().parent if is_run(folder) else folder.resolve()) for folder in folders]
    common = Path(os.path.commonpath(parents))
    if common == Path(common.anchor):
        raise RunFolderError("these folders have no common parent: say with --out DIR where the comparison goes")
    return common


def _print(comparison: Comparison) -> None:
    for table in comparison_tables(comparison):
        _print_table(Console(), table)
        for note in table.notes:
            print(f"  {note}")
    if comparison.groups:
        print(COMPARISON_NOTE)
    if comparison.warning:
        print(f"warning: {comparison.warning}")
    for path, reason in comparison.left_out:
        print(f"left out: {path}: {reason}")


def _print_table(console: Console, table: TextTable) -> None:
    drawn = rich_table(table.title, table.header, table.rows)
    if not console.is_terminal:
        print("\n".join([table.title, *plain_table(table.header, table.rows), ""]))
    elif Measurement.get(console, console.options.update(max_width=1000), drawn).maximum <= console.width:
        console.print(drawn)
    else:
        console.print(Text(table.title, "bold"), *map(Text, records(table.header, table.rows)), "", sep="\n\n")


if __name__ == "__main__":
    sys.exit(main())
