"""Pages: the committed ones are what the committed results give, and the front page's sentences follow from figures."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedpriv.report.words import plus_minus
from fedpriv.studies import front_page, papers
from fedpriv.studies.boards import read_boards
from fedpriv.studies.front_page import BEGIN, END, head, main, promises, read, refresh, refresh_beside
from fedpriv.studies.pages import board_pages, ideas_counted, in_numbers, markdown_table, paper_pages, short
from fedpriv.studies.results import Board, Entry, Estimate, Leaderboard, PaperResults, RunRecord, read_runs, read_study

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAPERS = ["adpfl", "agn", "coqfl", "fedags", "fedcad"]

Studies = tuple[dict[str, PaperResults], list[Board]]


@pytest.fixture(scope="module")
def committed() -> Studies:
    return read(RESULTS)


# --- the committed pages -----------------------------------------------------------------------------------


def check_origin(origin: Any, runs: list[RunRecord]) -> None:
    """Every run of a clean commit, which the page names; older ones also with the digest of its sources."""
    assert {run.commit for run in runs} == set(origin.commits)
    assert all(run.arithmetic or run.versions.get("code") for run in runs)
    assert origin.commits and all(re.fullmatch(r"[0-9a-f]{12}", commit) for commit in origin.commits)
    assert origin.machine.cores > 0 and origin.date > "2026"
    others = {run.machine.processor for run in runs if run.machine} - {origin.machine.processor}
    assert all(any(name in words for words in origin.remarks) for name in others)
    marked = {run.superseded for run in runs} - {None}
    assert all(any(str(reason) in words for words in origin.remarks) for reason in marked)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_page_is_that_of_its_results_and_these_of_its_file(paper: str) -> None:
    results, runs, asked = read_study(RESULTS / paper, PaperResults), read_runs(RESULTS / paper), papers.load(paper)
    assert [claim.name for claim in results.claims] == list(asked.claims)
    assert [table.name for table in results.tables] == list(asked.tables)
    check_origin(results.provenance, runs)
    known = {run.name for run in runs}
    for _, _, cell in (one for table in results.tables for one in table.cells):
        assert set(cell.runs) <= known and (cell.measured is None) == (not cell.runs)
    assert all((RESULTS / paper / figure.file).is_file() for figure in results.figures)
    written = {file.name: file.read_text(encoding="utf-8") for file in (RESULTS / paper).glob("*.md")}
    assert written == paper_pages(results)


def test_the_boards_pages_are_those_of_their_results_and_these_of_their_files() -> None:
    results = read_study(RESULTS / "leaderboard", Leaderboard)
    check_origin(results.provenance, read_runs(RESULTS / "leaderboard"))
    boards, asked = {board.name: board for board in results.boards}, read_boards("all")
    assert set(boards) == set(asked)
    for name, board in boards.items():
        known = {method.name for method in asked[name].methods}
        there = {entry.method for entry in board.entries} | {left.method for left in board.left}
        assert there == known
        assert board.targets == asked[name].targets and board.delta == asked[name].delta
        assert all(entry.verified_epsilon <= entry.target * (1 + 1e-9) for entry in board.entries)
        trials = None if board.private else board.trials  # a private search keeps its number to itself
        assert all(entry.tried == trials for entry in board.entries)
    written = {file.name: file.read_text(encoding="utf-8") for file in (RESULTS / "leaderboard").glob("*.md")}
    assert written == board_pages(results)


def test_the_committed_head_is_what_the_committed_results_give(committed: Studies, tmp_path: Path) -> None:
    from fedpriv.studies.study_plots import draw_overview

    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    made = head(*committed, draw_overview(committed[1], tmp_path)).rstrip("\n")
    assert page.startswith(f"# Results\n\n{made}\n") and made.startswith(BEGIN) and made.endswith(END)
    assert (RESULTS / "overview.svg").is_file()
    above = page.partition("\n| idea |")[0]
    assert len(above.split()) <= 600
    assert re.sub("[*]", "", made.split("\n")[2]).startswith("Trained in a paper's own setting, ")


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_page_is_short_and_has_every_verdict_with_what_decides_it(paper: str) -> None:
    """Of several comparisons the one that is least sure."""
    page, claims = (RESULTS / paper / "README.md").read_text(), read_study(RESULTS / paper, PaperResults).listed
    assert len(page.split()) <= 2000 and "](details.md)" in page
    rows = [line.strip("| ").split(" | ") for line in page.split("\n") if line.startswith("| ")]
    found = Counter((row[0], row[1].strip("*")) for row in rows)
    tested = Counter((short(one.claim), one.verdict if one.place != "not" else one.needs) for one in claims)
    assert not tested - found
    for one in claims:
        if one.verdict == "does not hold" and one.kind == "training":
            row = next(row for row in rows if row[:2] == [short(one.claim), "**does not hold**"])
            highest = float(re.findall(r"\[[-+.\d]+, ([-+.\d]+)\]", row[2])[0])
            assert highest < 0 or "no effect" in row[2] or "a gain below" in row[2] or "wanted within" in row[2], row


def test_no_page_of_the_boards_is_long() -> None:
    """What few read is in results.json and leaderboard.csv: the command of every row, every test and every price."""
    files = list((RESULTS / "leaderboard").glob("*.md"))
    assert len(files) == 5 and all(len(file.read_text(encoding="utf-8").split()) <= 2000 for file in files)
    boards = read_study(RESULTS / "leaderboard", Leaderboard).boards
    with (RESULTS / "leaderboard" / "leaderboard.csv").open(encoding="utf-8") as file:
        commands = {(row["board"], row["method"], float(row["target"])): row["command"] for row in csv.DictReader(file)}
    assert commands == {(b.name, one.method, one.target): one.command for b in boards for one in b.entries}
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert all(
        f"{plus_minus(e.accuracy.mean or 0.0, e.accuracy.half_width)}" in text for b in boards for e in b.entries
    )


def test_no_result_names_a_place_of_its_machine() -> None:
    place = r"(?<![\w.])/(root|tmp|home|work)/"
    for file in RESULTS.rglob("*"):
        if file.suffix in (".md", ".json", ".csv"):
            assert not re.search(place, file.read_text(encoding="utf-8")), file
        elif file.suffix == ".parquet":
            assert not [run.name for run in read_runs(file.parent) if re.search(place, run.model_dump_json())]


def test_the_results_stay_small() -> None:
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()) < 6_500_000


# --- the front page ----------------------------------------------------------------------------------------


def test_totals_are_those_of_the_papers_pages(committed: Studies) -> None:
    """By other code: from the JSON itself, findings beyond the papers left out, kinds and the two settings apart."""
    names = list(committed[0])
    claims = [json.loads((RESULTS / name / "results.json").read_text())["claims"] for name in names]
    given = [[claim for claim in paper if not claim.get("beyond")] for paper in claims]
    made = head(*committed)
    assert f"The {sum(map(len, given))} claims of {len(names)} papers" in made
    table = made.partition("| paper |")[2].split("\n\n")[0].split("\n")[2:]
    for row, paper, own in zip(table, [*names, "all"], [*given, [one for some in given for one in some]], strict=True):

        def ended(kind: str, another: bool, own: Any = own) -> str:
            here = [one["verdict"] for one in own if one["kind"] == kind and bool(one.get("setting")) is another]
            return "/".join(str(here.count(one)) for one in ("holds", "does not hold", "not decided"))

        never = [one["kind"] for one in own if one["verdict"] == "cannot be tested here"]
        proved = ended("mathematics", True)
        cells = [ended("training", False), ended("training", True), ended("mathematics", False)]
        cells[2] += "" if proved == "0/0/0" else f" ({proved} in another setting)"
        cells += [ended("tables", False), "/".join(map(str, map(never.count, ("training", "mathematics", "tables"))))]
        assert row.strip("| ").split(" | ")[1:] == cells and (paper == "all" or f"]({paper}/README.md)" in row)


def test_every_claim_that_nothing_decides_says_what_would(committed: Studies) -> None:
    """On its paper's page, and on the front page in all; one that is decided needs nothing."""
    listed = [one for paper in committed[0].values() for one in paper.listed]
    undecided = {one: [c for c in listed if c.verdict == one] for one in ("cannot be tested here", "not decided")}
    assert all(bool(one.needs) == (one.verdict in undecided) for one in listed)
    assert {one.needs for one in undecided["cannot be tested here"]} <= set(papers.NEEDS.values())
    said = []
    for claims in undecided.values():
        counts = Counter(one.needs for one in claims).most_common()
        said.append(f"{len(claims)} ({', '.join(f'{need} {count}' for need, count in counts)})")
    assert f"not tested {said[0]}; open {said[1]}." in head(*committed)
    for name, paper in committed[0].items():
        page = (RESULTS / name / "details.md").read_text()
        assert page.count(". It needs ") == sum(bool(one.needs) for one in paper.claims)


