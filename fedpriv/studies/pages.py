"""A study's results for people: a paper's page, the boards' pages, and tables as CSV. The prose is in ``pages/``."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from fedpriv.common.files import write_atomic
from fedpriv.common.printing import cell as csv_cell
from fedpriv.privacy.events import OF_SUMS
from fedpriv.report.words import both_adjacencies, figure, plus_minus, seconds, threat_sentence
from fedpriv.studies import results as stored
from fedpriv.studies.results import Board, Cell, Claim, Entry, Estimate, Leaderboard, PaperResults, Table
from fedpriv.studies.statistics import outcome
from fedpriv.studies.verdicts import shown


@cache
def _templates() -> Environment:
    def text(name: str) -> str:
        return (files("fedpriv.studies") / "pages" / f"{name}.md").read_text(encoding="utf-8")

    found = Environment(
        loader=FunctionLoader(text), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    found.filters |= {
        "figure": figure,
        "seconds": seconds,
        "median": median,
        "in_percent": in_percent,
        "gap": lambda gap: plus_minus(gap.mean or 0.0, gap.half_width),
        "idea_row": lambda row: (row[0], *(str(row[1][one]) for one in OUTCOMES)),
        "is_measured": is_measured,
        "distinct": distinct,
    }
    found.globals |= {"table": markdown_table, "counted_by_place": counted_by_place, "counted": counted}
    found.globals |= {"commits": stored.commits_in_words, "ideas_counted": ideas_counted}
    return found


def rendered(name: str, **facts: Any) -> str:
    """A page in Markdown; blank lines that a template leaves are one."""
    text = _templates().get_template(name).render(facts)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Bars and line ends of the cells are escaped."""
    escaped = ([str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in (header, *lines))
    first, *rest = ("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in escaped)
    return "\n".join([first, "|" + "---|" * len(header), *rest])


def csv_text(header: Sequence[str], lines: Iterable[Sequence[Any]], end: str = "\n") -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator=end)
    writer.writerow(header)
    writer.writerows(map(csv_cell, line) for line in lines)
    return text.getvalue()


def in_percent(accuracy: Estimate) -> str:
    return "–" if accuracy.mean is None else f"{plus_minus(accuracy.mean, accuracy.half_width)} %"


# --- a paper -----------------------------------------------------------------------------------------------

#: Where a claim was tested -> the heading of its table.
PLACES: Mapping[str, str] = {
    "own": "In the paper's own setting, or without one",
    "another": "In another setting",
    "not": "Not tested here",
}
#: A verdict of one claim and of several.
SEVERAL = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "not decided": ("is not decided", "are not decided"),
    "cannot be tested here": ("cannot be tested here", "cannot be tested here"),
}


def counted(claims: Sequence[Claim]) -> str:
    """How often each verdict was given: "2 hold, 1 is not decided"."""
    count = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{count[one]} {words[count[one] > 1]}" for one, words in SEVERAL.items() if count[one])  # type: ignore[index]


def counted_by_place(claims: Sequence[Claim]) -> list[str]:
    """A line for each setting, with its verdicts."""
    parts = {name: [claim for claim in claims if claim.place == name] for name in PLACES}
    said = [f"{PLACES[name]}: {len(some)}, {counted(some)}." for name, some in parts.items() if some and name != "not"]
    return said + ([f"Cannot be tested here: {len(parts['not'])}."] if parts["not"] else [])


def paper_page(it: PaperResults) -> str:
    marks = {setting: "" for claim in it.listed if (setting := claim.setting)}
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    moved = [one for one in it.listed if one.before not in (None, "new", one.verdict)]
    return rendered(
        "paper",
        it=it,
        origin=it.provenance.model_copy(
            update={"versions": {n: v for n, v in it.provenance.versions.items() if n != stored.DIGEST}}
        ),
        places=PLACES,
        marks={setting: str(number).translate(raised) for number, setting in enumerate(marks, 1)},
        moved=[(one.claim, one.before, one.verdict, one.rule or "the protocol's margins") for one in moved],
        new=[one for one in it.listed if one.before == "new"],
        beyond=[_beyond_row(one) for one in it.claims if one.beyond],
        claim_rows=_claim_rows,
        is_measured=is_measured,
        how=_how,
        cell_rows=_cell_rows,
        distinct=distinct,
    )


def _beyond_row(one: Claim) -> tuple[str, ...]:
    setting = f" Not the paper's setting: {one.setting}." if one.setting else ""
    return one.claim, one.beyond + (f" (before: {one.before})" if one.before else ""), one.words + setting


