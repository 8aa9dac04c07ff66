"""A study's results for people: README.md with tables and verdicts, and one CSV per table."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from fedpriv.common.files import write_atomic
from fedpriv.common.printing import cell as csv_cell
from fedpriv.common.versions import made_by
from fedpriv.report.words import figure, seconds
from fedpriv.studies.provenance import DIGEST
from fedpriv.studies.results import (
    OTHER_SETTING,
    Cell,
    Claim,
    Estimate,
    Ordering,
    PaperResults,
    Provenance,
    Table,
    Verdict,
)
from fedpriv.studies.verdicts import shown

TABLES = "tables"
#: Digits as marks of footnotes.
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

HOW_DECIDED = (
    "Intervals are 95 % t-intervals over seeds, of paired differences where two methods are compared. Verdicts rest "
    "on p, which is corrected for the number of looks at which seeds were added (fixed before, at most five), for the "
    "pairs of a claim (Bonferroni) and for all claims of the paper that rest on chance (Holm, for “holds” and for "
    "“does not hold”): above 0.05 a claim is “not decided”, and in at most one study of twenty is any verdict wrong "
    "by chance. “Nearly the same” is decided by two one-sided tests within the margin that stands there. The pairs of "
    "a table's order are corrected among themselves. A rival that guesses decides nothing: where every rival does, the "
    "claim cannot be tested here. Verdicts are on signs and bounds; whether a printed size is reached stands beside "
    "them. In the paper's own setting a claim does not hold also where there is no gain in the mean of all seeds, and "
    "surely less than the printed one: then it is the printed size that is refuted. A verified epsilon is an upper "
    "bound: above a claim it refutes nothing, unless the words say why it does. An attack that finds less confirms "
    "nothing."
)

STALE = (
    "Cells with † are of runs that are to be made anew (below, with the reason). Until then a verdict that rests on "
    "them is of the code that made them."
)


def write_words(results: PaperResults, folder: Path) -> list[Path]:
    """README.md and tables/*.csv."""
    (folder / TABLES).mkdir(parents=True, exist_ok=True)
    files = [folder / TABLES / f"{table.name}.csv" for table in results.tables]
    for table, file in zip(results.tables, files, strict=True):
        write_table(table, file)
    readme = folder / "README.md"
    write_atomic(readme, page(results))
    return [readme, *files]


def write_table(table: Table, file: Path) -> None:
    """One line per cell."""
    header = ("row", "column", "mean", "std", "ci95_half_width", "seeds", "reported", "missing", "superseded")
    lines = []
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            found = cell.measured or Estimate(n=0, mean=None)
            numbers = (found.mean, found.std, found.half_width, found.n)
            lines.append((row.label, column, *numbers, cell.reported, cell.missing, cell.superseded))
    with file.open("w", newline="", encoding="utf-8") as out:
        out.write(csv_text(header, lines, "\r\n"))


def csv_text(header: Sequence[str], lines: Iterable[Sequence[Any]], end: str = "\n") -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator=end)
    writer.writerow(header)
    writer.writerows(map(csv_cell, line) for line in lines)
    return text.getvalue()


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Bars and line ends of the cells are escaped."""
    rows = ("".join(f" {cell} |" if cell else " |" for cell in map(_cell, line)) for line in (header, *lines))
    first, *rest = (f"|{row}" for row in rows)
    return "\n".join([first, "|" + "---|" * len(header), *rest])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def page(results: PaperResults) -> str:
    """Markdown."""
    settings = _settings(results.claims)
    lines = [
        f"# {results.title}",
        "",
        f"{results.authors}. Reproduced at `scale={results.scale}`: `{results.command}`.",
        "",
        results.idea,
        "",
        f"**What leaks as published.** {results.leak}",
        "",
        f"**Repaired.** {results.repair}",
        "",
        "## What holds" + (" in a smaller setting (scale=small)" if results.scale == "small" else ""),
        "",
        f"{counted(results.claims)}.",
        "",
        markdown_table(
            ("claim", "source", "verdict", "measured"), [_claim(claim, settings) for claim in results.claims]
        ),
        "",
        *(line for setting, mark in settings.items() for line in (f"{mark} {OTHER_SETTING.format(setting)}", "")),
        HOW_DECIDED,
        "",
        *([STALE, ""] if any(c.superseded for table in results.tables for r in table.rows for c in r.cells) else []),
    ]
    for table in results.tables:
        lines += _table(table)
    lines += ["## Figures", ""] if results.figures else []
    for one in results.figures:
        lines += [f"![{one.alt}]({one.file})", "", one.caption, ""]
    return "\n".join([*lines, *origin(results.provenance)]) + "\n"


def _settings(claims: Sequence[Claim]) -> dict[str, str]:
    """Setting -> the mark of its footnote."""
    found = dict.fromkeys(claim.setting for claim in claims if claim.setting)
    return {setting: str(number).translate(RAISED) for number, setting in enumerate(found, 1)}


def _claim(claim: Claim, settings: Mapping[str, str]) -> tuple[str, str, str, str]:
    mark = f" {settings[claim.setting]}" if claim.setting else ""
    return claim.claim, claim.source, f"**{claim.verdict}**", claim.found + mark


#: A verdict of one claim and of several.
SEVERAL: Mapping[Verdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "not decided": ("is not decided", "are not decided"),
    "cannot be tested here": ("cannot be tested here", "cannot be tested here"),
}


def counted(claims: Sequence[Claim]) -> str:
    """How often each verdict was given: "2 hold, 1 is not decided"."""
    count = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{count[one]} {words[count[one] > 1]}" for one, words in SEVERAL.items() if count[one])


def _table(table: Table) -> list[str]:
    missing = dict.fromkeys(cell.missing for row in table.rows for cell in row.cells if cell.missing)
    superseded = dict.fromkeys(cell.superseded for row in table.rows for cell in row.cells if cell.superseded)
    counts = {cell.measured.n for row in table.rows for cell in row.cells if cell.measured}
    reported = any(cell.reported is not None for row in table.rows for cell in row.cells)
    return [
        f"## {table.title}",
        "",
        f"{table.source}. {_how(table, counts)}{'; in brackets what the paper reports' if reported else ''}.",
        "",
        markdown_table(
            ("", *table.columns),
            [(row.label, *(_value(c, table.unit, max(counts, default=1)) for c in row.cells)) for row in table.rows],
        ),
        "",
        *(f"- {order_words(order)}" for order in table.orderings),
        *(f"- {note}" for note in (*table.notes, *missing)),
        *(f"- †: to be made anew: {why}" for why in superseded),
        "",
    ]


def _how(table: Table, counts: set[int]) -> str:
    """What the figures are. counts: how many seeds stand behind each cell."""
    if table.computed:
        return "Computed"
    if not counts:
        return "Not run here"
    if table.kind == "audit":
        return "What was audited is a lower bound from one audit; the rest is computed"
    if max(counts) == 1:
        return "In %, one seed" if table.unit == "%" else "One seed"
    seeds = f"{max(counts)} seeds" + ("" if len(counts) == 1 else " (n: where there are fewer)")
    return f"{'In %, mean' if table.unit == '%' else 'Mean'} ± half width of the 95 % interval over {seeds}"


def _value(cell: Cell, unit: str, seeds: int = 1) -> str:
    """seeds: of the other cells; one that has fewer says how many."""
    found = cell.measured
    if found is None:
        text = "–"
    elif unit == "%":
        text = f"{found.mean:.1f}" + (f" ± {found.half_width:.1f}" if found.half_width is not None else "")
    else:
        text = shown(found).split(" (")[0]
    text += f" (n = {found.n})" if found is not None and 1 < found.n < seeds else ""
    text += " †" if cell.superseded else ""
    return text + (f" [{figure(cell.reported)}]" if cell.reported is not None else "")


def order_words(order: Ordering) -> str:
    pairs = order.agreeing + order.contradicted + order.open
    return (
        f"{order.column}: reported order {' > '.join(order.reported)}; measured {' > '.join(order.measured)}. "
        f"{_order_verdict(order)}: of {pairs} pairs {order.agreeing} agree, "
        f"{order.contradicted} are the other way round, {order.open} are open."
    )


def _order_verdict(order: Ordering) -> str:
    if order.contradicted:
        return "It does not hold as a whole"
    return "It holds" if order.holds else "It is not decided"


def origin(found: Provenance) -> list[str]:
    """Where the figures come from."""
    machine = found.machine
    libraries = {name: version for name, version in found.versions.items() if name not in ("python", DIGEST)}
    first = found.client_epoch_budget  # of the first looks
    budget = f" of at most {first:,.0f}" if first and found.client_epochs <= first else ""
    return [
        "## Where this comes from",
        "",
        f"- made by {', '.join(map(made_by, found.commits)) or made_by('')}, {found.date}",
        *(f"- {words}" for words in found.remarks),
        f"- {machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.system}, "
        f"Python {machine.python}",
        f"- {', '.join(f'{name} {version}' for name, version in libraries.items())}",
        *(f"- {words}" for words in found.others),
        f"- {seconds(found.core_seconds)} of runs, one process each; {found.client_epochs:,.0f} epochs of 600 "
        f"pictures{budget}",
    ]
