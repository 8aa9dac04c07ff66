"""The pages: landing page, one per paper, the leaderboard, a list of each study's runs, and those of the runs that
`fedpriv.studies.site.run_choice` picks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from fedpriv.common.doing import doing
from fedpriv.report.words import figure, many, size, threat_sentence, threat_table
from fedpriv.studies.results import Board, Cell, Estimate, Figure, Leaderboard, PaperResults, Table
from fedpriv.studies.site import charts
from fedpriv.studies.site.addresses import (
    RunKey,
    board_id,
    entry_id,
    line_path,
    list_path,
    paper_path,
    row_id,
    run_links,
    run_path,
    study_path,
    study_title,
)
from fedpriv.studies.site.inputs import LEADERBOARD, OVERVIEW, Results, Source, figures
from fedpriv.studies.site.run_choice import (
    MOST_BYTES,
    MOST_PAGES,
    RULE,
    listed_runs,
    runs_in_order,
    uses_of_runs,
    words_of_choice,
    words_of_unlisted,
)
from fedpriv.studies.site.run_lists import list_context, siblings_by_name
from fedpriv.studies.site.run_pages import run_context
from fedpriv.studies.site.site_pictures import Shown, show_pictures
from fedpriv.studies.site.templates import SCRIPT, STYLE, TEMPLATES
from fedpriv.studies.site.wording import (
    BADGES,
    commits,
    count_verdicts,
    duration,
    elapsed,
    measured,
    paper_name,
    plain,
    provenance,
    seeds,
    slug,
    sortable,
)
from fedpriv.studies.study_words import HOW_DECIDED
from fedpriv.studies.what_was_found import Found, sentences

STYLE_FILE, SCRIPT_FILE = "style.css", "site.js"

#: (path, template, what it shows) of a page.
Page = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class Site:
    """What all pages are made of. asked: the runs that may have a page, in their order; pages: those that have one."""

    found: Results
    pictures: Mapping[str, Mapping[str, Shown]]
    asked: Sequence[RunKey]
    pages: Set[RunKey]


def _environment() -> Environment:
    environment = Environment(
        loader=DictLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "duration": duration,
        "figure": figure,
        "measured": measured,
        "plain": plain,
        "elapsed": elapsed,
        "seeds": seeds,
        "size": size,
        "slug": slug,
        "sortable": sortable,
    }
    environment.globals |= {
        "around_zero": charts.around_zero,
        "badges": BADGES,
        "how_decided": HOW_DECIDED,
        "many": many,
        "paper_name": paper_name,
        "script_file": SCRIPT_FILE,
        "style_file": STYLE_FILE,
    }
    return environment


def write_pages(found: Results, folder: Path) -> int:
    """Writes all pages, style, script and pictures into a folder; returns the number of pages."""
    render = _renderer(found)
    (folder / STYLE_FILE).write_text(STYLE, encoding="utf-8")
    (folder / SCRIPT_FILE).write_text(SCRIPT, encoding="utf-8")
    pictures = {
        study.name: show_pictures(study.folder, study.name, figures(study.results), folder) for study in found.studies()
    }
    if found.overview:
        pictures[OVERVIEW] = show_pictures(found.folder, "all", [found.overview], folder)
    taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    site = Site(found, pictures, asked := runs_in_order(found), frozenset(asked))
    room = MOST_PAGES - len([*_pages(site)])
    runs = {key: render(*page) for key, page in _run_pages(site, asked[: max(0, room)])}
    while True:
        site = Site(found, pictures, asked, frozenset(runs))
        rest = [render(*page) for page in _pages(site)]
        excess = taken + sum(len(content) for _, content in (*rest, *runs.values())) - MOST_BYTES
        if excess <= 0 or not runs:
            break
        while runs and excess > 0:  # those that come last go first
            excess -= len(runs.popitem()[1][1])
    for path, content in (*rest, *runs.values()):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return len(rest) + len(runs)


def _renderer(found: Results) -> Callable[[str, str, dict[str, Any]], tuple[str, bytes]]:
    """(path, content) of a page; says how many there have been."""
    environment, navigation = _environment(), _navigation(found)
    count = 0

    def render(path: str, template: str, context: dict[str, Any]) -> tuple[str, bytes]:
        nonlocal count
        doing("pages", count, max(MOST_PAGES, count))
        count += 1
        shown = environment.get_template(template).render(
            root="../" * path.count("/"), path=path, navigation=navigation, **context
        )
        return path, shown.encode("utf-8", "replace")

    return render


def _pages(site: Site) -> Iterator[Page]:
    """Every page but those of runs."""
    found = site.found
    yield "index.html", "home", _home(site)
    for paper in found.papers:
        yield paper_path(paper.name), "paper", _paper(site, paper)
    if found.leaderboard:
        yield "leaderboard.html", "leaderboard", _leaderboard(site, found.leaderboard)
    for study in found.studies():
        listed = listed_runs(found, study)
        yield (
            list_path(study.name),
            "runs",
            {
                **_shared(study.name),
                "title": f"Runs of {study_title(study.name)}",
                "count": len(listed),
                "unlisted": words_of_unlisted(study.name, len(study.runs) - len(listed)),
                "rule": RULE,
                "chosen": words_of_choice(study.name, site.asked, site.pages),
                "settings": list_context(study.name, listed, site.pages),
            },
        )


def _run_pages(site: Site, runs: Sequence[RunKey]) -> Iterator[tuple[RunKey, Page]]:
    studies = {study.name: study for study in site.found.studies()}
    alike = {name: siblings_by_name(listed_runs(site.found, study)) for name, study in studies.items()}
    lines = {name: {run: line for line, run in enumerate(study.runs, 1)} for name, study in studies.items()}
    uses = uses_of_runs(site.found)
    for study, name in runs:
        context = run_context(studies[study].runs[name], alike[study][name])
        used = {"uses": uses.get((study, name), []), "line": line_path(study, name), "number": lines[study][name]}
        yield (study, name), (run_path(study, name), "run", {**_shared(study), **context, **used})


def _shared(study: str) -> dict[str, Any]:
    return {
        "study": study,
        "study_title": study_title(study),
        "study_path": study_path(study),
        "list_path": list_path(study),
    }


def _navigation(found: Results) -> list[tuple[str, str]]:
    board = [("Leaderboard", "leaderboard.html")] if found.leaderboard else []
    return [*board, *((paper_name(paper.name), paper_path(paper.name)) for paper in found.papers)]


def _pictures(site: Site, study: str, shown: Sequence[Figure], where: str = "") -> list[dict[str, Any]]:
    """where: tells figures of one name on one page apart."""
    return [
        {"id": f"figure{where}:{slug(picture.name)}", "shown": site.pictures[study][picture.file]} for picture in shown
    ]


# --- landing page ----------------------------------------------------------------------------------------


def _home(site: Site) -> dict[str, Any]:
    found = site.found
    papers = [
        {
            "path": paper_path(paper.name),
            "short": paper_name(paper.name),
            "title": paper.results.title,
            "authors": paper.results.authors,
            "idea": paper.results.idea,
            "verdicts": count_verdicts(claim.verdict for claim in paper.results.claims),
        }
        for paper in found.papers
    ]
    origins = [
        {
            "what": "Leaderboard" if study.name == LEADERBOARD else paper_name(study.name),
            "commits": commits(study.results.provenance),
            "date": study.results.provenance.date,
            "machine": study.results.provenance.machine.processor,
            "seeds": many(study.results.seeds, "seed"),
            "runs": len(study.runs),
            "path": list_path(study.name),
        }
        for study in found.studies()
    ]
    boards = found.leaderboard.results.boards if found.leaderboard else ()
    return {
        "title": "fedpriv: private federated learning, with its claims checked",
        "sentences": [*sentences(_all_studies(found))],
        "pictures": _pictures(site, OVERVIEW, [found.overview] if found.overview else []),
        "papers": papers,
        "boards": [_headline(board) for board in boards],
        "origins": origins,
    }


def _all_studies(found: Results) -> Found:
    """In the order of `fedpriv.studies.what_was_found.read`, so that the sentences are those of the folder's page."""
    boards = found.leaderboard.results.boards if found.leaderboard else ()
    return Found({paper.name: paper.results for paper in sorted(found.papers, key=lambda one: one.name)}, boards)


