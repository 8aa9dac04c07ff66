"""What a folder of studies found, in a few sentences and a table of totals, from results.json alone.

Every sentence names figures of the results that are there; one for which there are none is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedpriv.report.words import figure, many
from fedpriv.studies.leaderboard_page import QUESTIONS, by_question, idea_of, ideas_counted, in_percent, page_of
from fedpriv.studies.results import (
    RESULTS_FILE,
    Board,
    Cell,
    Claim,
    Entry,
    Estimate,
    Leaderboard,
    PaperResults,
    Table,
    Verdict,
    read_study,
)
from fedpriv.studies.study_words import place_of, settings_counted
from fedpriv.studies.verdicts import LEVEL

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
    return [*answers(found.boards), *(f"- {sentence}" for sentence in sentences(found)), "", *totals(found)]


#: Epsilons of the first table.
EPSILONS = (0.5, 2.0, 8.0)
#: In the name of a method that reads public features: with the stroke map, and without it.
FEATURES = ("strokes", "edges")


def answers(boards: Sequence[Board]) -> list[str]:
    """What is reached at which epsilon, a line for each board whose epsilon does not hold the choice of options."""
    shown = [board for board in boards if board.entries and not is_private(board)]
    if not shown:
        return []
    head = " | ".join(f"ε = {figure(epsilon)}" for epsilon in EPSILONS)
    lines = [
        "Best accuracy in % at equal verified epsilon of the whole run: with public features / on pixels alone.",
        "",
        f"| who is trusted, what is protected | {head} | no privacy | |",
        f"|---|{'---|' * (len(EPSILONS) + 2)}",
    ]
    who = {question.file: question.title for question in QUESTIONS}
    for board in shown:
        link = f"{who[page_of(board)]}: [{board.title}]({LEADERBOARD}/{page_of(board)})"
        by = "" if board.metric == "accuracy" else f" ({board.metric.replace('_', ' ').upper()})"
        cells = [_answer(board, epsilon) for epsilon in EPSILONS]
        command = f"[command]({LEADERBOARD}/README.md#commands)"
        free = " / ".join(_plain_value(one) for one in (board.on_features, board.reference) if one)
        lines.append(f"| {' | '.join([link + by, *cells, free, command])} |")
    return [*lines, ""]


def _answer(board: Board, epsilon: float) -> str:
    """features / pixels at this epsilon, or at the nearest within a factor of two. What clients have alone, where
    that is more, also than at the next larger epsilon of a board that has none near.
    """
    near = [t for t in {e.target for e in board.entries} if max(t, epsilon) / min(t, epsilon) <= 2]
    if not near:
        later = sorted(t for t in {e.target for e in board.entries} if t > epsilon)
        top = best([one for one in board.entries if later and one.target == later[0]])
        worse = board.alone and top and (top.accuracy.mean or 0.0) < (board.alone.mean or 0.0)
        return f"stay alone: {_plain_value(board.alone)}" if worse and board.alone else "–"
    target = min(near, key=lambda one: abs(math.log(one / epsilon)))
    here = [one for one in board.entries if one.target == target]
    first = best(here)
    if board.alone and first and (first.accuracy.mean or 0.0) < (board.alone.mean or 0.0):
        return f"stay alone: {_plain_value(board.alone)} (best: {_plain_value(first.accuracy)})"
    parts = [best([e for e in here if _reads_features(e) is reads]) for reads in (True, False)]
    said = " / ".join(_plain_value(one.accuracy) for one in parts if one)
    return said if target == epsilon else f"at {figure(target)}: {said}"


def _reads_features(entry: Entry) -> bool:
    return any(name in entry.method for name in FEATURES)


def _plain_value(accuracy: Estimate) -> str:
    return in_percent(accuracy).removesuffix(" %")


def sentences(found: Found) -> Iterator[str]:
    if found.papers:
        claims = listed(found.papers.values())
        first = f"Of {len(claims)} claims of {many(len(found.papers), 'paper')} ([rules](protocol.md)):"
        yield f"{first} {' '.join(settings_counted(claims))}"
        yield from filter(None, (_accuracies(found.papers),))
    yield from filter(None, (_duels(found.boards), _tuning(found.boards)))


def listed(papers: Iterable[PaperResults]) -> list[Claim]:
    """All claims but findings beyond the papers."""
    return [claim for paper in papers for claim in paper.claims if not claim.beyond]


def totals(found: Found) -> Iterator[str]:
    """A table of the papers: verdicts on their claims, the two settings apart, and one of the duels of ideas."""
    if not found.papers:
        return
    verdicts: tuple[Verdict, ...] = ("holds", "does not hold", "not decided")
    own, another = "own setting, or none: hold / fail / open", "another setting: hold / fail / open"
    yield f"| paper | claims | {own} | {another} | not tested |"
    yield "|---|---|---|---|---|"
    for name, paper in found.papers.items():
        claims = listed([paper])
        count = Counter((place_of(claim), claim.verdict) for claim in claims)
        settings = (" / ".join(str(count[place, verdict]) for verdict in verdicts) for place in ("own", "another"))
        untested = sum(place_of(claim) == "not" for claim in claims)
        cells = (f"[{short(paper)}]({name}/README.md)", len(claims), *settings, untested)
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    ideas = ideas_counted(found.boards)
    if ideas:
        yield "| idea against plain methods, all boards | won | lost | open |"
        yield "|---|---|---|---|"
        for idea, ended in ideas.items():
            yield f"| {idea} | {ended['beats']} | {ended['loses to']} | {ended['not decided']} |"
        yield ""


def short(paper: PaperResults) -> str:
    """The name of its method, which its title begins with."""
    return paper.title.partition(":")[0]


# --- papers ------------------------------------------------------------------------------------------------


def _cells(paper: PaperResults) -> Iterator[tuple[Table, str, str, Cell]]:
    """(table, row, column, cell) of what was measured."""
    for table in paper.tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=False):
                if cell.measured is not None and cell.measured.mean is not None:
                    yield table, row.label, column, cell


#: How a table's notes begin that say in what its runs are not as the paper's.
OTHER_SETTINGS = ("At both scales: ", "At scale=")


def _accuracies(papers: Mapping[str, PaperResults]) -> str:
    """How far the printed accuracies are from those found, by the protocol: reached at no more than a point below."""
    missed, reached, elsewhere = [], 0, 0
    for paper in papers.values():
        for table, _, _, cell in _cells(paper):
            found = cell.measured
            if table.unit == "%" and found and found.mean is not None and cell.reported is not None and found.n >= 3:
                elsewhere += any(note.startswith(OTHER_SETTINGS) for note in table.notes)
                if found.mean < cell.reported - LEVEL:
                    missed.append(cell.reported - found.mean)
                else:
                    reached += 1
    if not missed and not reached:
        return ""
    count = len(missed) + reached
    setting = (
        f" ({'all' if elsewhere == count else elsewhere} in another setting than the paper's)" if elsewhere else ""
    )
    said = f"Of {count} printed accuracies that were measured{setting}, {reached} are reached"
    return f"{said}; the others are missed by {median(missed):.0f} points (median)." if missed else f"{said}."


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


#: What is searched for every method: steps, and by how much an upload is bounded.
COMMON_OPTIONS = {
    "local.lr",
    "strategy.server.lr",
    "strategy.server.learning_rate",
    "strategy.client.clip_norm",
    "strategy.client.radius",
}


def _duels(boards: Sequence[Board]) -> str:
    count = Counter(duel.outcome for board in boards for duel in board.duels)
    if not count:
        return ""
    entries = [entry for board in boards for entry in board.entries if entry.idea == "paper"]
    searched = {idea_of(entry.label) for entry in entries if not entry.chosen.keys() <= COMMON_OPTIONS}
    default = ", ".join(sorted({idea_of(entry.label) for entry in entries} - searched))
    return (
        f"Ideas of the papers against plain methods at equal epsilon, {sum(count.values())} pairwise tests: "
        f"{count['beats']} won, {count['loses to']} lost, {count['not decided']} open (below, by idea)."
        f"{f' Options of the idea alone stood at their defaults: {default}.' if default else ''}"
    )


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
        ends = [one.tuning.composed for one in priced if one.tuning]
        said.append(
            f"The choice of options is not in epsilon: the searches that were carried out would make {figure(EPSILON)} "
            f"one of {figure(min(ends))} to {figure(max(ends))}"
        )
    if not said and boards:
        return "No epsilon of a board counts the choice of a method's options, which the pictures at hand decided."
    return _told(said)


def _threat(board: Board) -> tuple[str, str, str, float]:
    return board.unit, board.adjacency, board.observer, board.delta


def _told(said: Sequence[str]) -> str:
    return " ".join(f"{one}." for one in said)