def test_a_paper_in_answers(committed: Studies) -> None:
    studies, boards = committed
    rows = [line for line in head(studies, boards).split("\n") if line.startswith("| [")][: len(studies)]
    adp, agn, _, _, cad = (row.strip("| ").split(" | ")[1:] for row in rows)
    assert cad[0].startswith("**in part**: ") and "MNIST, σ = 0.3, 30 rounds: 276 [2.72]" in cad[1]
    counted = ideas_counted(boards)
    assert cad[2] == f"Fed-CAD {in_numbers(counted['Fed-CAD'])}" and cad[3] in ("yes", "in part")
    assert (
        agn[1].startswith("A run at σ = 4 in batches of 60: 0.563 [2]. The noise has a public floor")
        and agn[2].count("<br>") == 2
        and agn[3] == "in part"
    )
    assert adp[1].endswith("44.5 [3]<br>[claimed, of an upload]") and "[by" not in cad[1]

    def true(*verdicts: str) -> str:
        one = next(claim for claim in promises(studies["fedcad"]))
        claims = tuple(one.model_copy(update={"verdict": verdict}) for verdict in verdicts)
        made = head({"fedcad": studies["fedcad"].model_copy(update={"claims": claims})}, boards)
        return re.findall(r"[*]{2}(yes|no|in part)[*]{2}: (.*?) \|", made)[0]

    assert true("holds", "holds") == ("yes", "2 of 2 claims hold") and true("does not hold") == (
        "no",
        "0 of 1 claims hold",
    )
    assert true("holds", "not decided")[0] == "in part"


