"""The results that a site is made of, read and checked as a whole before the first page is written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.studies.results import (
    RESULTS_FILE,
    Figure,
    Leaderboard,
    PaperResults,
    RunRecord,
    Study,
    read_results,
)
from fedpriv.studies.site.wording import PAPERS

LEADERBOARD = "leaderboard"
OVERVIEW = "overview.png"
#: A line of Markdown with that picture, and the paragraph below it.
SHOWN_PICTURE = re.compile(r"^!\[(?P<alt>.+)\]\(overview\.\w+\)\n\n(?P<caption>.+)$", re.MULTILINE)
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Source(Generic[Study]):
    """One study: its results and its runs by name, in their order."""

    name: str
    folder: Path
    results: Study
    runs: Mapping[str, RunRecord]


@dataclass(frozen=True)
class Results:
    """overview: the picture of all studies, in ``folder``, where there is one."""

    papers: tuple[Source[PaperResults], ...]
    leaderboard: Source[Leaderboard] | None
    folder: Path = Path()
    overview: Figure | None = None

    def studies(self) -> Iterator[Source[PaperResults] | Source[Leaderboard]]:
        yield from self.papers
        if self.leaderboard:
            yield self.leaderboard


def read_all(folder: Path) -> Results:
    """Raises `OptionError` where there are no results, `RunFolderError` where some cannot be used."""
    if not folder.is_dir():
        raise OptionError("results", folder, "there is no such folder")
    known = ", ".join((*PAPERS, LEADERBOARD))
    there = [name for name in (*PAPERS, LEADERBOARD) if (folder / name / RESULTS_FILE).is_file()]
    if not there:
        raise OptionError("results", folder, f"no <study>/{RESULTS_FILE} there; studies: {known}")
    papers = tuple(_read(folder / name, PaperResults) for name in there if name != LEADERBOARD)
    for paper in papers:
        if paper.results.paper != paper.name:
            raise RunFolderError(f"{paper.folder}: {RESULTS_FILE} is of the paper {paper.results.paper!r}")
    board = _read(folder / LEADERBOARD, Leaderboard) if LEADERBOARD in there else None
    found = Results(papers, board, folder, _overview(folder))
    for study in found.studies():
        _check_names(study)
        for figure in figures(study.results):
            check_figure(study.folder, figure)
    return found


def _overview(folder: Path) -> Figure | None:
    """The picture that `fedpriv.studies.front_page` drew, with the words that its page has for it."""
    page = folder / "README.md"
    if not (page.is_file() and (folder / OVERVIEW).is_file()):
        return None
    shown = SHOWN_PICTURE.search(page.read_text(encoding="utf-8", errors="replace"))
    if shown is None:
        return None
    picture = Figure(name="overview", file=OVERVIEW, alt=shown["alt"], caption=shown["caption"])
    check_figure(folder, picture)
    return picture


def _read(folder: Path, kind: type[Study]) -> Source[Study]:
    try:
        results, records = read_results(folder, kind)
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{folder}: not UTF-8: {error}") from None
    runs: dict[str, RunRecord] = {}
    for record in records:
        if record.name in runs:
            raise RunFolderError(f"{folder}: two runs have the name {record.name!r}")
        runs[record.name] = record
    return Source(folder.name, folder, results, runs)


def _check_names(study: Source[PaperResults] | Source[Leaderboard]) -> None:
    """Names become anchors and files: raises `RunFolderError` where two of one kind are the same."""
    results = study.results
    kinds: dict[str, list[str]] = {}
    if isinstance(results, PaperResults):
        kinds = {"claims": [claim.name for claim in results.claims], "figures": [one.name for one in results.figures]}
        kinds["tables"] = [table.name for table in results.tables]
        for table in results.tables:
            kinds[f"rows of the table {table.name!r}"] = [row.name for row in table.rows]
    else:
        kinds["boards"] = [board.name for board in results.boards]
    for kind, names in kinds.items():
        for name, count in Counter(names).items():
            if count > 1:
                raise RunFolderError(f"{study.folder}: {count} {kind} have the name {name!r}")


def figures(results: PaperResults | Leaderboard) -> list[Figure]:
    if isinstance(results, PaperResults):
        return list(results.figures)
    return [board.plot for board in results.boards if board.plot]


def check_figure(folder: Path, figure: Figure) -> None:
    """Raises `RunFolderError` unless the figure is a PNG file in the study's folder."""
    file = folder / figure.file
    if not file.resolve().is_relative_to(folder.resolve()):
        raise RunFolderError(f"{folder}: figure {figure.name!r}: {figure.file!r} lies outside of the study's folder")
    if not file.is_file():
        raise RunFolderError(f"{folder}: figure {figure.name!r}: {figure.file} is missing")
    with file.open("rb") as content:
        if content.read(len(PNG)) != PNG:
            raise RunFolderError(f"{folder}: figure {figure.name!r}: {figure.file} is no PNG picture")
