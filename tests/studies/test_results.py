"""The committed results: whole, of committed code, as today's files of experiments ask for them, and free of paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedpriv.studies import spec
from fedpriv.studies import study_words as words
from fedpriv.studies.boards import read_boards
from fedpriv.studies.leaderboard_page import pages
from fedpriv.studies.results import Leaderboard, PaperResults, Provenance, RunRecord, read_results

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAPERS = ["adpfl", "agn", "coqfl", "fedags", "fedcad"]


def check_origin(origin: Provenance, runs: list[RunRecord]) -> None:
    """Every run of a clean commit, which the page names; older ones also with the digest of its sources."""
    assert {run.commit for run in runs} == set(origin.commits)
    assert all(run.arithmetic or run.versions.get("code") for run in runs)
    assert origin.commits and all(re.fullmatch(r"[0-9a-f]{12}", commit) for commit in origin.commits)
    assert origin.machine.cores > 0 and origin.date > "2026"
    machines = {(run.machine.processor, run.machine.cores) for run in runs if run.machine}
    others = machines - {(origin.machine.processor, origin.machine.cores)}
    said = " ".join(origin.others)
    assert all(name in said for name, _ in others) and ("cores" in said) == bool(others)
    marked = {run.superseded for run in runs} - {None}
    assert all(any(str(reason) in words for words in origin.remarks) for reason in marked)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_results_are_those_of_its_file(paper: str) -> None:
    results, runs = read_results(RESULTS / paper, PaperResults)
    asked = spec.load(paper)
    assert [claim.name for claim in results.claims] == list(asked.claims)
    assert [table.name for table in results.tables] == list(asked.tables)
    assert all(claim.words for claim in results.claims)
    check_origin(results.provenance, runs)
    known = {run.name for run in runs}
    for table in results.tables:
        for row in table.rows:
            for cell in row.cells:
                assert set(cell.runs) <= known and (cell.measured is None) == (not cell.runs)
    for figure in results.figures:
        assert (RESULTS / paper / figure.file).is_file()
    assert (RESULTS / paper / "README.md").read_text(encoding="utf-8") == words.page(results)


def test_the_leaderboards_results_are_those_of_its_files() -> None:
    results, runs = read_results(RESULTS / "leaderboard", Leaderboard)
    check_origin(results.provenance, runs)
    boards = {board.name: board for board in results.boards}
    asked = read_boards("all")
    assert set(boards) == set(asked)
    for name, board in boards.items():
        known = {method.name for method in asked[name].methods}
        there = {entry.method for entry in board.entries} | {left.method for left in board.left}
        assert there == known and board.targets == asked[name].targets and board.delta == asked[name].delta
        assert all(entry.verified_epsilon <= entry.target * (1 + 1e-9) for entry in board.entries)
        trials = None if asked[name].tuning.private else board.trials  # a private search keeps its number to itself
        assert all(entry.tried == trials for entry in board.entries)
    written = {file.name: file.read_text(encoding="utf-8") for file in (RESULTS / "leaderboard").glob("*.md")}
    assert written == pages(results)


def test_no_result_names_a_place_of_its_machine() -> None:
    for file in RESULTS.rglob("*"):
        if file.suffix in (".md", ".json", ".jsonl", ".csv"):
            assert not re.search(r"(?<![\w.])/(root|tmp|home|work)/", file.read_text(encoding="utf-8")), file
