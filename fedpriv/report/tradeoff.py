"""The plot of a comparison that people look for first: the leading metric against the verified epsilon."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from fedpriv.report.compare import Comparison, Group, Row
from fedpriv.report.pictures import FAINT, INK, PALETTE, Picture, save_themed
from fedpriv.report.plots import blank_figure
from fedpriv.report.words import figure as in_figures
from fedpriv.report.words import in_metric, threat_short

#: Options that move a method along its curve: points that differ in nothing else belong to one.
BUDGETS = frozenset(("target_epsilon", "epsilon", "noise_multiplier", "noise_std"))
#: Letters of a legend's line.
WIDTH = 66


def draw_tradeoffs(comparison: Comparison, folder: Path) -> list[Picture | None]:
    """For each threat model its picture, tradeoff.png, tradeoff-2.png, ...; None where no method has two epsilons."""
    pictures = []
    for number, (threat, rows) in enumerate(comparison.tables, 1):
        file = "tradeoff.png" if number == 1 else f"tradeoff-{number}.png"
        pictures.append(_drawn(threat, rows, folder, file))
    return pictures


def _drawn(threat: Mapping[str, Any], rows: Sequence[Row], folder: Path, file: str) -> Picture | None:
    curves = _curves(rows)
    metrics = {row.leading for row in rows}
    if len(metrics) > 1 or not any(len({_epsilon(row) for row in curve}) > 1 for curve in curves.values()):
        return None
    metric = next(iter(metrics))
    title = f"{metric.replace('_', ' ').capitalize()} against epsilon"
    drawn, axes = blank_figure(title, inches=(6.2, 3.4 + 0.2 * len(curves)))
    styles = cycle([(color, style) for style in ("-", "--", ":") for color in PALETTE])
    ticks = set[float]()
    for (label, curve), (color, style) in zip(curves.items(), styles, strict=False):
        x = [_epsilon(row) for row in curve]
        ticks.update(x)
        axes.errorbar(
            x, [row.figures["metric"].mean or 0.0 for row in curve],
            yerr=[row.figures["metric"].half_width or 0.0 for row in curve],
            color=color, ls=style, lw=2, marker="o", ms=4, capsize=3, label=textwrap.fill(label, WIDTH),
        )  # fmt: skip
    for row in rows:
        if math.isinf(_epsilon(row)) and row.figures["metric"].mean is not None:
            axes.axhline(
                row.figures["metric"].mean, color=INK, ls=(0, (2, 2)), lw=1.2,
                label=textwrap.fill(f"{row.group.label}: no finite epsilon", WIDTH),
            )  # fmt: skip
    axes.set_xlabel("verified epsilon (logarithmic)", color=INK)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(ticks) / 1.3, max(ticks) * 1.3)
    axes.grid(axis="x", color=FAINT, lw=0.8)
    if metric == "accuracy":
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    drawn.legend(loc="outside lower left", frameon=False, fontsize=9, labelcolor=INK)
    save_themed(drawn, folder / file)
    alt = f"Plot of {metric} against the verified epsilon, {threat_short(threat)}: {_words(metric, curves)}."
    return Picture(
        file, alt, "Mean over seeds; bars: its 95 % interval (Student's t), where there are two seeds or more."
    )


def _curves(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows with a finite epsilon by what tells their curves apart, each in the order of epsilon."""
    curves: dict[str, list[Row]] = {}
    for row in sorted(rows, key=_epsilon):
        if 0 < _epsilon(row) < math.inf and row.figures["metric"].mean is not None:
            curves.setdefault(row.group.label_without(_along(row.group)), []).append(row)
    return curves


def _along(group: Group) -> frozenset[str]:
    return frozenset(name for name in group.options if name.rpartition(".")[2] in BUDGETS)


def _epsilon(row: Row) -> float:
    return math.inf if (mean := row.figures["verified_epsilon"].mean) is None else mean


def _words(metric: str, curves: Mapping[str, Sequence[Row]]) -> str:
    def points(curve: Sequence[Row]) -> Iterator[str]:
        for row in curve:
            yield f"{in_metric(metric, row.figures['metric'].mean)} at {in_figures(_epsilon(row))}"

    return "; ".join(f"{label} {', '.join(points(curve))}" for label, curve in curves.items())
