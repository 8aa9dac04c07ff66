"""Tables for the terminal: with rich in a terminal, as aligned plain lines elsewhere."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpriv.common.command_line import shown
from fedpriv.common.printing import plain, say
from fedpriv.common.verbosity import is_quiet
from fedpriv.report.epsilon_figures import beside_verified, opacus_figure, three_figures
from fedpriv.report.reading import read_run
from fedpriv.report.run_summary import Risks, Summary, number
from fedpriv.report.words import in_metric, percent, seconds, threat_short, worth

#: Of the table of a run's answers; the lines of one question that it shows, where answers.csv has all.
HEADER = ("question", "of", "answer", "95 % interval")
MOST_LINES = 20
NOTE = (
    "The interval is for what the noise did to the answer about the rows that were asked, each by itself; it says "
    "nothing of other rows. That of a quantile holds its bin's edges too, that of a regression, of survival or of a "
    "model's score also holds what other rows of the same kind would give."
)


def print_end(summary: dict[str, Any], folder: Path, shown: Callable[[Path], str] = shown) -> None:
    """Prints the end of a run; with ``-q`` its last line alone. shown: how a path is written."""
    report = folder / "report.html"
    for warning in filter(None, map(summary.get, ("diverged", "miscalibrated"))):
        say(f"fedpriv: {warning}", file=sys.stderr, flush=True)
    if is_quiet():
        say(f"report: {shown(report)}" if report.exists() else f"folder: {shown(folder)}", flush=True)
        return
    public = read_run(folder, private=False).summary
    if public and public["timing"]["total_s"] is None:  # times tell who took part in secret cohorts
        summary = dict(public)
    console = Console()
    if console.is_terminal:
        if rows := answer_rows(Summary.model_validate(summary)):
            console.print(rich_table("answers", HEADER, rows, NOTE))
        console.print(final_table(summary))
    else:
        say("\n".join(final_lines(summary)))
    if summary.get("note"):
        say(f"note: {summary['note']}")
    say(f"folder: {shown(folder)}\nreport: {shown(report) if report.exists() else 'none'}", flush=True)


def final_table(summary: Mapping[str, Any]) -> Table:
    """The table printed at the end of a run: accuracy, the three epsilons with their meaning, the time."""
    result = Summary.model_validate(summary)
    return rich_table(_title(result), ("", "", ""), _final_rows(result), _caption(result))


def final_lines(summary: Mapping[str, Any]) -> list[str]:
    """The same as plain text, for output that is not a terminal."""
    result = Summary.model_validate(summary)
    rows = answer_rows(result)
    told = [*plain_table(HEADER, rows), NOTE, ""] if rows else []
    return [_title(result), *told, *plain_table((), _final_rows(result)), _caption(result)]


def rich_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
    """A table of plain strings: square brackets in them are not markup."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_header=any(header))
    table.title, table.title_justify = Text(plain(title), "bold"), "left"
    table.caption, table.caption_justify = Text(plain(caption)), "left"
    for name in header:
        table.add_column(Text(plain(name)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned by spaces, not truncated; an empty header is left out."""
    lines = [header, *rows] if any(header) else list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _title(result: Summary) -> str:
    on = f"{result.strategy or '?'} on {result.dataset or '?'}"
    rounds = "?" if result.rounds is None else result.rounds
    return f"{on}, {rounds} rounds" if result.answers is None else f"{on}, {replies(result)}"


def _final_rows(result: Summary) -> list[tuple[str, str, str]]:
    privacy, further, accuracy = result.privacy, result.further_metrics, result.accuracy.get("final")
    mean, worst = result.accuracy.get("personalised"), result.accuracy.get("personalised_worst_decile")
    model = "global part with untrained personal layers" if result.untrained_layers else "global model"
    rows = [(name, value, f"{model}, test set") for name, value in further.items()]
    if accuracy is not None or not (further or result.answers is not None):
        rows.insert(0, ("accuracy", percent(accuracy), f"{model}, test set"))
    if result.worst_site is not None:
        leading, (site, value) = result.leading[0], result.worst_site
        rows.append(("worst site", in_metric(leading, value), f"{leading} of {site}"))
    if mean is not None:
        words = f"clients' own models and tests, mean; worst decile {percent(worst)}"
        rows.append(("personalised", percent(mean), words))
    claimed, verified, audited = three_figures(privacy)
    for one in (claimed, verified, *beside_verified(privacy), audited, *opacus_figure(privacy)):
        rows.append((f"{one.name} epsilon", one.value, f"{one.scope}; {one.detail}" if one.scope else one.detail))
    per_round = f"{seconds(result.timing.get('median_round_s'))} per round (median)"
    return [*rows, ("time", seconds(result.timing.get("total_s")), per_round)]


def _caption(result: Summary) -> str:
    privacy = result.privacy
    further = ", ".join(str(other.observer) for other in privacy.others)
    more = f" Further threat models, not comparable with these, in the report: {further}." if further else ""
    return "\n".join(filter(None, [f"Epsilons: {threat_short(privacy)}.{more}", worth(privacy)]))


# --- risks -----------------------------------------------------------------------------------------------


def confusion_rows(risks: Risks) -> list[list[str]]:
    """[class, below the threshold, at or above it, share that is right] of two classes; empty where there is none."""
    if not risks.known:
        return []
    names = ("without the outcome", "with the outcome")
    return [
        [name, *(f"{count:,.0f}" for count in row), percent(row[place] / sum(row) if sum(row) else None)]
        for place, (name, row) in enumerate(zip(names, risks.confusion, strict=True))
    ]


def group_rows(result: Summary) -> list[list[str]]:
    """A header [group, test examples, metrics] and a row for each group of `evaluate.by`; empty where there is none."""
    groups = result.metrics.groups
    names = [name for name in dict.fromkeys(key for one in groups for key in one) if name not in ("group", "examples")]
    names.sort(key=lambda name: name != result.leading[0])
    rows = [[str(one.get("group")), *(_of_group(one.get(name)) for name in ("examples", *names))] for one in groups]
    return [["group", "test examples", *(name.replace("_", " ") for name in names)], *rows] if groups else []


def _of_group(value: Any) -> str:
    known = number(value)
    return "–" if known is None else f"{known:.4g}"


# --- answers of strategy=ask -----------------------------------------------------------------------------


#: Kinds whose numbers are whole.
WHOLE = ("count", "histogram", "table", "top")
#: Between the two categories in the name of a cell, by kind.
CELLS = {"table": " and ", "score": " predicted "}


def digits(value: float, low: float, high: float, whole: bool = False) -> list[str]:
    """A value and the ends of its interval with as many digits as half of the interval's width has in two figures."""
    half = (high - low) / 2
    if not (math.isfinite(half) and half > 0 and math.isfinite(value)):
        return [_short(one) for one in (value, low, high)]
    places = 1 - math.floor(math.log10(half))
    places = min(places, 0) if whole and half >= 1 else places
    return [f"{round(one, places) + 0.0:,.{max(places, 0)}f}" for one in (value, low, high)]  # no -0


def is_whole(kind: str, name: str) -> bool:
    """Whether the number of this name counts rows."""
    return kind in WHOLE or (kind == "score" and name == "rows")


def cross_tables(result: Summary) -> list[tuple[str, list[str], list[list[str]]]]:
    """(question, header, rows) of each question of combinations: the last column's categories beside each other, and in
    each cell the answer with its interval.
    """
    tables = []
    for one in result.answers or ():
        kind = one.question.partition(":")[0]
        lines = zip(one.of, one.values, one.low, one.high, strict=True)
        cells = {name: line for name, *line in lines if CELLS.get(kind, "\0") in name}
        pairs = [tuple(name.rsplit(CELLS[kind], 1)) for name in cells]
        sides = [list(dict.fromkeys(side)) for side in zip(*pairs, strict=True)] if pairs else [[], []]
        if len(pairs) < 2 or pairs != [*itertools.product(*sides)] or len(sides[1]) > MOST_LINES:
            continue
        shown = iter(cells.values())
        rows = [[row, *(_cell(kind, *next(shown)) for _ in sides[1])] for row in sides[0]]
        side = " and ".join(one.question.split(":")[1:-1]) if kind == "table" else "class"
        tables.append((one.question, [side, *sides[1]], rows[:200]))
    return tables


def _cell(kind: str, value: float, low: float, high: float) -> str:
    shown, first, last = digits(value, low, high, kind in WHOLE)
    return f"{shown} ({first} to {last})"


def answer_rows(result: Summary, apart: Collection[str] = ()) -> list[list[str]]:
    """[question, of, answer, interval] of each number, and of remarks two empty cells; of `top` the most frequent ones,
    most frequent first. apart: questions of which a table by itself has the cells.
    """
    rows = []
    for one in result.answers or ():
        lines = list(zip(one.of, one.values, one.low, one.high, strict=True))
        if one.question in apart:
            lines = [line for line in lines if CELLS[one.question.partition(":")[0]] not in line[0]]
        errors = zip(one.errors, one.p_values, strict=False)
        further = [f"; standard error {error:.2g}, p {p_value(p)}" for error, p in errors] or [""] * len(lines)
        kind, *given = one.question.split(":")
        most = MOST_LINES
        if kind == "score":
            most = len(lines)
        if kind == "survival" and len(lines) > most:  # evenly spaced, the last time among them
            lines = lines[:: -math.ceil(len(lines) / most)][::-1]
        if kind == "top":
            lines.sort(key=lambda line: -line[1])
            most = int(given[1])
        for (name, value, low, high), more in zip(lines[:most], further, strict=False):
            shown, first, last = digits(value, low, high, is_whole(kind, name))
            rows.append([one.question, name, shown, f"{first} to {last}{more}"])
        if (left := len(lines) - most) > 0 and kind != "top":
            rows.append([one.question, f"{left:,} more in answers.csv", "", ""])
        rows += [[one.question, remark, "", ""] for remark in one.remarks]
    return rows


def replies(result: Summary) -> str:
    """Who answered, in words."""
    replied, clients = result.asked.get("replied"), result.num_clients
    return f"{'?' if replied is None else f'{replied:.0f}'} of {'?' if clients is None else clients} clients answered"


def p_value(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def _short(value: float) -> str:
    """Five significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.5g}"
