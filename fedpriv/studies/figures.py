"""A paper's figures redrawn from what was measured: accuracy over rounds, a table's cells over a number, norms.

Every interval is the 95 % t-interval over seeds, of paired differences where a figure is of differences. What the paper
prints for the same cells stands beside it as hollow marks, at the end of a curve where it is a final accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedpriv.common.files import save_figure
from fedpriv.report.pictures import INK, PALETTE
from fedpriv.report.plots import blank_figure, draw_line
from fedpriv.report.words import figure as in_figures
from fedpriv.report.words import two_digits
from fedpriv.studies.claim_spec import Better
from fedpriv.studies.evidence import estimate
from fedpriv.studies.experiments import Place
from fedpriv.studies.reproduction import Measured
from fedpriv.studies.results import Estimate, Figure, RunRecord
from fedpriv.studies.spec import FigureSpec, Reproduction

FOLDER = "figures"
#: Up to so many points an interval is a bar at each, and lines are moved apart; above it, it is a band.
BARS = 12
#: From one line to the next, in parts of the axis.
APART = 0.009
#: Letters of a label that fit on an axis; the caption names longer ones.
SHORT = 24
#: x -> seed -> value
Series = Mapping[float, Mapping[int, float]]


@dataclass(frozen=True)
class Line:
    """points: (x, estimate over seeds) in order. printed: (x, what the paper prints there)."""

    label: str
    points: tuple[tuple[float, Estimate], ...]
    printed: tuple[tuple[float, float], ...] = ()


def draw_figures(found: Measured, folder: Path) -> list[Figure]:
    """Every figure for which something was measured; the files lie in ``folder``/figures."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    drawn = (_draw(name, spec, found, folder) for name, spec in found.paper.figures.items())
    return [one for one in drawn if one is not None]


def _draw(name: str, spec: FigureSpec, found: Measured, folder: Path) -> Figure | None:
    skipped = _guessing(spec, found) if spec.skip_guessing else {}
    drawn = [one for one in lines(spec, found) if one.label not in skipped]
    if not drawn:
        return None
    canvas, axes = blank_figure(spec.title, _ylabel(spec, found), inches=(6.2, 3.6 + 0.2 * (len(drawn) + 1)))
    _scales(axes, spec)
    styles = cycle([(color, style) for style in ("-", "--", ":") for color in PALETTE])
    for place, (one, (color, style)) in enumerate(zip(drawn, styles, strict=False)):
        _line(axes, one, color, style, place - (len(drawn) - 1) / 2, spec)
    if spec.against:
        axes.axhline(0.0, color=INK, lw=1.2, ls=(0, (4, 2)), zorder=1)
    if spec.kind == "lines":
        _number_axis(axes, spec)
    return _saved(canvas, folder, name, spec, drawn, [*_levels(spec, found), *_unseen(skipped)])


# --- what is drawn -----------------------------------------------------------------------------------------


def lines(spec: FigureSpec, found: Measured) -> list[Line]:
    """A line for each row that has a finite value, or for each pair of rows that have seeds in common."""
    all_ = []
    shared = compared(spec, found)
    for row in spec.against or spec.rows or tuple(found.paper.tables[spec.table].rows):
        base = spec.against.get(row)
        one = shared[row] if base is None else _minus(shared[row], shared[base])
        points = [(x, estimate(seeds.values())) for x, seeds in sorted(one.items())]
        kept = tuple((x, cell) for x, cell in points if cell.mean is not None and abs(cell.mean) < math.inf)
        if kept:
            all_.append(Line(_label(spec, row, found), kept, tuple(_printed(spec, row, kept[-1][0], found))))
    return all_


def _label(spec: FigureSpec, row: str, found: Measured) -> str:
    table = found.paper.tables[spec.table]
    label = table.rows[row].label
    one_base = len(set(spec.against.values())) == 1
    return label if one_base or row not in spec.against else f"{label}, against {table.rows[spec.against[row]].label}"


def compared(spec: FigureSpec, found: Measured) -> dict[str, Series]:
    """Of the rows of a figure, with those that they are held against, the seeds that all share, place by place:
    where some have more of them, the others' luck is not a difference between methods. All seeds where each row is held
    against another.
    """
    rows = spec.against or spec.rows or tuple(found.paper.tables[spec.table].rows)
    all_ = {row: series(spec, row, found) for row in (*rows, *spec.against.values())}
    if spec.against:  # a difference is of the seeds of its own two rows
        return all_
    there = {x for one in all_.values() for x in one}
    shared = {x: set.intersection(*(set(one[x]) for one in all_.values() if x in one)) for x in there}
    return {
        row: {x: {s: seeds[s] for s in sorted(shared[x] or seeds)} for x, seeds in one.items()}
        for row, one in all_.items()
    }