def _headline(board: Board) -> dict[str, Any]:
    """The best of a board at each target; several where they share the first rank."""
    best = [
        (target, [entry for entry in board.entries if entry.target == target and entry.rank == 1])
        for target in sorted(board.targets)
    ]
    return {"title": board.title, "id": board_id(board), "reference": board.reference, "best": best}


# --- a paper ---------------------------------------------------------------------------------------------


def _paper(site: Site, paper: Source[PaperResults]) -> dict[str, Any]:
    results = paper.results
    return {
        "title": f"{paper_name(paper.name)}: {results.title}",
        "short": paper_name(paper.name),
        "results": results,
        "verdicts": count_verdicts(claim.verdict for claim in results.claims),
        "tables": [_table(site, paper, table) for table in results.tables],
        "pictures": _pictures(site, paper.name, results.figures),
        "provenance": provenance(results.provenance),
        "runs": len(paper.runs),
        "runs_path": list_path(paper.name),
    }


def _table(site: Site, paper: Source[PaperResults], table: Table) -> dict[str, Any]:
    return {
        "id": f"table:{slug(table.name)}",
        "table": table,
        "rows": [
            {
                "id": row_id(table.name, row.name),
                "label": row.label,
                "cells": [_cell(site, paper, cell) for cell in row.cells],
                "missing": max(0, len(table.columns) - len(row.cells)),
            }
            for row in table.rows
        ],
    }


