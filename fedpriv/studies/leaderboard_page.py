"""What a reader of the leaderboard's folder sees: a page for each question of who is trusted and what is protected,
README.md that leads to them, leaderboard.csv, and the pictures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.common.files import write_atomic
from fedpriv.common.versions import made_by
from fedpriv.report.words import figure, plus_minus, seconds, threat_sentence
from fedpriv.studies.results import Board, Entry, Estimate, Figure, Leaderboard, Left
from fedpriv.studies.study_words import csv_text, markdown_table

FIGURES = "figures"


@dataclass(frozen=True)
class Question:
    """Which boards are on a page: of a unit, or of clients against these observers."""

    file: str
    title: str
    asks: str
    unit: str = "client"
    observers: tuple[str, ...] = ()

    def answered_by(self, board: Board) -> bool:
        return board.unit == self.unit and (not self.observers or board.observer in self.observers)


#: In the order in which a reader comes to them.
QUESTIONS = (
    Question(
        "trusted_server.md",
        "A trusted server",
        "The server sees every update and adds the noise. What do its models show of a client's data?",
        observers=("trusted-server", "public"),
    ),
    Question(
        "secure_sum.md",
        "A secure sum",
        "The server sees sums over clients only. What do these show of a client's data?",
        observers=("secure-sum",),
    ),
    Question(
        "nobody_trusted.md",
        "Nobody is trusted",
        "The server sees every message, and each client adds noise of its own. What do its messages show of its data?",
        observers=("server", "server+members"),
    ),
    Question("one_example.md", "One example", "What do messages show of one picture or row?", unit="example"),
    Question("one_person.md", "One person", "What do messages show of a person with several rows?", unit="person"),
)
#: Of a question without a board.
NO_BOARD = "no board yet; where each client is one person, the pages on clients answer it"


def by_question(boards: Sequence[Board]) -> list[tuple[Question, list[Board]]]:
    return [(one, [board for board in boards if one.answered_by(board)]) for one in QUESTIONS]


def page_of(board: Board) -> str:
    return next(one.file for one in QUESTIONS if one.answered_by(board))


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
    for file, text in pages(results).items():
        write_atomic(folder / file, text)
    write_atomic(folder / "leaderboard.csv", table(results))


def pages(results: Leaderboard) -> dict[str, str]:
    """File -> its text."""
    found = {"README.md": _text(_index(results))}
    for question, boards in by_question(results.boards):
        if boards:
            found[question.file] = _text(_page(question, boards))
    return found


def _text(blocks: Iterator[str]) -> str:
    return "\n\n".join(blocks) + "\n"


def _index(results: Leaderboard) -> Iterator[str]:
    yield "# Accuracy at equal verified epsilon"
    yield (
        "Every method calibrated, over its whole run, to the same verified epsilon; one board for each threat model. "
        "Epsilons of different boards are not comparable."
    )
    rows = []
    for question, boards in by_question(results.boards):
        titles = "; ".join(f"[{board.title}]({question.file}#{_anchor(board.title)})" for board in boards)
        title = f"[{question.title}]({question.file})" if boards else question.title
        rows.append((title, question.asks, titles or NO_BOARD))
    yield markdown_table(("who is trusted, what is protected", "question", "boards"), rows)
    yield results.note
    yield from _commands(results.boards)
    yield "## Where this comes from"
    made = results.provenance
    yield (
        f"Made by {', '.join(map(made_by, made.commits))}; {made.date}; {made.machine.processor}, "
        f"{made.machine.cores} cores; {seconds(made.core_seconds)} of runs in all. Every run is a line of runs.jsonl, "
        "every figure is in results.json and leaderboard.csv. Commands leave out where the pictures are "
        "(dataset.root=FOLDER)."
    )
    if made.others or made.remarks:
        yield "\n".join(f"- {words}" for words in (*made.others, *made.remarks))


def _commands(boards: Sequence[Board]) -> Iterator[str]:
    yield "## Commands"
    yield (
        "Of the best of each board at the epsilon nearest to 8; of every other row: column `command` of "
        "[leaderboard.csv](leaderboard.csv). Add `dataset.root=FOLDER`, the folder with the pictures."
    )
    for board in boards:
        if board.entries:
            target = min({e.target for e in board.entries}, key=lambda one: abs(math.log(one / 8)))
            first = min((e for e in board.entries if e.target == target), key=lambda entry: entry.rank)
            yield f"{board.title}, epsilon {figure(target)}: {first.label}, {in_percent(first.accuracy)}"
            yield f"```bash\n{first.command}\n```"


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _page(question: Question, boards: Sequence[Board]) -> Iterator[str]:
    yield f"# {question.title}"
    yield f"{question.asks} Other questions: [leaderboard](README.md)."
    for board in boards:
        yield from _board(board)
    yield from _left(boards)


def _board(board: Board) -> Iterator[str]:
    threat = {"unit": board.unit, "adjacency": board.adjacency, "observer": board.observer, "delta": board.delta}
    yield f"## {board.title}"
    yield f"{threat_sentence(threat)} {board.setting}"
    if board.measure == "personalised":
        yield "Accuracy is the mean, over clients, of a client's own model on its own test examples."
    elif board.measure != "final":
        yield f"Ranked by {_name(board)}, in percent."
    guessing = "" if board.chance is None else f"; guessing: {board.chance:.1f} %"
    alone = "" if board.alone is None else f" Every client by itself, which costs nothing: {in_percent(board.alone)}."
    also = "" if board.on_features is None else f", on features {in_percent(board.on_features)}"
    yield f"Without privacy: {in_percent(board.reference)}{also}{guessing}.{alone}"
    yield from _duels(board)
    for target in board.targets:
        yield from _target(board, target)
    if any(entry.own_plan for entry in board.entries):
        yield "\\*: with a plan of its own: who takes part when is not as in the other rows."
    if any(entry.tied for entry in board.entries):
        yield (
            "=: tied with the first, the 95 % interval of their paired difference holds 0. ±: half width of a method's "
            f"own 95 % interval, over {_seeds(board.entries)}. Uploads, seconds, the options that were chosen and the "
            "command of every row: [leaderboard.csv](leaderboard.csv)."
        )
    if any(entry.worst_site for entry in board.entries):
        yield "Worst site: the leading metric of the task (of classes the accuracy) on its own test examples."
    if board.plot:
        yield f"![{board.plot.alt}]({board.plot.file})"
    if any(entry.tuning for entry in board.entries):
        yield (
            "With its search: what it would have cost to choose on the training examples themselves. First all runs of "
            "the search and the last one, composed; then the best of a random number of runs, with the same mean "
            "(Papernot and Steinke, ICLR 2022); –: their theorem gives no bound here, which says nothing of the price."
        )
    yield from _folded("How options were searched", _search(board))


def _folded(title: str, blocks: Iterable[str]) -> Iterator[str]:
    """Blocks that a reader opens."""
    yield f"<details markdown><summary>{title}</summary>"
    yield from blocks
    yield "</details>"


def _search(board: Board) -> Iterator[str]:
    yield f"{board.searched} Ranges:"
    yield "\n".join(f"- {name}: `{words}`" for name, words in board.search.items())
    if ends := [entry for entry in board.entries if entry.at_edge]:
        yield "Best values that still stand at an edge of what was tried, so that more may be found beyond:"
        yield "\n".join(f"- {one.label} at epsilon {figure(one.target)}: {', '.join(one.at_edge)}." for one in ends)


def idea_of(label: str) -> str:
    """What an entry is counted under: its name without its form."""
    return label.partition(",")[0]


def ideas_counted(boards: Sequence[Board]) -> dict[str, Counter[str]]:
    """Idea -> how its duels ended, by the entries' own names: a clip rule under Fed-LDP is none of its paper's idea."""
    found: dict[str, Counter[str]] = {}
    for board in boards:
        labels = {entry.method: entry.label for entry in board.entries}
        for duel in board.duels:
            found.setdefault(idea_of(labels.get(duel.method, duel.method)), Counter())[duel.outcome] += 1
    return dict(sorted(found.items()))


def _duels(board: Board) -> Iterator[str]:
    """How ideas did against plain methods: counted, and one by one where a reader opens it."""
    others = [words for words in board.verdicts if "by itself" in words or " nothing " in words or " no " in words]
    if others:
        yield "\n".join(f"- {GAP.sub('', words)}" for words in others)
    if not board.duels:
        return
    rows = [(idea, *(str(n[one]) for one in OUTCOMES)) for idea, n in ideas_counted([board]).items()]
    rules = "[rules](../protocol.md)"
    yield f"{len(board.duels)} pairwise tests of ideas against plain methods at equal epsilon ({rules}):"
    yield markdown_table(("idea", "won", "lost", "open"), rows)
    yield from _folded("Test by test", [_duel_table(board)])


#: A difference within a stored sentence: both sides stand above it with their own intervals.
GAP = re.compile(r" by [\d.]+ ± [\d.]+ points| \([\d.]+ ± [\d.]+ points\)")
#: Of a duel, in the order of the columns.
OUTCOMES = ("beats", "loses to", "not decided")


def _duel_table(board: Board) -> str:
    labels = {entry.method: entry.label for entry in board.entries}
    rows = []
    for duel in board.duels:
        gap = duel.difference
        points = plus_minus(gap.mean or 0.0, gap.half_width)
        sure = "" if duel.adjusted is None else f"{duel.adjusted:.2g}"
        one, other = (labels.get(method, method) for method in (duel.method, duel.against))
        rows.append((figure(duel.target), one, other, points, sure, duel.outcome))
    return markdown_table(("epsilon", "idea", "plain method", "points", "p, corrected", "outcome"), rows)


def _target(board: Board, target: float) -> Iterator[str]:
    entries = sorted((e for e in board.entries if e.target == target), key=lambda entry: entry.rank)
    if not entries:
        yield f"Epsilon {figure(target)}: nothing is ranked."
        return
    yield from _folded(f"Epsilon {figure(target)}: {_best_words(entries)}", _target_table(board, entries))


def _best_words(entries: Sequence[Entry]) -> str:
    first = entries[0]
    plain = next((entry for entry in entries if entry.idea == "plain"), None)
    said = f"{first.label} {in_percent(first.accuracy)}"
    return said + (f"; plain: {plain.label} {in_percent(plain.accuracy)}" if plain and plain is not first else "")


def _target_table(board: Board, entries: Sequence[Entry]) -> Iterator[str]:
    priced = ["with its search"] if any(entry.tuning for entry in entries) else []
    sites = ["worst site"] if any(entry.worst_site for entry in entries) else []
    head = ("", "method", "paper", _name(board), *sites, "verified epsilon", *priced)
    yield markdown_table(head, [_row(entry, board.trials, bool(priced), bool(sites)) for entry in entries])
    if better := list(_better_below(board, entries)):
        yield f"More accurate at a smaller epsilon, so the search at this one chose badly: {'; '.join(better)}."
    for entry in entries:
        if entry.superseded:
            yield f"†: {entry.label}, to be made anew: {entry.superseded}"


def _name(board: Board) -> str:
    return board.metric.replace("_", " ")


def _row(entry: Entry, trials: int | None, priced: bool = False, sites: bool = False) -> tuple[str, ...]:
    mark = "=" if entry.tied and entry.rank > 1 else ""
    fewer = entry.tried is not None and trials is not None and entry.tried < trials
    return (
        f"{entry.rank}{mark}",
        entry.label
        + (" \\*" if entry.own_plan else "")
        + (f" ({entry.tried} of {trials} trials: the others failed)" if fewer else ""),
        entry.paper,
        in_percent(entry.accuracy),
        *([in_percent(entry.worst_site) if entry.worst_site else "–"] if sites else []),
        figure(entry.verified_epsilon) + (" †" if entry.superseded else ""),
        *([_tuned(entry)] if priced else []),
    )


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
    if never := [(board, one) for board, one in left if one.variant != "published"]:
        yield "## What is not ranked"
        yield from _folded("Methods and reasons", [_reasons(never, "why")])
    if before := [(board, one) for board, one in left if one.variant == "published"]:
        yield "## The same methods without calibration"
        yield (
            "With the options of their files in place of noise for a target, the methods of the five papers in their "
            "published variants. Others have no published price here: theirs is that of this project's defaults."
        )
        yield from _folded("Verified epsilons", [_reasons(before, "verified epsilon, or why there is none")])


def _reasons(left: Sequence[tuple[Board, Left]], what: str) -> str:
    """On each board, methods of one reason together."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for board, one in left:
        who = one.label + ("" if one.target is None else f" at epsilon {figure(one.target)}")
        found.setdefault((board.title, one.reason), {})[who] = None
    return markdown_table(
        ("board", "methods", what), [(title, "; ".join(who), why) for (title, why), who in found.items()]
    )


def in_percent(accuracy: Estimate) -> str:
    if accuracy.mean is None:
        return "–"
    return f"{plus_minus(accuracy.mean, accuracy.half_width)} %"


COLUMNS = (
    *("board", "unit", "adjacency", "observer", "delta", "target", "rank", "tied", "method", "paper", "idea"),
    *("verified_epsilon", "accuracy", "accuracy_half_width", "seeds", "bytes_up", "bytes_down", "seconds", "chosen"),
    *("command", "superseded", "own_plan"),
)


def table(results: Leaderboard) -> str:
    """leaderboard.csv: one line for each entry."""
    rows = []
    for board in results.boards:
        for one in board.entries:
            chosen = " ".join(f"{option}={value}" for option, value in one.chosen.items())
            own = {"board": board.name, "accuracy": one.accuracy.mean, "seconds": one.seconds.mean, "chosen": chosen}
            own |= {"accuracy_half_width": one.accuracy.half_width, "seeds": one.accuracy.n}
            found = dict(board) | dict(one) | own | {"superseded": one.superseded or ""}
            rows.append([found[name] for name in COLUMNS])
    return csv_text(COLUMNS, rows)
