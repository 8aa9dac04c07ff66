"""What a reader of the leaderboard's folder sees: README.md in words with tables, leaderboard.csv, and the pictures."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

from fedpriv.common.files import write_atomic
from fedpriv.common.printing import cell as csv_cell
from fedpriv.common.versions import made_by
from fedpriv.report.words import figure, seconds, size, threat_sentence
from fedpriv.studies.results import Board, Entry, Estimate, Figure, Leaderboard, Left

FIGURES = "figures"


def with_pictures(results: Leaderboard, folder: Path) -> Leaderboard:
    """Draws every board that has entries."""
    from fedpriv.studies.leaderboard_plot import draw_board  # matplotlib takes a second

    boards = []
    for board in results.boards:
        drawn = draw_board(board, folder / FIGURES) if board.entries else None
        plot = drawn and Figure(name=board.name, file=f"{FIGURES}/{drawn.file}", alt=drawn.alt, caption=drawn.caption)
        boards.append(board.model_copy(update={"plot": plot}))
    return results.model_copy(update={"boards": tuple(boards)})


def write_pages(results: Leaderboard, folder: Path) -> None:
    write_atomic(folder / "README.md", "\n".join(page(results)) + "\n")
    write_atomic(folder / "leaderboard.csv", table(results))


def page(results: Leaderboard) -> Iterator[str]:
    made = results.provenance
    yield "# Accuracy at equal verified epsilon"
    yield ""
    yield (
        "Every method calibrated, over its whole run, to the same verified epsilon; one board for each threat model. "
        "Epsilons of different boards are not comparable."
    )
    yield ""
    yield results.note
    yield ""
    for board in results.boards:
        yield from _board(board)
    yield from _left(results.boards)
    yield "## Where this comes from"
    yield ""
    yield (
        f"Made by {', '.join(map(made_by, made.commits))}; {made.date}; {made.machine.processor}, "
        f"{made.machine.cores} cores; {seconds(made.core_seconds)} of runs in all. Every run is a line of runs.jsonl, "
        "every figure is in results.json and leaderboard.csv. Commands leave out where the pictures are "
        "(dataset.root=FOLDER)."
    )
    if made.others or made.remarks:
        yield ""
        yield from (f"- {words}" for words in (*made.others, *made.remarks))


def _board(board: Board) -> Iterator[str]:
    threat = {"unit": board.unit, "adjacency": board.adjacency, "observer": board.observer, "delta": board.delta}
    yield f"## {board.title}"
    yield ""
    yield f"{threat_sentence(threat)} {board.setting}"
    yield ""
    if board.measure == "personalised":
        yield "Accuracy is the mean, over clients, of a client's own model on its own test pictures."
        yield ""
    guessing = "" if board.chance is None else f"; guessing: {board.chance:.1f} %"
    alone = "" if board.alone is None else f" Every client by itself, which costs nothing: {in_percent(board.alone)}."
    yield f"Without privacy: {in_percent(board.reference)}{guessing}.{alone}"
    yield ""
    yield from (f"- {words}" for words in board.verdicts)
    yield ""
    if any(duel.adjusted is not None for duel in board.duels):
        yield (
            f"The {len(board.duels)} pairwise tests of this board compare every paper's idea with every plain method "
            "that learns, at every target. They are one family: differences are decided at 5 % for all of them "
            "together (paired t-tests, Holm). Runs at a smaller epsilon keep a larger one too: whoever is behind has "
            "these as well, p is the largest, and its best are named."
        )
        yield ""
    for target in board.targets:
        entries = sorted((e for e in board.entries if e.target == target), key=lambda entry: entry.rank)
        if not entries:
            yield f"Epsilon {figure(target)}: nothing is ranked."
            yield ""
            continue
        yield f"### Epsilon {figure(target)}"
        yield ""
        priced = any(entry.tuning for entry in entries)
        yield f"| | method | paper | accuracy | verified epsilon |{TUNED if priced else ''} up | time | chosen |"
        yield f"|---|---|---|---|---|{'---|' if priced else ''}---|---|---|"
        yield from (_row(entry, board.trials, priced) for entry in entries)
        yield ""
        if better := list(_better_below(board, entries)):
            yield f"More accurate at a smaller epsilon, so the search at this one chose badly: {'; '.join(better)}."
            yield ""
        for entry in entries:
            if entry.superseded:
                yield f"†: {entry.label}, to be made anew: {entry.superseded}"
                yield ""
    if any(entry.own_plan for entry in board.entries):
        yield "\\*: with a plan of its own: who takes part when is not as in the other rows."
        yield ""
    if any(entry.tied for entry in board.entries):
        yield (
            "=: tied with the first, the 95 % interval of their paired difference holds 0. ±: half width of a method's "
            f"own 95 % interval, over {_seeds(board.entries)}. Up: all uploads of a run."
        )
        yield ""
    if board.plot:
        yield f"![{board.plot.alt}]({board.plot.file})"
        yield ""
    if any(entry.tuning for entry in board.entries):
        yield (
            "With its search: what it would have cost to choose on the training pictures themselves. First all runs of "
            "the search and the last one, composed; then the best of a random number of runs, with the same mean "
            "(Papernot and Steinke, ICLR 2022); –: their theorem gives no bound here, which says nothing of the price."
        )
        yield ""
    if ends := [entry for entry in board.entries if entry.at_edge]:
        yield "Best values that still stand at an edge of what was tried, so that more may be found beyond:"
        yield ""
        yield from (f"- {one.label} at epsilon {figure(one.target)}: {', '.join(one.at_edge)}." for one in ends)
        yield ""
    yield "Tried for each method, all combinations:" if board.searched is None else f"{board.searched} Ranges:"
    yield ""
    yield from (f"- {name}: `{words}`" for name, words in board.search.items())
    yield ""


TUNED = " with its search |"


def _row(entry: Entry, trials: int | None, priced: bool = False) -> str:
    mark = "=" if entry.tied and entry.rank > 1 else ""
    chosen = ", ".join(f"{option.rpartition('.')[2]} {value}" for option, value in entry.chosen.items())
    if entry.tried is not None and trials is not None and entry.tried < trials:
        chosen += f" (of {entry.tried} of {trials} trials: the others failed)"
    cells = (
        f"{entry.rank}{mark}",
        entry.label + (" \\*" if entry.own_plan else ""),
        entry.paper,
        in_percent(entry.accuracy),
        figure(entry.verified_epsilon) + (" †" if entry.superseded else ""),
        *([_tuned(entry)] if priced else []),
        size(entry.bytes_up),
        seconds(entry.seconds.mean),
        chosen,
    )
    return f"| {' | '.join(cells)} |"


def _tuned(entry: Entry) -> str:
    if entry.tuning is None:
        return "–"
    random = entry.tuning.random
    return f"{figure(entry.tuning.composed)}; {figure(random) if math.isfinite(random) else '–'}"


def _better_below(board: Board, entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        for one in board.entries:
            if (one.method, one.target) == (entry.method, entry.better_at):
                yield f"{entry.label} ({in_percent(one.accuracy)} at epsilon {figure(one.target)})"


def _seeds(entries: Sequence[Entry]) -> str:
    numbers = sorted({entry.accuracy.n for entry in entries})
    return f"{' or '.join(map(str, numbers))} seed{'' if numbers == [1] else 's'}"


def _left(boards: Sequence[Board]) -> Iterator[str]:
    """What the boards do not rank, and what the ranked methods are without calibration."""
    left = [(board, one) for board in boards for one in board.left]
    never = [(board, one) for board, one in left if one.variant != "published"]
    before = [(board, one) for board, one in left if one.variant == "published"]
    if never:
        yield "## What is not ranked"
        yield ""
        yield from _reasons(never, "why")
    if before:
        yield "## The same methods without calibration"
        yield ""
        yield (
            "With the options of their files in place of noise for a target, the methods of the five papers in their "
            "published variants. Others have no published price here: theirs is that of this project's defaults."
        )
        yield ""
        yield from _reasons(before, "verified epsilon, or why there is none")


def _reasons(left: Sequence[tuple[Board, Left]], what: str) -> Iterator[str]:
    """On each board, methods of one reason together."""
    found: dict[tuple[str, str], list[str]] = {}
    for board, one in left:
        found.setdefault((board.title, one.reason), []).append(_who(one))
    yield f"| board | methods | {what} |"
    yield "|---|---|---|"
    for (title, reason), who in found.items():
        yield f"| {' | '.join(_cell(text) for text in (title, '; '.join(dict.fromkeys(who)), reason))} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _who(left: Left) -> str:
    return left.label + ("" if left.target is None else f" at epsilon {figure(left.target)}")


def in_percent(accuracy: Estimate) -> str:
    if accuracy.mean is None:
        return "–"
    spread = "" if accuracy.half_width is None else f" ± {accuracy.half_width:.1f}"
    return f"{accuracy.mean:.1f}{spread} %"


COLUMNS = (
    *("board", "unit", "adjacency", "observer", "delta", "target", "rank", "tied", "method", "paper", "idea"),
    *("verified_epsilon", "accuracy", "accuracy_half_width", "seeds", "bytes_up", "bytes_down", "seconds", "chosen"),
    "command",
    "superseded",
    "own_plan",
)


def table(results: Leaderboard) -> str:
    """leaderboard.csv: one line for each entry."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for board in results.boards:
        for entry in board.entries:
            chosen = " ".join(f"{option}={value}" for option, value in entry.chosen.items())
            threat = (board.unit, board.adjacency, board.observer, board.delta)
            who = (entry.rank, entry.tied, entry.method, entry.paper, entry.idea, entry.verified_epsilon)
            accuracy = (entry.accuracy.mean, entry.accuracy.half_width, entry.accuracy.n)
            cost = (entry.bytes_up, entry.bytes_down, entry.seconds.mean)
            line = (
                board.name,
                *threat,
                entry.target,
                *who,
                *accuracy,
                *cost,
                chosen,
                entry.command,
                entry.superseded or "",
                entry.own_plan,
            )
            writer.writerow(map(csv_cell, line))
    return text.getvalue()
