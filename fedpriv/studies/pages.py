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
from string import ascii_lowercase
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
        "distinct": distinct,
    }
    found.globals |= {"table": markdown_table, "counted": counted, "in_numbers": in_numbers, "how": _how}
    found.globals |= {"short_rows": _short_rows, "untested_rows": _untested_rows}
    found.globals |= {"claim_rows": _claim_rows, "notes_of": _notes_of, "cell_rows": _cell_rows}
    found.globals |= {"commits": stored.commits_in_words, "ideas_counted": ideas_counted, "threat": _threat}
    found.globals |= {"metric": metric_name, "outcome": outcome, "board_rows": _board_rows, "remarks": _remarks}
    found.globals |= {"searches": _searches, "seeds_of": _seeds_of, "as_published": _as_published}
    found.globals |= {"nearest": nearest, "anchor": _anchor}
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

#: Kind of a claim, and where it was tested -> the heading of its table. "": not tested.
SECTIONS: Mapping[tuple[str, str], str] = {
    ("training", "own"): "Training, in the paper's own setting",
    ("training", "another"): "Training, in another setting",
    ("mathematics", "own"): "Mathematics",
    ("mathematics", "another"): "Mathematics, in another setting",
    ("tables", "own"): "The paper's own tables",
    ("", "not"): "Not tested here",
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


def sections(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """Heading -> its claims, of which there are some. The two settings, and the kinds, are never added up."""
    found = {words: [one for one in claims if one.section == place] for place, words in SECTIONS.items()}
    return {words: some for words, some in found.items() if some}


def paper_pages(it: PaperResults) -> dict[str, str]:
    """File -> its text: README.md, which is read, and details.md, where a claim or a figure is looked up."""
    parts = dict.fromkeys(part for claim in it.claims for part in claim.setting.split("; ") if part)
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    marks = {part: str(number).translate(raised) for number, part in enumerate(parts, 1)}
    moved = [one for one in it.listed if one.before not in (None, "new", one.verdict)]
    measured = [one for one in it.tables if any(cell.measured for _, _, cell in one.cells)]
    notes = Counter(note for one in measured for note in (*one.notes, *distinct(one, "missing")))
    shared, not_run = [note for note, times in notes.items() if times > 1], dict[str, list[str]]()
    for one in it.tables:
        if one not in measured:
            not_run.setdefault("; ".join(distinct(one, "missing")), []).append(f"{one.title} ({one.source})")
    facts = {
        "it": it,
        "origin": it.provenance.model_copy(
            update={"versions": {n: v for n, v in it.provenance.versions.items() if n != stored.DIGEST}}
        ),
        "marks": marks,
        "moved": [(short(one.claim), one.before, one.verdict, one.rule or "the protocol's margins") for one in moved],
        "new": [one for one in it.listed if one.before == "new"],
        "beyond": [_beyond_row(one, marks) for one in it.claims if one.beyond],
        "shared": dict(zip(shared, ascii_lowercase, strict=False)),
        "not_run": not_run,
        "sections": sections(it.listed),
        "measured": measured,
    }
    return {"README.md": rendered("paper", **facts), "details.md": rendered("details", **facts)}


def short(claim: str) -> str:
    """Without how it was read."""
    return claim.partition(" (read")[0]


def _marked(claim: Claim, marks: Mapping[str, str]) -> str:
    """What was measured, with the marks of what is not the paper's setting."""
    return " ".join((claim.words, *(marks[part] for part in claim.setting.split("; ") if part)))


def _beyond_row(one: Claim, marks: Mapping[str, str]) -> tuple[str, ...]:
    return one.claim, one.beyond + (f" (before: {one.before})" if one.before else ""), _marked(one, marks)


def _notes_of(table: Table, shared: Mapping[str, str]) -> str:
    """By their letters, of notes that other tables have too."""
    own = [shared[note] for note in (*table.notes, *distinct(table, "missing")) if note in shared]
    return f"Notes: {', '.join(own)}." if own else ""


def _claim_rows(claims: Sequence[Claim], marks: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for claim in claims:
        quotes = " … ".join(f"“{quote}”" for quote in claim.quote)
        lines = f", line {', '.join(map(str, dict.fromkeys(claim.line)))}" if claim.line else ""
        where = f"{claim.source}{lines}"
        verdict = f"**{claim.verdict}**" + (f", {claim.kind}" if claim.place == "not" else "")
        verdict += f". It needs {claim.needs}." if claim.needs else ""
        yield claim.claim, f"{quotes} ({where})" if quotes else where, verdict, _marked(claim, marks)


#: After what a claim's words say first.
REST = re.compile(r"(\. |; blocks of seeds|, by the sign test|\.$).*", re.DOTALL)


def _short_rows(claims: Sequence[Claim]) -> Iterator[tuple[str, ...]]:
    return ((short(claim.claim), f"**{claim.verdict}**", REST.sub("", claim.words)) for claim in claims)


def _untested_rows(claims: Sequence[Claim]) -> Iterator[tuple[str, ...]]:
    return ((short(claim.claim), claim.needs) for claim in claims)


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
    """The two pages and tables/*.csv."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    header = ("row", "column", "mean", "std", "ci95_half_width", "seeds", "reported", "missing", "superseded")
    for table in it.tables:
        lines = []
        for row, column, cell in table.cells:
            found = cell.measured or Estimate(n=0, mean=None)
            numbers = (found.mean, found.std, found.half_width, found.n)
            lines.append((row, column, *numbers, cell.reported, cell.missing, cell.superseded))
        write_atomic(folder / "tables" / f"{table.name}.csv", csv_text(header, lines, "\r\n"))
    for file, text in paper_pages(it).items():
        write_atomic(folder / file, text)


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
#: In the name of a method that reads public features: with the stroke map, and without it.
FEATURES = ("strokes", "edges")
#: Of a duel, in the order of the columns.
OUTCOMES = ("beats", "loses to", "not decided")


def by_question(boards: Sequence[Board]) -> list[tuple[Question, list[Board]]]:
    return [(one, [board for board in boards if one.answered_by(board)]) for one in QUESTIONS]


def nearest(board: Board, wanted: float = 8.0) -> float:
    """Its target with entries that is nearest to a wanted one, in ratio."""
    return min({one.target for one in board.entries}, key=lambda target: (abs(math.log(target / wanted)), target))


def on_features(entry: Entry) -> bool:
    return any(name in entry.method for name in FEATURES)


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


def in_numbers(count: Mapping[Any, int], names: Iterable[str] = OUTCOMES) -> str:
    """Such as won/lost/open."""
    return "/".join(str(count.get(one, 0)) for one in names)


def board_pages(it: Leaderboard) -> dict[str, str]:
    """File -> its text."""
    questions = by_question(it.boards)
    found = {"README.md": rendered("boards", it=it, by_question=questions)}
    for question, boards in questions:
        if boards:
            found[question.file] = rendered("question", question=question, boards=boards)
    return found


def _threat(board: Board) -> str:
    """The threat model in words; of a sum of clients with its targets at both adjacencies."""
    words = threat_sentence(board.model_dump())
    if board.unit != "client" or board.observer not in OF_SUMS:
        return words
    return f"{words} {both_adjacencies(board.adjacency, board.targets, board.delta)}"


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def metric_name(board: Board) -> str:
    """Of what a board ranks by; AUC and the like in capitals."""
    words = board.metric.replace("_", " ")
    return words.upper() if len(words) == 3 else words


def _board_rows(board: Board) -> Iterator[list[str]]:
    """Of each method its accuracies, the best at the largest target first."""
    targets = sorted({entry.target for entry in board.entries})
    cells = {(entry.label, entry.target): entry for entry in board.entries}
    for label in dict.fromkeys(one.label for target in targets[::-1] for one in board.at(target)):
        own = [cells.get((label, target)) for target in targets]
        known = [entry for entry in own if entry]
        marks = " (ours)" * (known[0].paper == "this project") + " \\*" * any(entry.own_plan for entry in known)
        yield [label + marks, *("–" if entry is None else _board_cell(entry, board) for entry in own)]


def _board_cell(entry: Entry, board: Board) -> str:
    mean = in_percent(entry.accuracy).removesuffix(" %")
    site = f", worst site {in_percent(entry.worst_site).removesuffix(' %')}" if entry.worst_site else ""
    fewer = entry.tried is not None and board.trials is not None and entry.tried < board.trials
    failed = f" ({entry.tried} of {board.trials} trials: the others failed)" if fewer else ""
    tied, anew = "=" * (entry.tied and entry.rank > 1), " †" * bool(entry.superseded)
    return (f"**{mean}**" if entry.rank == 1 else mean) + tied + site + failed + anew


#: How near a search came to guessing.
GUESSED = re.compile(r": the best of \d+ trials has [\d.]+ % on held-out examples")


def _remarks(board: Board) -> Iterator[str]:
    """What the rows alone do not say: less epsilon that did better, edges, what is to be made anew or is not ranked."""
    there = {(one.method, one.target): one for one in board.entries}
    smaller = [(one, there.get((one.method, one.better_at or 0.0))) for one in board.entries]
    better = [f"{one.label} at {figure(one.target)} ({figure(less.target)})" for one, less in smaller if less]
    edges = [f"{one.label} at {figure(one.target)}" for one in board.entries if one.at_edge]
    if better:
        yield f"More accurate at a smaller epsilon (in brackets), so the search chose badly: {'; '.join(better)}."
    if edges:
        yield f"Searches that ended at an edge of what they tried: {'; '.join(edges)}."
    for one in board.entries:
        if one.superseded:
            yield f"†: {one.label} at {figure(one.target)}, to be made anew: {one.superseded}"
    found: dict[str, list[str]] = {}
    for left in (left for left in board.left if left.variant == "repaired"):
        at = "" if left.target is None else f" at {figure(left.target)}"
        found.setdefault(GUESSED.sub(" in every trial", left.reason), []).append(left.label + at)
    for why, who in found.items():
        yield f"Not ranked: {'; '.join(who)}: {why}"


def _searches(board: Board) -> str:
    """What the choice of options would cost, composed, at each target."""
    prices: dict[float, list[float]] = {}
    for entry in board.entries:
        if entry.tuning:
            prices.setdefault(entry.target, []).append(entry.tuning.composed)
    ends = {target: dict.fromkeys(map(figure, (min(some), max(some)))) for target, some in prices.items()}
    return "; ".join(f"{figure(target)} becomes {' to '.join(end)}" for target, end in ends.items())


def _seeds_of(board: Board) -> str:
    numbers = sorted({entry.accuracy.n for entry in board.entries})
    return f"{' or '.join(map(str, numbers))} seed{'' if numbers == [1] else 's'}"


def _as_published(board: Board) -> str:
    """Epsilon, and the papers' ideas that have it as published, on features or not; others have no such price."""
    ideas, found = {entry.method: entry.idea for entry in board.entries}, dict[str, dict[str, None]]()
    for left in board.left:
        if left.variant == "published" and ideas.get(left.method, "paper") == "paper":
            price = left.reason if left.reason.startswith("epsilon ") else "no bound"
            found.setdefault(price, {})[re.sub(", features( of edges)?", "", left.label)] = None
    return ". ".join(f"{price[0].upper()}{price[1:]}: {'; '.join(who)}" for price, who in found.items())


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
