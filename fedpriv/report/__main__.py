"""`fedpriv report DIR...`: the report of one run; `fedpriv compare DIR...`: the comparison of several."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from fedpriv.common.command_line import DONE, FAILED, guarded
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.printing import plain, say
from fedpriv.common.run_files import fitting
from fedpriv.report.compare import COMPARISON_NOTE, Comparison, TextTable, compare_folders, comparison_tables
from fedpriv.report.reading import RunFolder, damage_of, find_runs, is_run, read_run
from fedpriv.report.tables import plain_table, rich_table

COMPARED = "print a table (mean and spread over seeds) and write comparison.html, comparison.csv and comparison.png."


def main(arguments: Sequence[str] | None = None) -> int:
    """The report of one run, or the comparison of several."""
    options = _parsed(
        "report",
        f"Write the report of one run and say where it is, or compare several runs: {COMPARED} "
        "Exit code 1: written, but a file of the run is damaged.",
        arguments,
    )
    return guarded(lambda: _report(options.folders, options.out, options.open))


def compare_runs(arguments: Sequence[str] | None = None) -> int:
    """The comparison of at least two runs."""
    options = _parsed("compare", f"Compare the runs in and below the folders: {COMPARED}", arguments)
    return guarded(lambda: _report(options.folders, options.out, options.open, several=True))


def _parsed(command: str, words: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"fedpriv {command}", description=words)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders that hold some")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the comparison (default: the common parent)")
    parser.add_argument("--open", action="store_true", help="show the page in the web browser")
    return parser.parse_args(arguments)


def _report(folders: Sequence[Path], out: Path | None, show: bool = False, several: bool = False) -> int:
    runs = find_runs(folders)
    if several and len(runs) == 1:
        words = f"a comparison needs two runs; `fedpriv report {runs[0]}` writes its report"
        raise RunFolderError(f"{runs[0]}: {words}")
    if out is not None and len(runs) == 1:
        raise OptionError("--out", out, f"is for a comparison; the report of one run is in its folder, {runs[0]}")
    if out is not None and out.exists() and not out.is_dir():
        raise OptionError("--out", out, "is there and no folder; allowed: a folder, or a name that is free")
    from fedpriv.report import page  # draws: not needed to refuse a wrong folder

    if len(runs) == 1:
        with fitting(runs[0]):
            written = page.write_report(runs[0])
            say(written)
            _show(written, show)
            return _said_damage(read_run(runs[0]))
    out = out or _common_parent(folders)
    comparison = compare_folders(runs)
    _print(comparison)
    if not comparison.groups:
        raise RunFolderError(f"none of these {len(runs)} runs can be compared")
    out.mkdir(parents=True, exist_ok=True)
    for file in page.write_comparison(comparison, out):
        say(file)
        _show(file, show and file.suffix == ".html")
    return DONE


def _show(page: Path, wanted: bool) -> None:
    if wanted:
        webbrowser.open(page.resolve().as_uri())


def _said_damage(run: RunFolder) -> int:
    """Names what of a run is damaged; exit code 1 where something is."""
    problems = damage_of(run)
    for name, words in problems.items():
        say(f"fedpriv: {run.path / name}: {words}", file=sys.stderr)
    return FAILED if problems else DONE


def _common_parent(folders: Sequence[Path]) -> Path:
    parents = [(folder.resolve().parent if is_run(folder) else folder.resolve()) for folder in folders]
    common = Path(os.path.commonpath(parents))
    if common == Path(common.anchor):
        raise RunFolderError("these folders have no common parent: say with --out DIR where the comparison goes")
    return common


def _print(comparison: Comparison) -> None:
    for table in comparison_tables(comparison):
        _print_table(Console(), table)
        for line in [*table.winners, *([f"Of all rows: {table.alike}."] if table.alike else [])]:
            say(f"  {line}")
        for note in table.notes:
            say(f"  {note}")
    if comparison.groups:
        say(COMPARISON_NOTE)
    if comparison.warning:
        say(f"warning: {comparison.warning}")
    for path, reason in comparison.left_out:
        say(f"left out: {path}: {reason}")


def _print_table(console: Console, table: TextTable) -> None:
    drawn = rich_table(table.title, table.header, table.rows)
    if not console.is_terminal:
        say("\n".join([table.title, *plain_table(table.header, table.rows), ""]))
    elif Measurement.get(console, console.options.update(max_width=1000), drawn).maximum <= console.width:
        console.print(drawn)
    else:
        rows = (zip(table.header, row, strict=True) for row in table.rows)  # too narrow: a line of text for each
        texts = [table.title, *(" · ".join(f"{name} {cell}" for name, cell in row) for row in rows)]
        console.print(*(Text(plain(text)) for text in texts), "", sep="\n\n")


if __name__ == "__main__":
    sys.exit(main())
