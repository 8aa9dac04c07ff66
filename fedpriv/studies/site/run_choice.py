"""Which runs have a page of their own, so that the site grows with what is shown and not with what was run.

Every run that is shown has a line in the list of its study (`listed_runs`). A page has the first run, by its place, of
what a table shows: of each entry of a board, of each cell of a paper. In this order, as far as `MOST_PAGES` and
`MOST_BYTES` go: entries ranked first to third; the first cell of each row; the other entries by rank; the other cells,
the second of each row first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from fedpriv.report.words import many
from fedpriv.studies.results import Leaderboard, PaperResults, RunRecord
from fedpriv.studies.site.addresses import Link, RunKey, entry_id, paper_path, row_id
from fedpriv.studies.site.inputs import LEADERBOARD, Results, Source
from fedpriv.studies.site.wording import paper_name, plain

#: Of the whole site: its pages, and bytes of all its files.
MOST_PAGES = 300
MOST_BYTES = 5_000_000
#: Entries up to this rank come before all else.
BEST_RANKS = 3
#: What the pages say of the rule.
RULE = (
    "A page of its own has the first run of each entry of a board and of each cell "
    f"of a paper’s tables, as far as the site’s bounds go ({MOST_PAGES} pages, {MOST_BYTES / 1e6:g} MB): entries "
    "ranked first to third, then the first cell of each row, then the other entries by rank, then the other cells."
)

#: Where a run is used: links from the site's root, by (study, run).
Uses = Mapping[RunKey, Sequence[Link]]


def runs_in_order(found: Results) -> list[RunKey]:
    """The runs that may have a page, those first that keep theirs longest."""
    told = [*(_of_entries(found.leaderboard) if found.leaderboard else [])]
    for paper in found.papers:
        told += _of_cells(paper)
    return list(dict.fromkeys(run for _, run in sorted(told, key=lambda one: one[0])))


def _of_entries(board: Source[Leaderboard]) -> Iterator[tuple[tuple[int, int], RunKey]]:
    for one in board.results.boards:
        for entry in one.entries:
            known = [name for name in entry.runs if name in board.runs]
            if known:
                yield (0 if entry.rank <= BEST_RANKS else 2, entry.rank), (LEADERBOARD, known[0])


def _of_cells(paper: Source[PaperResults]) -> Iterator[tuple[tuple[int, int], RunKey]]:
    for table in paper.results.tables:
        for row in table.rows:
            first = [known[0] for cell in row.cells if (known := [name for name in cell.runs if name in paper.runs])]
            for place, name in enumerate(first):
                yield (3 if place else 1, place), (paper.name, name)


def listed_runs(found: Results, study: Source[PaperResults] | Source[Leaderboard]) -> list[RunRecord]:
    """The runs with a line in their study's list: all of a paper's; of the boards those that an entry shows, since
    their searches are three times as many (`words_of_unlisted`).
    """
    if study.name != LEADERBOARD:
        return [*study.runs.values()]
    shown = {name for folder, name in uses_of_runs(found) if folder == LEADERBOARD}
    return [run for name, run in study.runs.items() if name in shown]


def words_of_unlisted(study: str, number: int) -> str:
    """What became of a study's other runs."""
    if not number:
        return ""
    return (
        f"{many(number, 'further run')} of this study, the searches’ trials and plans that no entry shows, stand in "
        f"{study}/runs.jsonl alone, a line for each."
    )


def words_of_choice(study: str, asked: Sequence[RunKey], pages: Set[RunKey]) -> str:
    """How many of a study's runs have a page, and how many were left out for room."""
    mine = [run for run in asked if run[0] == study]
    left = sum(run not in pages for run in mine)
    words = f"{many(len(mine) - left, 'run')} of this list {'has' if len(mine) - left == 1 else 'have'} a page"
    return f"{words}; {left:,} more had no room." if left else f"{words}; none was left out for room."


def uses_of_runs(found: Results) -> Uses:
    uses: dict[RunKey, list[Link]] = defaultdict(list)
    for paper in found.papers:
        page = paper_path(paper.name)
        for table in paper.results.tables:
            for row in table.rows:
                for column, cell in zip(table.columns, row.cells, strict=False):
                    for run in cell.runs:
                        words = f"{paper_name(paper.name)}, {table.title}: {row.label}, {column}"
                        uses[paper.name, run].append(Link(words, f"{page}#{row_id(table.name, row.name)}"))
    if found.leaderboard:
        for board in found.leaderboard.results.boards:
            for entry in board.entries:
                for run in entry.runs:
                    words = f"Leaderboard, {board.title}, epsilon {plain(entry.target)}: {entry.label}"
                    uses[LEADERBOARD, run].append(Link(words, f"leaderboard.html#{entry_id(board, entry)}"))
    return uses
