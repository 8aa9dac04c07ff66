"""What a folder of studies found, in a few sentences and a table of totals, from results.json alone.

Every sentence names figures of the results that are there; one for which there are none is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedpriv.report.words import figure, many
from fedpriv.studies import ranking
from fedpriv.studies.leaderboard_page import by_question, in_percent, page_of
from fedpriv.studies.results import (
    RESULTS_FILE,
    Board,
    Cell,
    Claim,
    Entry,
    Leaderboard,
    PaperResults,
    Table,
    read_study,
)
from fedpriv.studies.study_words import counted

LEADERBOARD = "leaderboard"
#: Sentences on a board are of its target that is nearest to this one.
EPSILON = 8.0


@dataclass(frozen=True)
class Found:
    """papers: by the name of their folder; boards: in the order of their pages."""

    papers: Mapping[str, PaperResults]
    boards: Sequence[Board]


def read(root: Path) -> Found:
    """Raises `RunFolderError` for results that cannot be read."""
    names = sorted(file.parent.name for file in root.glob(f"*/{RESULTS_FILE}"))
    papers = {name: read_study(root / name, PaperResults) for name in names if name != LEADERBOARD}
    boards = read_study(root / LEADERBOARD, Leaderboard).boards if LEADERBOARD in names else ()
    return Found(papers, [board for _, here in by_question(boards) for board in here])


def words(found: Found) -> list[str]:
    """The lines of the head, without the picture."""
    return [*(f"- {sentence}" for sentence in sentences(found)), "", *totals(found)]


def sentences(found: Found) -> Iterator[str]:
    papers = found.papers.values()
    if papers:
        claims = [claim for paper in papers for claim in paper.claims]
        small = any(paper.scale == "small" for paper in papers)
        setting = " Most runs are in a smaller setting than the paper's (scale=small)." if small else ""
        first = f"Of {len(claims)} claims of {many(len(papers), 'paper')}, {counted(claims)}.{setting}"
        yield " ".join(filter(None, (first, _bases(claims), _accuracies(found.papers))))
        yield from filter(None, (_epsilons(found.papers),))
    yield from (_board(board) for board in found.boards if board.entries and not is_private(board))
    yield from filter(None, (_duels(found.boards), _tuning(found.boards)))


def totals(found: Found) -> Iterator[str]:
    """A table of the papers: verdicts on their claims, and duels of their ideas on the boards."""
    if not found.papers:
        return
    duels = [(board, duel) for board in found.boards for duel in board.duels]
    verdict_columns = "hold | do not hold | not decided | cannot be tested here"
    yield f"| paper | claims | {verdict_columns} | pairwise tests won | lost | open |"
    yield f"|---|{'---|' * 8}"
    for name, paper in found.papers.items():
        verdicts = Counter(claim.verdict for claim in paper.claims)
        own = Counter(d.outcome for board, d in duels if paper_of(board, d.method) == short(paper))
        cells = (
            f"[{short(paper)}]({name}/README.md)",
            len(paper.claims),
            *(verdicts[one] for one in ("holds", "does not hold", "not decided", "cannot be tested here")),
            *(own[one] for one in ("beats", "loses to", "not decided")),
        )
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    if found.boards:
        yield (
            "A pairwise test compares an idea of the paper with a plain method on one of the boards, at equal epsilon. "
            "All pairwise tests of a board are decided together at 5 % (paired t-tests over seeds, Holm)."
        )
        yield ""


def short(paper: PaperResults) -> str:
    """The name of its method, which its title begins with."""
    return paper.title.partition(":")[0]


# --- papers ------------------------------------------------------------------------------------------------

#: `Claim.basis` -> what such claims are on, in words.
BASES = {
    "runs": "accuracy or speed in runs",
    "computed": "prices, bounds, attacks and mean estimation",
    "printed": "a paper's words against its own tables",
    "": "what is not run here",
}


def _bases(claims: Sequence[Claim]) -> str:
    """What they are about, since not all rest on runs."""
    parts = {words: [claim for claim in claims if claim.basis == basis] for basis, words in BASES.items()}
    said = [f"{len(some)} on {words} ({counted(some)})" for words, some in parts.items() if some]
    return f"By subject: {'; '.join(said)}."


def _cells(paper: PaperResults) -> Iterator[tuple[Table, str, str, Cell]]:
    """(table, row, column, cell) of what was measured."""
    for table in paper.tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=False):
                if cell.measured is not None and cell.measured.mean is not None:
                    yield table, row.label, column, cell


def _epsilons(papers: Mapping[str, PaperResults]) -> str:
    """What has no finite epsilon, and which printed epsilon is furthest from what it should be."""
    without: list[str] = []
    gaps: list[tuple[float, str]] = []
    for paper in papers.values():
        cells = [one for one in _cells(paper) if one[0].computed and one[0].name.startswith("epsilon")]
        rows = dict.fromkeys(row for _, row, _, cell in cells if cell.measured and cell.measured.mean == math.inf)
        if rows:
            without.append(f"{short(paper)} ({'; '.join(f'“{row}”' for row in rows)})")
        for _, row, column, cell in cells:
            mean = cell.measured.mean if cell.measured else None
            if mean is not None and cell.reported and cell.reported < mean < math.inf:
                gap = f"{short(paper)} prints {figure(cell.reported)} for {column}, and “{row}” gives {figure(mean)}"
                gaps.append((mean / cell.reported, gap))
    said = []
    if without:
        listed = ", ".join(without)
        said.append(
            f"In {len(without)} of {len(papers)} papers something printed has no finite verified epsilon: {listed}"
        )
    if gaps:
        said.append(f"Of finite ones that stand beside a printed one, furthest from it: {max(gaps)[1]}")
    return _told(said)


def _accuracies(papers: Mapping[str, PaperResults]) -> str:
    """How far the printed accuracies are from those found."""
    short_of, reached = [], []
    for paper in papers.values():
        for table, row, _, cell in _cells(paper):
            found = cell.measured
            if table.unit == "%" and found and found.mean is not None and cell.reported is not None:
                if found.mean + (found.half_width or 0.0) < cell.reported:
                    short_of.append(cell.reported - found.mean)
                else:
                    reached.append(f"{row} ({short(paper)})")
    if not short_of and not reached:
        return ""
    said = f"Of {len(short_of) + len(reached)} printed accuracies that were measured, {len(reached)} are reached"
    if reached:
        said += f" within the interval ({', '.join(dict.fromkeys(reached))})"
    if short_of:
        said += f"; the others are missed by {median(short_of):.0f} points (median)"
    return f"{said}."


# --- boards ------------------------------------------------------------------------------------------------


def is_private(board: Board) -> bool:
    """Whether its epsilons hold the choice of options: then nobody says how many were tried."""
    return board.searched is not None and bool(board.entries) and all(one.tried is None for one in board.entries)


def nearest(board: Board, wanted: float = EPSILON) -> float:
    """Its target with entries that is nearest to a wanted one, in ratio."""
    return min({one.target for one in board.entries}, key=lambda target: (abs(math.log(target / wanted)), target))


def best(entries: Sequence[Entry]) -> Entry | None:
    """The most accurate, by name where equal."""
    return min(entries, key=lambda one: (-(one.accuracy.mean or 0.0), one.method), default=None)


def plain(entries: Sequence[Entry]) -> list[Entry]:
    return [one for one in entries if one.idea == "plain"]


def _at(board: Board) -> list[Entry]:
    return [one for one in board.entries if one.target == nearest(board)]


def _value(entry: Entry) -> str:
    return in_percent(entry.accuracy) + (" †" if entry.superseded else "")


def _board(board: Board) -> str:
    here = _at(board)
    first, other = best(here), best(plain(here))
    assert first is not None, "a board with entries"
    tied = [one.label for one in here if one.tied and one is not first]
    level = f" (tied with {'; '.join(tied)})" if tied else ""
    comma = "," if ", " in first.label else ""
    by = "" if board.metric == "accuracy" else f"{board.metric.replace('_', ' ').upper()} "
    title = f"[{board.title}]({LEADERBOARD}/{page_of(board)})"
    said = f"{title}, epsilon {figure(nearest(board))}: {first.label}{comma} is best with {by}{_value(first)}{level}"
    if other is first:
        said += ", a plain method"
    elif other is not None:
        said += f"; the best plain method, {other.label}, has {_value(other)}"
    same = best([one for one in here if not one.own_plan])
    if first.own_plan and same and same is not other:
        said += f"; with the board's plan of who takes part when, {same.label} has {_value(same)}"
    said += f"; without privacy {in_percent(board.reference)}"
    said += f", every client by itself {in_percent(board.alone)}" if board.alone else ""
    guessed = board.chance is not None and (first.accuracy.mean or 0.0) < ranking.GUESSING * board.chance
    return said + (f". Nothing learns: guessing gives {board.chance:.0f} %." if guessed else ".")


def paper_of(board: Board, method: str) -> str:
    return next((one.paper for one in board.entries if one.method == method), "")


def _duels(boards: Sequence[Board]) -> str:
    fought = [(board, duel) for board in boards for duel in board.duels]
    if not fought:
        return ""
    count = Counter(duel.outcome for _, duel in fought)
    won = [
        f"{_label(board, duel.method)} against {_label(board, duel.against)} at epsilon {figure(duel.target)}"
        f"{f' (against its runs at {figure(duel.against_at)} too)' if duel.against_at is not None else ''}"
        for board, duel in fought
        if duel.outcome == "beats"
    ]
    which = f": {'; '.join(won)}" if won else ""
    return (
        f"Ideas of the papers against plain methods at the same epsilon, {len(fought)} pairwise tests: "
        f"{count['loses to']} lost, {count['not decided']} open, {count['beats']} won{which}."
    )


def _label(board: Board, method: str) -> str:
    return next((one.label for one in board.entries if one.method == method), method)


def _tuning(boards: Sequence[Board]) -> str:
    """What it costs to choose options on the data that are protected."""
    said = []
    for board in filter(is_private, boards):
        free = [one for one in boards if _threat(one) == _threat(board) and not is_private(one)]
        here = best(plain(_at(board))) or best(_at(board))
        other = here and next(
            (e for one in free for e in one.entries if (e.method, e.target) == (here.method, here.target)), None
        )
        if here and other:
            said.append(
                f"Options chosen privately, within epsilon {figure(here.target)}: {here.label} has {_value(here)}, and "
                f"{_value(other)} where the choice is not counted"
            )
    priced = [one for board in boards if board.entries for one in _at(board) if one.tuning and one.target == EPSILON]
    if priced:
        ends = [min(one.tuning.random, one.tuning.composed) for one in priced if one.tuning]
        said.append(
            f"A search on the protected data makes epsilon {figure(EPSILON)} one of {figure(min(ends))} to "
            f"{figure(max(ends))} (all of its runs composed, or the best of a random number of them)"
        )
    if not said and boards:
        return "No epsilon of a board counts the choice of a method's options, which the pictures at hand decided."
    return _told(said)


def _threat(board: Board) -> tuple[str, str, str, float]:
    return board.unit, board.adjacency, board.observer, board.delta


def _told(said: Sequence[str]) -> str:
    return " ".join(f"{one}." for one in said)