def _cell(site: Site, paper: Source[PaperResults], cell: Cell) -> dict[str, Any]:
    return {"cell": cell, "sort": sortable(cell.measured), "links": run_links(paper, cell.runs, site.pages)}


# --- the leaderboard -------------------------------------------------------------------------------------


def _leaderboard(site: Site, study: Source[Leaderboard]) -> dict[str, Any]:
    results = study.results
    targets = sorted({target for board in results.boards for target in board.targets} | _entry_targets(results))
    return {
        "title": "Leaderboard: methods at equal verified privacy",
        "results": results,
        "targets": [plain(target) for target in targets],
        "boards": [_board(site, study, board) for board in results.boards],
        "provenance": provenance(results.provenance),
        "runs": len(study.runs),
        "runs_path": list_path(LEADERBOARD),
    }


def _entry_targets(results: Leaderboard) -> set[float]:
    return {entry.target for board in results.boards for entry in board.entries}


def _board(site: Site, study: Source[Leaderboard], board: Board) -> dict[str, Any]:
    threat = board.model_dump(include={"unit", "adjacency", "observer", "delta"})
    limits = charts.range_of([entry.accuracy for entry in board.entries] + [board.reference])
    targets = sorted({*board.targets, *(entry.target for entry in board.entries)})
    return {
        "id": board_id(board),
        "slug": slug(board.name),
        "board": board,
        "question": threat_sentence(threat),
        "threat": threat_table(threat),
        "groups": [(plain(target), _entries(site, study, board, target, limits)) for target in targets],
        "left": [
            {
                "left": left,
                "target": "" if left.target is None else plain(left.target),
                "search": f"{left.method} {left.label} {left.variant}".lower(),
            }
            for left in board.left
        ],
        "pictures": _pictures(site, LEADERBOARD, [board.plot] if board.plot else [], f":{slug(board.name)}"),
    }


def _entries(
    site: Site, study: Source[Leaderboard], board: Board, target: float, limits: tuple[float, float]
) -> list[dict[str, Any]]:
    papers = {paper.name for paper in site.found.papers}
    entries = sorted((entry for entry in board.entries if entry.target == target), key=lambda entry: entry.rank)
    return [
        {
            "id": entry_id(board, entry),
            "entry": entry,
            "paper": paper_name(entry.paper),
            "paper_path": paper_path(entry.paper) if entry.paper in papers else None,
            "search": f"{entry.method} {entry.label} {entry.paper} {paper_name(entry.paper)}".lower(),
            "strip": charts.strip(entry.accuracy, *_with_margin(limits), _reference_mark(board.reference)),
            "links": run_links(study, entry.runs, site.pages),
        }
        for entry in entries
    ]


def _reference_mark(reference: Estimate) -> list[charts.Mark]:
    return [] if reference.mean is None else [charts.Mark(reference.mean, "reference")]


def _with_margin(limits: tuple[float, float]) -> tuple[float, float]:
    """Of accuracies in percent: no interval is drawn beyond what an accuracy can be."""
    low, high = max(limits[0], 0.0), min(limits[1], 100.0)
    margin = 0.04 * (high - low)
    return max(low - margin, 0.0), min(high + margin, 100.0)
