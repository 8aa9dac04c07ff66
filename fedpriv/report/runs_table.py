"""Every run of a comparison in one table that a click on a column's head sorts. Without its script it is a table."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fedpriv.report.compare import ABSENT, EPSILONS, Comparison, Group
from fedpriv.report.epsilon_figures import unaudited
from fedpriv.report.reading import RunFolder
from fedpriv.report.tables import IN_FRONT
from fedpriv.report.words import figure, in_metric, leading_metric, mapping_at, number_at, seconds, size, threat_short


@dataclass(frozen=True)
class Cell:
    """text: as shown. value: what the column is sorted by: a number, infinite included; None: by the text, and a text
    in a column of numbers comes after them. link: relative, of a run's page.
    """

    text: str
    value: float | None = None
    link: str = ""

    @property
    def key(self) -> str:
        """As JavaScript reads it."""
        return "" if self.value is None else str(self.value).replace("inf", "Infinity")


#: Names of the columns behind those of the options; sizes are payloads of all messages, both ways.
FIGURES = ("claimed ε", "verified ε", "audited ε", "sent", "time")


def runs_table(comparison: Comparison, folder: Path) -> tuple[list[str], list[list[Cell]]]:
    """(header, a row for each run in the order of its folder's name); option columns are those that differ.

    folder: where the page lies, which links to the runs' pages.
    """
    several = len(comparison.tables) > 1
    names = comparison.groups[0].short_names if comparison.groups else []
    rows = [
        [
            Cell(run.path.name, None, _page(run.path, folder)),
            *_options(group)[:IN_FRONT],
            Cell(str(run.config.get("seed", "–")), number_at(run.config, "seed")),
            *_figures(run),
            *_options(group)[IN_FRONT:],
            *([Cell(threat_short(mapping_at(run.summary, "privacy")))] if several else []),
        ]
        for group in comparison.groups
        for run in group.runs
    ]
    rows.sort(key=lambda row: _in_order(row[0].text))
    leading = {leading_metric(run.summary)[0] for group in comparison.groups for run in group.runs}
    metric = next(iter(leading)).replace("_", " ") if len(leading) == 1 else "metric"
    header = ["run", *names[:IN_FRONT], "seed", metric, *FIGURES, *names[IN_FRONT:]]
    return [*header, *(["seen by"] if several else [])], rows


def _options(group: Group) -> list[Cell]:
    return [
        Cell(text, _as_number(value)) for text, value in zip(group.options.values(), group.values.values(), strict=True)
    ]


def _in_order(name: str) -> tuple[float, str]:
    """A sweep's job has its number before its name."""
    first = name.partition("-")[0]
    return (float(first) if first.isdecimal() else float("inf")), name


def _figures(run: RunFolder) -> list[Cell]:
    (leading, value, _), time = leading_metric(run.summary), number_at(run.summary, "timing", "total_s")
    epsilons = [number_at(run.summary, "privacy", name) for name in EPSILONS]
    absent = (*ABSENT[:2], unaudited(mapping_at(run.summary, "privacy")))
    up, down = (number_at(run.summary, "traffic", name) for name in ("bytes_up", "bytes_down"))
    total = None if up is None or down is None else up + down
    return [
        Cell(in_metric(leading, value, "not evaluated"), value),
        *(Cell(figure(value, words), value) for value, words in zip(epsilons, absent, strict=True)),
        Cell(size(total), total),
        Cell(seconds(time), time),
    ]


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _page(run: Path, folder: Path) -> str:
    page = "report.html" if (run / "report.html").is_file() else "summary.json"
    return quote(f"{os.path.relpath(run, folder)}/{page}")