def _claim_rows(claims: Sequence[Claim], place: str, marks: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for claim in claims:
        if claim.place == place:
            quotes = " … ".join(f"“{quote}”" for quote in claim.quote)
            lines = f", line {', '.join(map(str, dict.fromkeys(claim.line)))}" if claim.line else ""
            where = f"{claim.source}{lines}"
            mark = f" {marks[claim.setting]}" if claim.setting else ""
            yield claim.claim, f"{quotes} ({where})" if quotes else where, f"**{claim.verdict}**", claim.words + mark


def is_measured(table: Table) -> bool:
    return any(cell.measured is not None for _, _, cell in table.cells)


def distinct(table: Table, what: str) -> list[str]:
    """Reasons of its cells, each once."""
    return list(dict.fromkeys(why for _, _, cell in table.cells if (why := getattr(cell, what))))


def _how(table: Table) -> str:
    """What the figures are."""
    counts = {cell.measured.n for _, _, cell in table.cells if cell.measured}
    reported = any(cell.reported is not None for _, _, cell in table.cells)
    if table.kind in ("plan", "computed"):
        words = "Computed"
    elif table.kind == "audit":
        words = "What was audited is a lower bound from one audit; the rest is computed"
    elif max(counts) == 1:
        words = "In %, one seed" if table.unit == "%" else "One seed"
    else:
        seeds = f"{max(counts)} seeds" + ("" if len(counts) == 1 else " (n: where there are fewer)")
        words = f"{'In %, mean' if table.unit == '%' else 'Mean'} ± half width of the 95 % interval over {seeds}"
    return words + ("; in brackets what the paper reports" if reported else "")


def _cell_rows(table: Table) -> list[list[str]]:
    most = max((cell.measured.n for _, _, cell in table.cells if cell.measured), default=1)
    return [[row.label, *(_value(cell, table.unit, most) for cell in row.cells)] for row in table.rows]


def _value(cell: Cell, unit: str, seeds: int) -> str:
    """seeds: of the other cells; one that has fewer says how many."""
    found = cell.measured
    text = "–" if found is None else shown(found, unit, seeds=False).removesuffix(" %")
    text += f" (n = {found.n})" if found is not None and 1 < found.n < seeds else ""
    text += " †" if cell.superseded else ""
    return text + (f" [{figure(cell.reported)}]" if cell.reported is not None else "")


def write_paper(it: PaperResults, folder: Path) -> None:
    """README.md and tables/*.csv."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    header = ("row", "column", "mean", "std", "ci95_half_width", "seeds", "reported", "missing", "superseded")
    for table in it.tables:
        lines = []
        for row, column, cell in table.cells:
            found = cell.measured or Estimate(n=0, mean=None)
            numbers = (found.mean, found.std, found.half_width, found.n)
            lines.append((row, column, *numbers, cell.reported, cell.missing, cell.superseded))
        write_atomic(folder / "tables" / f"{table.name}.csv", csv_text(header, lines, "\r\n"))
    write_atomic(folder / "README.md", paper_page(it))


# --- boards ------------------------------------------------------------------------------------------------


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
#: Of a duel, in the order of the columns.
OUTCOMES = ("beats", "loses to", "not decided")


def by_question(boards: Sequence[Board]) -> list[tuple[Question, list[Board]]]:
    return [(one, [board for board in boards if one.answered_by(board)]) for one in QUESTIONS]


def nearest(board: Board, wanted: float = 8.0) -> float:
    """Its target with entries that is nearest to a wanted one, in ratio."""
    return min({one.target for one in board.entries}, key=lambda target: (abs(math.log(target / wanted)), target))


def best(entries: Sequence[Entry]) -> Entry | None:
    """The most accurate, by name where equal."""
    return min(entries, key=lambda one: (-(one.accuracy.mean or 0.0), one.method), default=None)


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


def board_pages(it: Leaderboard) -> dict[str, str]:
    """File -> its text."""
    questions = by_question(it.boards)
    found = {"README.md": rendered("boards", it=it, by_question=questions, nearest=nearest, anchor=_anchor)}
    for question, boards in questions:
        if boards:
            found[question.file] = rendered(
                "question",
                question=question,
                boards=boards,
                threat=_threat,
                metric=_metric,
                outcome=outcome,
                duel_rows=_duel_rows,
                best_words=_best_words,
                entry_header=_entry_header,
                entry_rows=_entry_rows,
                better_below=_better_below,
                seeds_of=_seeds_of,
                reasons=_reasons,
            )
    return found


def _threat(board: Board) -> str:
    """The threat model in words; of a sum of clients with its targets at both adjacencies."""
    words = threat_sentence(board.model_dump())
    if board.unit != "client" or board.observer not in OF_SUMS:
        return words
    return f"{words} {both_adjacencies(board.adjacency, board.targets, board.delta)}"


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _metric(board: Board) -> str:
    return board.metric.replace("_", " ")


def _duel_rows(board: Board) -> Iterator[tuple[str, ...]]:
    labels = {entry.method: entry.label for entry in board.entries}
    for duel in board.duels:
        points = plus_minus(duel.difference.mean or 0.0, duel.difference.half_width)
        sure = "" if duel.adjusted is None else f"{duel.adjusted:.2g}"
        one, other = (labels.get(method, method) for method in (duel.method, duel.against))
        yield figure(duel.target), one, other, points, sure, duel.outcome


def _best_words(entries: Sequence[Entry]) -> str:
    plain = next((entry for entry in entries if entry.idea == "plain"), entries[0])
    said = f"{entries[0].label} {in_percent(entries[0].accuracy)}"
    return said + (f"; plain: {plain.label} {in_percent(plain.accuracy)}" if plain is not entries[0] else "")


def _entry_header(board: Board, entries: Sequence[Entry]) -> list[str]:
    sites = ["worst site"] if any(entry.worst_site for entry in entries) else []
    priced = ["with its search"] if any(entry.tuning for entry in entries) else []
    return ["", "method", "paper", _metric(board), *sites, "verified epsilon", *priced]


def _entry_rows(board: Board, entries: Sequence[Entry]) -> Iterator[list[str]]:
    header = _entry_header(board, entries)
    for entry in entries:
        fewer = entry.tried is not None and board.trials is not None and entry.tried < board.trials
        failed = f" ({entry.tried} of {board.trials} trials: the others failed)" if fewer else ""
        site = in_percent(entry.worst_site) if entry.worst_site else "–"
        price = "–"
        if entry.tuning:
            random = entry.tuning.random
            price = f"{figure(entry.tuning.composed)}; {figure(random) if math.isfinite(random) else '–'}"
        yield [
            f"{entry.rank}{'=' if entry.tied and entry.rank > 1 else ''}",
            entry.label + (" \\*" if entry.own_plan else "") + failed,
            entry.paper,
            in_percent(entry.accuracy),
            *([site] if "worst site" in header else []),
            figure(entry.verified_epsilon) + (" †" if entry.superseded else ""),
            *([price] if "with its search" in header else []),
        ]


def _better_below(board: Board, entries: Sequence[Entry]) -> list[str]:
    there = {(one.method, one.target): one for one in board.entries}
    smaller = ((entry, there.get((entry.method, entry.better_at or 0.0))) for entry in entries)
    return [
        f"{entry.label} ({in_percent(one.accuracy)} at epsilon {figure(one.target)})" for entry, one in smaller if one
    ]


def _seeds_of(board: Board) -> str:
    numbers = sorted({entry.accuracy.n for entry in board.entries})
    return f"{' or '.join(map(str, numbers))} seed{'' if numbers == [1] else 's'}"


def _reasons(boards: Sequence[Board], variant: str) -> list[tuple[str, str, str]]:
    """What the boards do not rank, or what methods are as published: on each board, those of one reason together."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for board in boards:
        for one in board.left:
            if one.variant == variant:
                who = one.label + ("" if one.target is None else f" at epsilon {figure(one.target)}")
                found.setdefault((board.title, one.reason), {})[who] = None
    return [(title, "; ".join(who), why) for (title, why), who in found.items()]


COLUMNS = (
    *("board", "unit", "adjacency", "observer", "delta", "target", "rank", "tied", "method", "paper", "idea"),
    *("verified_epsilon", "accuracy", "accuracy_half_width", "seeds", "bytes_up", "bytes_down", "seconds", "chosen"),
    *("command", "superseded", "own_plan"),
)


def write_boards(it: Leaderboard, folder: Path) -> None:
    """A page for each question of who is trusted and what is protected, README.md, and leaderboard.csv."""
    for file, text in board_pages(it).items():
        write_atomic(folder / file, text)
    rows = []
    for board in it.boards:
        for one in board.entries:
            chosen = " ".join(f"{option}={value}" for option, value in one.chosen.items())
            own = {"board": board.name, "accuracy": one.accuracy.mean, "seconds": one.seconds.mean, "chosen": chosen}
            own |= {"accuracy_half_width": one.accuracy.half_width, "seeds": one.accuracy.n}
            found = dict(board) | dict(one) | own | {"superseded": one.superseded or ""}
            rows.append([found[name] for name in COLUMNS])
    write_atomic(folder / "leaderboard.csv", csv_text(COLUMNS, rows))
