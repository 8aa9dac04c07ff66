"""The picture of a board: accuracy against verified epsilon, with intervals."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedpriv.report.plots import FAINT, INK, PALETTE, Picture, blank_figure, save_picture
from fedpriv.report.words import figure as in_figures
from fedpriv.studies.results import Board

STYLES = {"plain": "-", "paper": "--", "rival": ":"}
MARKERS = "osD^vP*X<>h"


def draw_board(board: Board, folder: Path) -> Picture:
    """Draws <board>.png: a line for each method through its targets, shifted a little so that intervals do not hide
    each other; solid: plain methods, dashed: ideas of papers, dotted: their rivals.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for entry in board.entries:
        point = (entry.verified_epsilon, entry.accuracy.mean or 0.0, entry.accuracy.half_width or 0.0)
        lines.setdefault(entry.label, []).append(point)
    ideas = {entry.label: entry.idea for entry in board.entries}
    labels = sorted(lines, key=lambda label: (list(STYLES).index(ideas[label]), label))
    figure, axes = blank_figure(board.title, "accuracy", inches=(7.4, 4.4))
    axes.set_xscale("log")
    looks = zip(labels, cycle(PALETTE), cycle(MARKERS), strict=False)
    for place, (label, color, marker) in enumerate(looks):
        shift = 1.035 ** (place - (len(labels) - 1) / 2)
        x, y, half = zip(*sorted(lines[label]), strict=True)
        axes.errorbar(
            [value * shift for value in x], y, half, color=color, marker=marker, ms=5, lw=1.5, capsize=2,
            ls=STYLES[ideas[label]], label=label,
        )  # fmt: skip
    if board.reference.mean is not None:
        axes.axhline(board.reference.mean, color=INK, lw=1.4, label="without privacy")
    if board.chance is not None:
        axes.axhline(board.chance, color=FAINT, lw=1.4, ls=(0, (2, 2)), label="guessing")
    ticks = sorted({entry.target for entry in board.entries})
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:.0f} %"))
    axes.set_xlim(min(ticks) / 1.6, max(ticks) * 1.6)  # of a single target too
    axes.set_ylim(0, 101)
    axes.set_xlabel("verified epsilon of the run", color=INK)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    ends = ", ".join(f"{label} {max(lines[label])[1]:.1f} %" for label in labels)
    alt = (
        f"Accuracy against verified epsilon, logarithmic, one line per method; at the largest epsilon of each: {ends}."
    )
    caption = (
        "Bars: 95 % intervals over seeds; methods at one target are drawn side by side. Solid: plain methods, dashed: "
        "ideas of the papers, dotted: rivals that the papers compare themselves with."
    )
    return save_picture(figure, folder, Picture(f"{board.name}.png", alt, caption))
