"""The pages: landing page, one per paper, the leaderboard, and (`run_pages`) one per run."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined

from fedpriv.common.doing import doing
from fedpriv.report.words import figure, size, threat_sentence, threat_table
from fedpriv.studies.results import Board, Cell, Entry, Estimate, Figure, Leaderboard, PaperResults, Table
from fedpriv.studies.site import charts
from fedpriv.studies.site.inputs import LEADERBOARD, Results, Source, figures
from fedpriv.studies.site.run_pages import run_context, run_row
from fedpriv.studies.site.templates import STYLE, TEMPLATES
from fedpriv.studies.site.wording import (
    BADGES,
    LIST,
    commits,
    count_verdicts,
    duration,
    elapsed,
    many,
    measured,
    paper_name,
    plain,
    provenance,
    seeds,
    slug,
    sortable,
)
from fedpriv.studies.study_words import HOW_DECIDED

STYLE_FILE = "style.css"


@dataclass(frozen=True)
class Link:
    """text None: the run is not among the study's runs."""

    text: str
    href: str | None


@dataclass(frozen=True)
class Links:
    """what: the word for one of them, "seed" where runs are named by their seeds."""

    what: str
    links: tuple[Link, ...]


#: Where a run is used: links from the site's root, by (study, run).
Uses = Mapping[tuple[str, str], Sequence[Link]]


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
        "style_file": STYLE_FILE,
    }
    return environment


def write_pages(found: Results, folder: Path) -> int:
    """Writes all pages, the style and copies of the pictures into a folder; returns the number of pages."""
    environment = _environment()
    uses = _uses(found)
    count = 0
    (folder / STYLE_FILE).write_text(STYLE, encoding="utf-8")
    for study in found.studies():
        _copy_figures(study, folder)
    runs = sum(len(study.runs) for study in found.studies())
    for path, template, context in _pages(found, uses):
        doing("pages", count, max(runs, count))
        page = environment.get_template(template).render(
            root="../" * path.count("/"), path=path, navigation=_navigation(found), **context
        )
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, encoding="utf-8", errors="replace")
        count += 1
    return count


def _pages(found: Results, uses: Uses) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(path, template, what it shows) of every page."""
    yield "index.html", "home", _home(found)
    for paper in found.papers:
        yield _paper_path(paper.name), "paper", _paper(paper)
    if found.leaderboard:
        yield "leaderboard.html", "leaderboard", _leaderboard(found.leaderboard, {paper.name for paper in found.papers})
    for study in found.studies():
        title = _study_title(study.name)
        home = "leaderboard.html" if study.name == LEADERBOARD else _paper_path(study.name)
        shared = {"study": study.name, "study_title": title, "study_path": home}
        rows = [run_row(run, slug(run.name)) for run in study.runs.values()]
        yield f"runs/{study.name}/{LIST}.html", "runs", {**shared, "title": f"Runs of {title}", "rows": rows}
        for name, run in study.runs.items():
            context = run_context(run) | {"uses": uses.get((study.name, name), [])}
            yield _run_path(study.name, name), "run", {**shared, **context}


# --- paths -----------------------------------------------------------------------------------------------


def _paper_path(name: str) -> str:
    return f"papers/{name}.html"


def _run_path(study: str, name: str) -> str:
    return f"runs/{study}/{slug(name)}.html"


def _study_title(name: str) -> str:
    return "the leaderboard" if name == LEADERBOARD else paper_name(name)


def _navigation(found: Results) -> list[tuple[str, str]]:
    board = [("Leaderboard", "leaderboard.html")] if found.leaderboard else []
    return [*board, *((paper_name(paper.name), _paper_path(paper.name)) for paper in found.papers)]


def _picture_path(study: str, file: str) -> str:
    """Of a figure's copy; pictures of one name in several folders of a study stay apart."""
    return f"figures/{study}/{slug(file.removesuffix('.png'))}.png"