def series(spec: FigureSpec, row: str, found: Measured) -> Series:
    """Of curves and norms the rounds at which every seed has a value."""
    if spec.kind == "lines":
        columns = zip(spec.x, found.paper.tables[spec.table].columns, strict=True)
        cells = {x: found.values((spec.table, row, column)).by_seed for x, column in columns}
        return {x: seeds for x, seeds in cells.items() if seeds}
    return over_rounds(found.of((spec.table, row, str(spec.column))), spec.kind)


def over_rounds(records: Sequence[RunRecord], kind: str) -> Series:
    """round -> seed -> accuracy in percent, or the length of updates, where every seed has a value."""
    runs: dict[int, dict[int, float]] = {}
    for record in records:
        if kind == "norms":
            runs[record.seed] = dict(record.norms)
        else:
            runs[record.seed] = {number: 100 * value for number, value, _ in record.curve if value is not None}
    rounds = sorted(set.intersection(*map(set, runs.values()))) if runs else []
    return {number: {seed: run[number] for seed, run in runs.items()} for number in rounds}


def _minus(one: Series, other: Series) -> Series:
    """Seed by seed, where both have a value."""
    both = {x: one[x].keys() & other[x].keys() for x in one.keys() & other.keys()}
    return {x: {seed: one[x][seed] - other[x][seed] for seed in seeds} for x, seeds in both.items() if seeds}


def _printed(spec: FigureSpec, row: str, last: float, found: Measured) -> Iterable[tuple[float, float]]:
    """(x, what the paper prints) for a row, or for its difference to the row that it is held against."""
    if spec.kind == "norms":
        return
    columns = found.paper.tables[spec.table].columns
    places = zip(spec.x, columns, strict=True) if spec.kind == "lines" else [(last, str(spec.column))]
    for x, column in places:
        place, base = (spec.table, row, column), spec.against.get(row)
        value = reported(found.paper, place) if base is None else gain(found.paper, place, (spec.table, base, column))
        if value is not None:
            yield x, value


def reported(paper: Reproduction, place: Place) -> float | None:
    table, row, column = place
    return paper.tables[table].reported.get(row, {}).get(column)


def gain(paper: Reproduction, one: Place, other: Place) -> float | None:
    """The difference that a paper prints: of two cells, or in words, as a claim on this pair quotes it."""
    first, second = reported(paper, one), reported(paper, other)
    if first is not None and second is not None:
        return first - second
    tests = [claim.test for claim in paper.claims.values() if isinstance(claim.test, Better)]
    pairs = (pair for test in tests for pair in zip(test.pairs, test.reported, strict=False))
    return next((printed for pair, printed in pairs if pair == (one, other)), None)


def _guessing(spec: FigureSpec, found: Measured) -> dict[str, float]:
    """Label -> its best accuracy, of rows that guess everywhere while another does not."""
    table = found.paper.tables[spec.table]
    columns = tuple(table.columns) if spec.kind == "lines" else (str(spec.column),)
    guess, learn = {}, False
    for row in spec.rows or tuple(table.rows):
        cells = [one for column in columns if (one := found.values((spec.table, row, column))).by_seed]
        if cells and all(one.guesses for one in cells):
            guess[_label(spec, row, found)] = max(one.estimate.mean or 0.0 for one in cells)
        learn = learn or any(not one.guesses for one in cells)
    return guess if learn else {}


# --- drawing -----------------------------------------------------------------------------------------------


def _line(axes: Axes, one: Line, color: str, style: str, place: float, spec: FigureSpec) -> None:
    """place: of the line among all, from the middle."""
    ends = [x for x, _ in one.points] if spec.kind != "lines" else list(spec.x)
    x, mean = [x for x, _ in one.points], [cell.mean or 0.0 for _, cell in one.points]
    low, high = zip(*(_interval(cell, spec) for _, cell in one.points), strict=True)
    if len(x) > BARS:
        draw_line(axes, x, mean, color, one.label, style)  # type: ignore[arg-type]
        axes.fill_between(x, low, high, color=color, alpha=0.14, lw=0)
    else:
        x = [_moved(value, place, ends, spec.log) for value in x]
        errors = [[m - end for m, end in zip(mean, low, strict=True)], [e - m for m, e in zip(mean, high, strict=True)]]
        axes.errorbar(
            x, mean, yerr=errors, color=color, ls=style, lw=1.8, elinewidth=1, capsize=2, marker="o", ms=4,
            label=one.label,
        )  # fmt: skip
    if one.printed:
        there = [_moved(value, place if len(one.points) <= BARS else 0.0, ends, spec.log) for value, _ in one.printed]
        axes.plot(
            there, [value for _, value in one.printed], ls="none", marker="D", ms=6, mfc="none", mec=color, mew=1.4
        )