#: Claims on what is private, at what price. Whoever adds one to a paper sees here whether the page counts it.
PROMISED = {
    "adpfl": {"private", "private_run", "constant"},
    "agn": {"epsilon_agn", "theorem1", "lemma3"},
    "coqfl": {"theorem1", "private"},
    "fedags": {"theorem1", "private", "theorem2"},
    "fedcad": {"epsilon_03", "epsilon_05", "epsilon_fmnist", "same_cost"},
}


def test_the_claims_of_a_guarantee_are_these(committed: Studies) -> None:
    assert {name: {claim.name for claim in promises(paper)} for name, paper in committed[0].items()} == PROMISED


def estimate(mean: float) -> Estimate:
    return Estimate(n=4, mean=mean, std=0.1, half_width=0.16)


def entry(one: Entry, **changes: Any) -> Entry:
    if "mean" in changes:
        changes["accuracy"] = estimate(changes.pop("mean"))
    return one.model_copy(update=changes)


def test_the_first_table_has_the_best_with_features_and_on_pixels(committed: Studies) -> None:
    server = next(one for one in committed[1] if one.name == "client_server")
    one = next(e for e in server.entries if e.idea == "plain")
    entries = (
        entry(one, target=8.0, method="a-strokes", label="A", mean=70.0),
        entry(one, target=8.0, method="b", label="B", mean=60.0),
        entry(one, target=8.0, method="c", label="C", mean=50.0),
        entry(one, target=1.0, method="b", label="B", mean=40.0),
    )
    same = {"title": "T", "entries": entries, "reference": estimate(92.0), "alone": None, "on_features": None}

    def row(**changes: Any) -> list[str]:
        made = server.model_copy(update=same | changes)
        return next(line for line in head({}, [made]).split("\n") if "[T](" in line).strip("| ").split(" | ")

    link = "[command](leaderboard/README.md#commands)"
    small = ["at 1: 40.00 ± 0.16"] * 2
    assert row()[1:] == [*small, "70.00 ± 0.16 / 60.00 ± 0.16", "92.00 ± 0.16", link]
    edges = (entry(entries[0], method="a-edges"), *entries[1:])  # with the stroke map and without it
    assert row(entries=edges, on_features=estimate(99.0))[3:5] == [row()[3], "99.00 ± 0.16 / 92.00 ± 0.16"]
    assert [cell[:26] for cell in row(alone=estimate(88.0))[1:4]] == ["stay alone: 88.00 ± 0.16 ("] * 3
    assert row(entries=entries[:2])[1:3] == ["–", "–"]
    assert row(entries=entries[:2], alone=estimate(88.0))[1] == "stay alone: 88.00 ± 0.16"


