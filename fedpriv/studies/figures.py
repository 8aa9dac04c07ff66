"""A paper's figures redrawn from what was measured: accuracy over rounds, a table's cells over a number, norms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedpriv.common.files import save_figure
from fedpriv.report.compare import spread
from fedpriv.report.pictures import PALETTE
from fedpriv.report.plots import blank_figure, draw_line
from fedpriv.report.words import figure as in_figures
from fedpriv.studies.reproduction import Measured
from fedpriv.studies.results import Estimate, Figure, RunRecord
from fedpriv.studies.spec import FigureSpec

FOLDER = "figures"


def draw_figures(found: Measured, folder: Path) -> list[Figure]:
    """Every figure for which something was measured; the files lie in ``folder``/figures."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    drawn = (_draw(name, spec, found, folder) for name, spec in found.paper.figures.items())
    return [one for one in drawn if one is not None]


def _draw(name: str, spec: FigureSpec, found: Measured, folder: Path) -> Figure | None:
    table = found.paper.tables[spec.table]
    canvas, axes = blank_figure(spec.title, spec.ylabel, inches=(6.2, 3.6 + 0.2 * len(table.rows)))
    styles = cycle([(color, style) for style in ("-", "--", ":") for color in PALETTE])
    ends = []
    for row in spec.rows or tuple(table.rows):
        (color, style), label = next(styles), table.rows[row].label
        if spec.kind == "lines":
            cells = [found.values((spec.table, row, column)).estimate for column in table.columns]
            points = [(x, cell) for x, cell in zip(spec.x, cells, strict=True)]
        else:
            points = over_rounds(found.of((spec.table, row, str(spec.column))), spec.kind)
        points = [(x, cell) for x, cell in points if cell.mean is not None and abs(cell.mean) < float("inf")]
        if points:
            _band(axes, points, color, style, label)
            ends.append(f"{label} {in_figures(points[-1][1].mean)}")
    if not ends:
        return None
    if spec.kind == "lines":
        _number_axis(axes, spec)
    return _saved(canvas, folder, name, spec, ends)


def over_rounds(records: Sequence[RunRecord], kind: str) -> list[tuple[float, Estimate]]:
    """(round, estimate over seeds) where every seed has a value: accuracy in percent, or the length of updates."""
    series: list[dict[int, float]] = []
    for record in records:
        if kind == "norms":
            series.append(dict(record.norms))
        else:
            series.append({number: 100 * value for number, value, _ in record.curve if value is not None})
    rounds = sorted(set.intersection(*map(set, series))) if series else []
    return [(number, _estimate(one[number] for one in series)) for number in rounds]


def _estimate(values: Iterable[float]) -> Estimate:
    found = spread(values)
    return Estimate(n=found.n, mean=found.mean, std=found.std, half_width=found.half_width)


def _band(axes: Axes, points: Sequence[tuple[float, Estimate]], color: str, style: str, label: str) -> None:
    """A line, and around it one standard deviation over seeds."""
    x = [place for place, _ in points]
    mean = [cell.mean or 0.0 for _, cell in points]
    std = [cell.std or 0.0 for _, cell in points]
    draw_line(axes, x, mean, color, label, style)  # type: ignore[arg-type]
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=color, alpha=0.14, lw=0)


def _number_axis(axes: Axes, spec: FigureSpec) -> None:
    axes.set_xlabel(spec.xlabel)
    if spec.log:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(spec.x))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))


def _saved(canvas: Canvas, folder: Path, name: str, spec: FigureSpec, ends: Sequence[str]) -> Figure:
    canvas.legend(loc="outside lower left", frameon=False, fontsize=9)
    file = f"{FOLDER}/{name}.png"
    save_figure(canvas, folder / file)
    over = spec.xlabel if spec.kind == "lines" else "rounds"
    alt = f"{spec.title}: {spec.ylabel} over {over}, one line per method; at the end: {', '.join(ends)}."
    return Figure(name=name, file=file, alt=alt, caption=f"{spec.caption} Band: one standard deviation over seeds.")
