"""Marks results whose code has changed what it computes: their runs are to be made anew, and every page says so.

    python -m tools.mark_results strategy=NAME,... reason=WORDS [results=docs/results] [studies=NAME,...]
                                 [kinds=train,attack] [kept=COMMIT,...]

Marks every run of these methods (of the kinds named: train, plan, audit, attack, dme) in the folders of ``results``
(or in those named) but those that the commits ``kept`` made, with the cells and entries that rest
on one. The next `fedpriv.reproduce` or `fedpriv.leaderboard` into such a folder makes them anew, and only them; what it
writes has no mark any more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TypeVar

from fedpriv.common.command_line import command
from fedpriv.common.errors import OptionError
from fedpriv.studies.front_page import refresh_beside
from fedpriv.studies.jobs import FORMS
from fedpriv.studies.pages import write_boards, write_paper
from fedpriv.studies.results import (
    RUNS_FILE,
    Board,
    Cell,
    Entry,
    Leaderboard,
    PaperResults,
    RunRecord,
    Table,
    provenance,
    read_runs,
    read_study,
    write_results,
)

Rests = TypeVar("Rests", Cell, Entry)


@command
def main(
    *,
    strategy: str,
    reason: str,
    results: Path = Path("docs/results"),
    studies: str = "all",
    kinds: str = "train,attack",
    kept: str = "none",
) -> None:
    known = sorted(file.parent.name for file in results.glob(f"*/{RUNS_FILE}"))
    chosen = known if studies == "all" else studies.split(",")
    if unknown := sorted(set(chosen) - set(known)):
        raise OptionError("studies", ",".join(unknown), f"allowed: all, {', '.join(known)}")
    if unknown := sorted(set(kinds.split(",")) - set(FORMS)):
        raise OptionError("kinds", ",".join(unknown), f"allowed: {', '.join(FORMS)}")
    strategies = set(strategy.split(","))
    there = {str(run.summary.get("strategy")) for study in chosen for run in read_runs(results / study)}
    if unknown := sorted(strategies - there):
        raise OptionError("strategy", ",".join(unknown), f"no run of it; there are: {', '.join(sorted(there))}")
    for study in chosen:
        count = mark(results / study, strategies, set(kinds.split(",")), reason, kept.split(","))
        print(f"{study}: {count} runs are to be made anew")
    refresh_beside(results)


def mark(folder: Path, strategies: Set[str], kinds: Set[str], reason: str, kept: Sequence[str] = ()) -> int:
    """Marks a study's runs of these methods and kinds, and writes its files; returns how many were not marked yet."""
    runs, stale = _superseded(read_runs(folder), strategies, kinds, reason, kept)
    origin = {"provenance": provenance(runs)}
    if folder.name == "leaderboard":
        boards = read_study(folder, Leaderboard)
        changes = {"boards": tuple(_board(board, stale, reason) for board in boards.boards)}
        boards = boards.model_copy(update=origin | changes)
        write_boards(boards, folder)
        write_results(folder, boards, runs)
    else:
        results = read_study(folder, PaperResults)
        tables = {"tables": tuple(_table(table, stale, reason) for table in results.tables)}
        results = results.model_copy(update=origin | tables)
        write_paper(results, folder)
        write_results(folder, results, runs)
    return len(stale)


def _superseded(
    runs: Sequence[RunRecord], strategies: Set[str], kinds: Set[str], reason: str, kept: Sequence[str]
) -> tuple[list[RunRecord], set[str]]:
    """The runs with their marks, and the names of those that have a new one."""
    stale = {
        run.name
        for run in runs
        if run.summary.get("strategy") in strategies
        and run.kind in kinds
        and run.commit not in kept
        and run.superseded is None
    }
    return [run.model_copy(update={"superseded": reason}) if run.name in stale else run for run in runs], stale


def _marked(one: Rests, stale: Set[str], reason: str) -> Rests:
    rests = one.superseded is None and not stale.isdisjoint(one.runs)
    return one.model_copy(update={"superseded": reason}) if rests else one


def _table(table: Table, stale: Set[str], reason: str) -> Table:
    rows = (
        row.model_copy(update={"cells": tuple(_marked(cell, stale, reason) for cell in row.cells)})
        for row in table.rows
    )
    return table.model_copy(update={"rows": tuple(rows)})


def _board(board: Board, stale: Set[str], reason: str) -> Board:
    return board.model_copy(update={"entries": tuple(_marked(entry, stale, reason) for entry in board.entries)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
