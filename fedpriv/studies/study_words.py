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
from fedpriv.report.words import figure, plus_minus, seconds
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
    "How a verdict is reached, the same way for every paper: [the protocol](../protocol.md). Intervals are 95 % "
    "t-intervals over seeds; verdicts rest on p, corrected for looks, pairs and all claims of the paper."
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
    claims = [claim for claim in results.claims if not claim.beyond]
    settings = _settings(claims)
    lines = [
        f"# {results.title}",
        "",
        f"{results.authors}. Reproduced at `scale={results.scale}`: `{results.command}`.",
        "",
        *(["## What the authors would say", ""] if results.case else []),
        *(line for paragraph in results.case for line in (paragraph, "")),
        "## What was found" + (" in a smaller setting (scale=small)" if results.scale == "small" else ""),
        "",
        f"{results.idea}",
        "",
        *(f"- {line}" for line in settings_counted(claims)),
        "",
        HOW_DECIDED,
        "",
        *_claim_tables(claims, settings),
        *(line for setting, mark in settings.items() for line in (f"{mark} {OTHER_SETTING.format(setting)}", "")),
        *_moved(claims),
        *_beyond([claim for claim in results.claims if claim.beyond]),
        "## What leaks as published, and the repair",
        "",
        results.leak,
        "",
        f"**Repaired.** {results.repair}",
        "",
        *([STALE, ""] if any(c.superseded for table in results.tables for r in table.rows for c in r.cells) else []),
    ]
    measured = [table for table in results.tables if _is_measured(table)]
    for table in measured:
        lines += _table(table)
    lines += _not_run([table for table in results.tables if table not in measured])
    lines += ["## Figures", ""] if results.figures else []
    for one in results.figures:
        lines += [f"![{one.alt}]({one.file})", "", one.caption, ""]
    return "\n".join([*lines, *origin(results.provenance)]) + "\n"


#: Where a claim was tested -> the heading of its table.
PLACES: Mapping[str, str] = {
    "own": "In the paper's own setting, or without one",
    "another": "In another setting",
    "not": "Not tested here",
}


def place_of(claim: Claim) -> str:
    """The two settings are never added up (docs/results/protocol.md, section 2)."""
    if claim.verdict == "cannot be tested here":
        return "not"
    return "another" if claim.setting else "own"


def settings_counted(claims: Sequence[Claim]) -> list[str]:
    """A line for each setting, with its verdicts."""
    parts = {name: [claim for claim in claims if place_of(claim) == name] for name in PLACES}
    said = [f"{PLACES[name]}: {len(some)}, {counted(some)}." for name, some in parts.items() if some and name != "not"]
    return said + ([f"Cannot be tested here: {len(parts['not'])}."] if parts["not"] else [])


def _claim_tables(claims: Sequence[Claim], settings: Mapping[str, str]) -> list[str]:
    lines = []
    for name, heading in PLACES.items():
        some = [claim for claim in claims if place_of(claim) == name]
        if some:
            rows = [_claim(claim, settings) for claim in some]
            lines += [f"### {heading}", "", markdown_table(("claim", "its words", "verdict", "measured"), rows), ""]
    return lines


def _moved(claims: Sequence[Claim]) -> list[str]:
    """Claims whose verdict is another than on the list before the protocol, and those that were not on it."""
    moved = [claim for claim in claims if claim.before not in (None, "new", claim.verdict)]
    new = [claim for claim in claims if claim.before == "new"]
    lines = ["## What the protocol changed", ""] if moved or new else []
    if moved:
        rows = [(one.claim, str(one.before), one.verdict, one.rule or "the protocol's margins") for one in moved]
        lines += [markdown_table(("claim", "before", "now", "rule"), rows), ""]
    if new:
        lines += [f"New on the list: {len(new)} ({counted(new)}).", ""]
    return lines


def _beyond(findings: Sequence[Claim]) -> list[str]:
    """No claims of the paper: without a verdict, outside every count."""
    if not findings:
        return []
    rows = [
        (one.claim, f"{one.beyond} (before: {one.before})" if one.before else one.beyond, one.words) for one in findings
    ]
    words = "Findings of this project that the paper does not claim. They have no verdict and are in no count."
    return [
        "## Beyond the paper",
        "",
        words,
        "",
        markdown_table(("finding", "why it is no claim", "measured"), rows),
        "",
    ]


def _is_measured(table: Table) -> bool:
    return any(cell.measured is not None for row in table.rows for cell in row.cells)


def _not_run(tables: Sequence[Table]) -> list[str]:
    """A line for each table without a figure of its own."""
    if not tables:
        return []
    lines = ["## Not run here", ""]
    for table in tables:
        why = dict.fromkeys(cell.missing for row in table.rows for cell in row.cells if cell.missing)
        lines.append(f"- {table.title} ({table.source}): {'; '.join(why)}")
    return [*lines, ""]


def _settings(claims: Sequence[Claim]) -> dict[str, str]:
    """Setting -> the mark of its footnote."""
    found = dict.fromkeys(claim.setting for claim in claims if claim.setting)
    return {setting: str(number).translate(RAISED) for number, setting in enumerate(found, 1)}


def _claim(claim: Claim, settings: Mapping[str, str]) -> tuple[str, str, str, str]:
    mark = f" {settings[claim.setting]}" if claim.setting else ""
    quotes = " … ".join(f"“{quote}”" for quote in claim.quote)
    lines = f", line {_listed(claim.line)}" if claim.line else ""
    where = f"{claim.source}{lines}"
    return claim.claim, f"{quotes} ({where})" if quotes else where, f"**{claim.verdict}**", claim.found + mark


def _listed(lines: Sequence[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(lines)))


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
        text = plus_minus(found.mean or 0.0, found.half_width)
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