def _interval(cell: Estimate, spec: FigureSpec) -> tuple[float, float]:
    """The 95 % interval; an accuracy's ends at 0 and 100 %."""
    mean, half = cell.mean or 0.0, cell.half_width or 0.0
    low, high = mean - half, mean + half
    if spec.kind == "norms" and not spec.against:
        return max(low, 0.0), high
    if spec.against or "%" not in spec.ylabel:
        return low, high
    return max(low, min(mean, 0.0)), min(high, max(mean, 100.0))


def _moved(x: float, place: float, ends: Sequence[float], log: bool) -> float:
    """Beside its own x, so that the bars of several lines are seen."""
    low, high = min(ends), max(ends)
    return x * (high / low) ** (place * APART) if log else x + place * APART * (high - low)


def _ylabel(spec: FigureSpec, found: Measured) -> str:
    if not spec.against:
        return spec.ylabel
    bases = {found.paper.tables[spec.table].rows[base].label for base in spec.against.values()}
    if spec.kind == "norms":
        return "difference"
    return f"points above {bases.pop()}" if len(bases) == 1 and len(min(bases)) <= SHORT else "difference in points"


def _scales(axes: Axes, spec: FigureSpec) -> None:
    if spec.log:
        axes.set_xscale("log")
    if spec.ylog:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))
        axes.yaxis.set_minor_locator(NullLocator())


def _number_axis(axes: Axes, spec: FigureSpec) -> None:
    axes.set_xlabel(spec.xlabel)
    axes.xaxis.set_major_locator(FixedLocator(spec.x))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))


# --- words -------------------------------------------------------------------------------------------------


def _levels(spec: FigureSpec, found: Measured) -> Iterable[str]:
    """Where the rows end from which the others' differences are."""
    for base in dict.fromkeys(spec.against.values()):
        own = sorted(compared(spec, found)[base].items())
        if own:
            last, level = own[-1][0], estimate(own[-1][1].values())
            width = f" ± {two_digits(level.half_width)}" if level.half_width is not None else ""
            at = f"at {in_figures(last)}" if spec.kind == "lines" else f"in round {in_figures(last)}"
            label = found.paper.tables[spec.table].rows[base].label
            yield f"“{label}”, from which they are taken: {in_figures(level.mean)}{width} {at}."


def _unseen(skipped: Mapping[str, float]) -> Iterable[str]:
    if skipped:
        yield f"Not drawn, since it guesses: {', '.join(f'{who} (at most {at:.1f} %)' for who, at in skipped.items())}."


def _saved(
    canvas: Canvas, folder: Path, name: str, spec: FigureSpec, drawn: Sequence[Line], more: Sequence[str]
) -> Figure:
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    if any(one.printed for one in drawn):
        handles.append(Line2D([], [], ls="none", marker="D", ms=6, mfc="none", mec=INK, mew=1.4))
        labels.append("printed")
    canvas.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=9)
    file = f"{FOLDER}/{name}.png"
    save_figure(canvas, folder / file)
    over = spec.xlabel if spec.kind == "lines" else "rounds"
    what = "paired differences" if spec.against else spec.ylabel
    ends = ", ".join(f"{one.label} {in_figures(one.points[-1][1].mean)}" for one in drawn)
    alt = f"{spec.title}: {what} over {over}, one line per {'pair' if spec.against else 'method'}; at the end: {ends}."
    return Figure(name=name, file=file, alt=alt, caption=" ".join([spec.caption, *_intervals(spec, drawn), *more]))


def _intervals(spec: FigureSpec, drawn: Sequence[Line]) -> Iterable[str]:
    seeds = sorted({cell.n for one in drawn for _, cell in one.points})
    if seeds[-1] > 1:
        shape = "Bands" if all(len(one.points) > BARS for one in drawn) else "Bars"
        of = " of the paired differences" if spec.against else ""
        yield f"{shape}: 95 % intervals{of} over {seeds[-1]} seeds{_fewer(drawn, seeds[-1])}."
    else:
        yield "One seed."
    if any(one.printed for one in drawn):
        yield "Hollow: as printed" + ("." if spec.kind == "lines" else ", for the end of the paper's own training.")


def _fewer(drawn: Sequence[Line], most: int) -> str:
    """Where the lines have fewer of them, in brackets."""
    at: dict[float, set[int]] = {}
    for x, cell in (point for one in drawn for point in one.points):
        at.setdefault(x, set()).add(cell.n)
    if all(len(counts) == 1 for counts in at.values()):
        named = [f"at {in_figures(x)}: {min(counts)}" for x, counts in sorted(at.items()) if min(counts) < most]
    else:
        least = {one.label: min(cell.n for _, cell in one.points) for one in drawn}
        named = [f"{label}: {count}" for label, count in least.items() if count < most]
    return f" ({'; '.join(named)})" if named else ""