def _copy_figures(study: Source[Any], folder: Path) -> None:
    for picture in figures(study.results):
        target = folder / _picture_path(study.name, picture.file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(study.folder / picture.file, target)


def _pictures(study: str, shown: Sequence[Figure], where: str = "") -> list[dict[str, str]]:
    """where: tells figures of one name on one page apart."""
    return [
        {
            "id": f"figure{where}:{slug(picture.name)}",
            "path": quote(_picture_path(study, picture.file)),
            "alt": picture.alt,
            "caption": picture.caption,
        }
        for picture in shown
    ]


def _links(study: Source[Any], names: Sequence[str]) -> Links:
    known = [study.runs.get(name) for name in names]
    told = [run.seed for run in known if run]
    by_seed = len(set(told)) == len(names)
    texts = [str(seed) for seed in told] if by_seed else list(names)
    paths = [_run_path(study.name, name) if run else None for name, run in zip(names, known, strict=True)]
    return Links("seed" if by_seed else "run", tuple(map(Link, texts, paths)))


# --- where a run is used ---------------------------------------------------------------------------------


def _uses(found: Results) -> Uses:
    uses: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for paper in found.papers:
        page = _paper_path(paper.name)
        for table in paper.results.tables:
            for row in table.rows:
                for column, cell in zip(table.columns, row.cells, strict=False):
                    for run in cell.runs:
                        words = f"{paper_name(paper.name)}, {table.title}: {row.label}, {column}"
                        uses[paper.name, run].append(Link(words, f"{page}#{_row_id(table.name, row.name)}"))
    if found.leaderboard:
        for board in found.leaderboard.results.boards:
            for entry in board.entries:
                for run in entry.runs:
                    words = f"Leaderboard, {board.title}, epsilon {plain(entry.target)}: {entry.label}"
                    uses[LEADERBOARD, run].append(Link(words, f"leaderboard.html#{_entry_id(board, entry)}"))
    return uses


def _row_id(table: str, row: str) -> str:
    return f"row:{slug(table)}:{slug(row)}"


def _entry_id(board: Board, entry: Entry) -> str:
    """By its method, which several entries of one target may share."""
    rivals = [other for other in board.entries if (other.target, other.method) == (entry.target, entry.method)]
    name = slug(entry.method) if len(rivals) == 1 else f"{slug(entry.method)}:{rivals.index(entry) + 1}"
    return f"entry:{slug(board.name)}:{slug(plain(entry.target))}:{name}"


# --- landing page ----------------------------------------------------------------------------------------


def _home(found: Results) -> dict[str, Any]:
    papers = [
        {
            "path": _paper_path(paper.name),
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
            "path": f"runs/{study.name}/{LIST}.html",
        }
        for study in found.studies()
    ]
    boards = found.leaderboard.results.boards if found.leaderboard else ()
    return {
        "title": "fedpriv: private federated learning, with its claims checked",
        "papers": papers,
        "boards": [_headline(board) for board in boards],
        "origins": origins,
    }


def _headline(board: Board) -> dict[str, Any]:
    """The best of a board at each target; several where they share the first rank."""
    best = [
        (target, [entry for entry in board.entries if entry.target == target and entry.rank == 1])
        for target in sorted(board.targets)
    ]
    return {"title": board.title, "id": _board_id(board), "reference": board.reference, "best": best}


# --- a paper ---------------------------------------------------------------------------------------------


def _paper(paper: Source[PaperResults]) -> dict[str, Any]:
    results = paper.results
    return {
        "title": f"{paper_name(paper.name)}: {results.title}",
        "short": paper_name(paper.name),
        "results": results,
        "verdicts": count_verdicts(claim.verdict for claim in results.claims),
        "tables": [_table(paper, table) for table in results.tables],
        "pictures": _pictures(paper.name, results.figures),
        "provenance": provenance(results.provenance),
        "runs": len(paper.runs),
        "runs_path": f"runs/{paper.name}/{LIST}.html",
    }


def _table(paper: Source[PaperResults], table: Table) -> dict[str, Any]:
    return {
        "id": f"table:{slug(table.name)}",
        "table": table,
        "rows": [
            {
                "id": _row_id(table.name, row.name),
                "label": row.label,
                "cells": [_cell(paper, cell) for cell in row.cells],
                "missing": max(0, len(table.columns) - len(row.cells)),
            }
            for row in table.rows
        ],
    }


def _cell(paper: Source[PaperResults], cell: Cell) -> dict[str, Any]:
    return {"cell": cell, "sort": sortable(cell.measured), "links": _links(paper, cell.runs)}


# --- the leaderboard -------------------------------------------------------------------------------------


def _board_id(board: Board) -> str:
    return f"board:{slug(board.name)}"


def _leaderboard(study: Source[Leaderboard], papers: Set[str]) -> dict[str, Any]:
    """papers: those that have a page."""
    results = study.results
    targets = sorted({target for board in results.boards for target in board.targets} | _entry_targets(results))
    return {
        "title": "Leaderboard: methods at equal verified privacy",
        "results": results,
        "targets": [plain(target) for target in targets],
        "boards": [_board(study, board, papers) for board in results.boards],
        "provenance": provenance(results.provenance),
        "runs": len(study.runs),
        "runs_path": f"runs/{LEADERBOARD}/{LIST}.html",
    }


def _entry_targets(results: Leaderboard) -> set[float]:
    return {entry.target for board in results.boards for entry in board.entries}


def _board(study: Source[Leaderboard], board: Board, papers: Set[str]) -> dict[str, Any]:
    threat = board.model_dump(include={"unit", "adjacency", "observer", "delta"})
    limits = charts.range_of([entry.accuracy for entry in board.entries] + [board.reference])
    targets = sorted({*board.targets, *(entry.target for entry in board.entries)})
    return {
        "id": _board_id(board),
        "slug": slug(board.name),
        "board": board,
        "question": threat_sentence(threat),
        "threat": threat_table(threat),
        "groups": [(plain(target), _entries(study, board, target, limits, papers)) for target in targets],
        "left": [
            {
                "left": left,
                "target": "" if left.target is None else plain(left.target),
                "search": f"{left.method} {left.label} {left.variant}".lower(),
            }
            for left in board.left
        ],
        "pictures": _pictures(LEADERBOARD, [board.plot] if board.plot else [], f":{slug(board.name)}"),
    }


def _entries(
    study: Source[Leaderboard], board: Board, target: float, limits: tuple[float, float], papers: Set[str]
) -> list[dict[str, Any]]:
    entries = sorted((entry for entry in board.entries if entry.target == target), key=lambda entry: entry.rank)
    return [
        {
            "id": _entry_id(board, entry),
            "entry": entry,
            "paper": paper_name(entry.paper),
            "paper_path": _paper_path(entry.paper) if entry.paper in papers else None,
            "search": f"{entry.method} {entry.label} {entry.paper} {paper_name(entry.paper)}".lower(),
            "strip": charts.strip(entry.accuracy, *_with_margin(limits), _reference_mark(board.reference)),
            "links": _links(study, entry.runs),
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