def test_sentences_follow_the_figures(committed: Studies) -> None:
    studies, boards = committed
    counts = [
        sum(ideas[one] for ideas in ideas_counted(boards).values()) for one in ("beats", "loses to", "not decided")
    ]
    assert f"{sum(counts)} pairwise tests: {counts[0]} won, {counts[1]} lost, {counts[2]} open" in head(studies, boards)
    bare = [b.model_copy(update={"entries": tuple(entry(e, tuning=None) for e in b.entries)}) for b in boards]
    assert "No epsilon of a board counts the choice" in head({}, bare)
    paper = studies["fedcad"]
    table = paper.tables[0].model_copy(update={"unit": "%", "another": False})
    cell = table.rows[0].cells[0].model_copy(update={"measured": Estimate(n=3, mean=80.0), "reported": 81.0})
    far = cell.model_copy(update={"reported": 84.0})
    rows = tuple(table.rows[0].model_copy(update={"cells": (one,) * len(table.columns)}) for one in (cell, far))
    made = paper.model_copy(update={"tables": (table.model_copy(update={"rows": rows}),)})
    n = len(table.columns)
    said = f"Of {2 * n} printed accuracies that were measured (0 in another setting than the paper's), {n} are reached"
    assert f"{said}; the others are missed by 4 points (median)." in head({"fedcad": made}, [])
    near = rows[1].model_copy(update={"cells": (far.model_copy(update={"measured": Estimate(n=3, mean=83.5)}),) * n})
    both = made.model_copy(update={"tables": (*made.tables, table.model_copy(update={"rows": (near,)}))})
    assert said.replace(f"{n} are reached", f"{2 * n} are reached") in head({"fedcad": both}, [])  # the nearer counts


def test_the_head_is_written_between_its_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("coqfl", "leaderboard"):
        assert refresh(tmp_path) is None
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_bytes((RESULTS / name / "results.json").read_bytes())
    assert refresh(tmp_path) == tmp_path / "README.md"
    page = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("# Mine\n\nBefore.\n" + page.partition("# Results\n")[2] + "After.\n")
    assert main([f"results={tmp_path}"]) == 0
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# Mine\n\nBefore.\n") and page.endswith("After.\n") and page.count(BEGIN) == 1
    assert main([f"results={tmp_path / 'coqfl'}"]) == 2 and "two studies or more" in capsys.readouterr().err
    (tmp_path / "coqfl" / "results.json").write_text("{")
    refresh_beside(tmp_path)
    assert "stays as it was" in capsys.readouterr().out and (tmp_path / "README.md").read_text() == page
    assert front_page.LEADERBOARD == "leaderboard"


def test_a_table_survives_bars_and_line_ends() -> None:
    assert markdown_table(("a", ""), [("x|y", "1\n2")]) == "| a | |\n|---|---|\n| x\\|y | 1 2 |"
