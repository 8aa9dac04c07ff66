"""The picture of a board: a panel for each epsilon, a row for each method, dots with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedpriv.report.pictures import BLUE, FAINT, GREEN, INK, VERMILLION, Picture, save_picture
from fedpriv.report.words import figure as in_figures
from fedpriv.studies.results import Board, Entry

#: idea -> (color, marker, words)
LOOKS = {
    "plain": (BLUE, "o", "plain methods"),
    "paper": (VERMILLION, "s", "ideas of the papers"),
    "rival": (GREEN, "D", "rivals"),
}
#: Room beside the lowest accuracy that is worth a close look, in points.
MARGIN = 3.0


def draw_board(board: Board, folder: Path) -> Picture:
    """Draws <board>.png. Methods are in the order of their accuracy at the largest epsilon, the best first; every panel
    begins below its worst method that does more than guess, so that differences can be seen.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labels = _order(board)
    targets = sorted({entry.target for entry in board.entries})
    width = max(7.4, 3.2 + 2.3 * len(targets))
    figure = Figure(figsize=(width, 1.6 + 0.27 * len(labels)), dpi=160, facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
    FigureCanvasAgg(figure)
    panels: Sequence[Axes] = figure.subplots(1, len(targets), sharey=True, squeeze=False)[0]
    for axes, target in zip(panels, targets, strict=True):
        _panel(axes, board, labels, target)
    panels[0].set_yticks(range(len(labels)), labels, fontsize=9)
    panels[0].set_ylim(len(labels) - 0.4, -0.6)
    figure.suptitle(board.title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    known = dict(zip(*reversed(panels[-1].get_legend_handles_labels()), strict=True))
    for axes in panels[:-1]:
        known |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    columns = 5 if width > 9 else 3
    figure.legend(known.values(), known.keys(), loc="outside lower right", ncols=columns, frameon=False, fontsize=9)
    return save_picture(figure, folder, Picture(f"{board.name}.png", _alt(board, labels, targets), _caption()))


def _order(board: Board) -> list[str]:
    """Labels, the most accurate at the largest epsilon first."""
    last: dict[str, tuple[float, float]] = {}
    for entry in board.entries:
        last[entry.label] = max(last.get(entry.label, (0.0, 0.0)), (entry.target, entry.accuracy.mean or 0.0))
    return sorted(last, key=lambda label: (-last[label][0], -last[label][1], label))


def _panel(axes: Axes, board: Board, labels: Sequence[str], target: float) -> None:
    found = [entry for entry in board.entries if entry.target == target]
    for entry in found:
        color, marker, words = LOOKS[entry.idea]
        mean, half = entry.accuracy.mean or 0.0, entry.accuracy.half_width or 0.0
        axes.errorbar(
            [mean], [labels.index(entry.label)], xerr=[[half], [min(half, 100 - mean)]], color=color, marker=marker,
            ms=5, lw=1.4, capsize=2, ls="none", label=words,
        )  # fmt: skip
    if board.reference.mean is not None:
        axes.axvline(board.reference.mean, color=INK, lw=1.2, label="FedAvg without privacy")
    if board.on_features is not None and board.on_features.mean is not None:
        axes.axvline(board.on_features.mean, color=INK, lw=1.2, ls="-.", label="the same on features")
    if board.alone is not None and board.alone.mean is not None:
        axes.axvline(board.alone.mean, color=INK, lw=1.2, ls=(0, (5, 2)), label="every client by itself")
    if board.chance is not None:
        axes.axvline(board.chance, color=INK, lw=1.0, ls=(0, (2, 2)), label="guessing")
    axes.set_title(f"epsilon {in_figures(target)}", fontsize=10, color=INK)
    axes.set_xlim(*_limits(board, found))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:.0f} %"))
    axes.grid(axis="both", color=FAINT, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)


def _limits(board: Board, found: Sequence[Entry]) -> tuple[float, float]:
    """From below the worst to above the best, the lines without a target among them."""
    ends = [
        side
        for entry in found
        for side in ((entry.accuracy.mean or 0.0) + sign * (entry.accuracy.half_width or 0.0) for sign in (-1, 1))
    ]
    lines = (board.reference, board.on_features, board.alone)
    ends += [line.mean for line in lines if line is not None and line.mean is not None]
    return max(0.0, min(ends, default=0.0) - MARGIN), min(100.0, max(ends, default=100.0) + MARGIN)


def _alt(board: Board, labels: Sequence[str], targets: Sequence[float]) -> str:
    """The dots in words: the three best at each epsilon."""
    words = []
    for target in targets:
        found = sorted((e for e in board.entries if e.target == target), key=lambda e: -(e.accuracy.mean or 0.0))
        best = ", ".join(f"{entry.label} {entry.accuracy.mean or 0.0:.1f} %" for entry in found[:3])
        words.append(f"epsilon {in_figures(target)}: {best}")
    return f"Accuracy of {len(labels)} methods, a panel for each verified epsilon. The best: {'; '.join(words)}."


def _caption() -> str:
    return "Bars: 95 % intervals over seeds. Each panel has an axis of its own."
