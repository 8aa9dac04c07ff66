"""The pictures of studies, as SVG: a paper's figures redrawn, all boards, and errors of mean estimation.

Every interval is the 95 % t-interval over seeds, of paired differences where a figure is of differences. What a paper
prints for the same cells stands beside it as hollow marks, at the end of a curve where it is a final accuracy.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedpriv.common.files import drawn, write_atomic
from fedpriv.report.pictures import (
    BLACK,
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    SKY,
    VERMILLION,
    Picture,
    themed,
)
from fedpriv.report.plots import blank_figure, draw_line, log_axis
from fedpriv.report.words import figure as in_figures
from fedpriv.studies.mean_estimation import Curve
from fedpriv.studies.pages import best, by_question, metric_name, on_features
from fedpriv.studies.papers import FigureSpec, Paper, Place
from fedpriv.studies.reproduction import Measured
from fedpriv.studies.results import Board, Entry, Estimate, Figure, RunRecord
from fedpriv.studies.statistics import estimate
from fedpriv.studies.verdicts import shown

FOLDER = "figures"
#: Up to so many points an interval is a bar at each, and lines are moved apart; above it, it is a band.
BARS = 12
#: From one line to the next, in parts of the axis.
APART = 0.009
#: x -> seed -> value
Series = Mapping[float, Mapping[int, float]]


def save(canvas: Canvas, file: Path) -> None:
    """The same results give the same file."""
    with rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none"}):
        write_atomic(file, themed(drawn(canvas, "svg", metadata={"Date": None}).decode()), durable=False)


# --- a paper's figures -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """points: (x, estimate over seeds) in order. printed: (x, what the paper prints there)."""

    label: str
    points: tuple[tuple[float, Estimate], ...]
    printed: tuple[tuple[float, float], ...] = ()


def draw_figures(found: Measured, folder: Path) -> list[Figure]:
    """Every figure for which something was measured; the files lie in ``folder``/figures."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    made = (_draw(name, spec, found, folder) for name, spec in found.paper.figures.items())
    return [one for one in made if one is not None]


def _draw(name: str, spec: FigureSpec, found: Measured, folder: Path) -> Figure | None:
    skipped = _guessing(spec, found) if spec.skip_guessing else {}
    shown_lines = [one for one in lines(spec, found) if one.label not in skipped]
    if not shown_lines:
        return None
    ylabel = ("difference" if spec.kind == "norms" else "difference in points") if spec.against else spec.ylabel
    canvas, axes = blank_figure(spec.title, ylabel, inches=(6.2, 3.6 + 0.2 * (len(shown_lines) + 1)))
    if spec.log:
        axes.set_xscale("log")
    if spec.ylog:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))
        axes.yaxis.set_minor_locator(NullLocator())
    styles = cycle([(color, style) for style in ("-", "--", ":") for color in PALETTE])
    for place, (one, (color, style)) in enumerate(zip(shown_lines, styles, strict=False)):
        _line(axes, one, color, style, place - (len(shown_lines) - 1) / 2, spec)
    if spec.against:
        axes.axhline(0.0, color=INK, lw=1.2, ls=(0, (4, 2)), zorder=1)
    if spec.kind == "lines":
        axes.set_xlabel(spec.xlabel)
        _ticks(axes, spec.x)
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    if any(one.printed for one in shown_lines):
        handles.append(Line2D([], [], color=INK, ls="none", marker="D", ms=6, mfc="none", mew=1.4))
        labels.append("printed")
    canvas.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=9)
    file = f"{FOLDER}/{name}.svg"
    save(canvas, folder / file)
    ends = ", ".join(f"{one.label} {in_figures(one.points[-1][1].mean)}" for one in shown_lines)
    alt = f"{spec.title}: {ylabel} over {spec.xlabel if spec.kind == 'lines' else 'rounds'}; at the end: {ends}."
    caption = [spec.caption, *_captions(spec, shown_lines), *_levels(spec, found)]
    unseen = ", ".join(f"{who} (at most {most:.1f} %)" for who, most in skipped.items())
    caption += [f"Not drawn, since it guesses: {unseen}."] if skipped else []
    return Figure(name=name, file=file, alt=alt, caption=" ".join(caption))


def _ticks(axes: Axes, places: Sequence[float]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(list(places)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))


def lines(spec: FigureSpec, found: Measured) -> list[Line]:
    """A line for each row that has a finite value, or for each pair of rows that have seeds in common."""
    all_, shared = [], compared(spec, found)
    for row in spec.against or spec.rows or tuple(found.paper.tables[spec.table].rows):
        base = spec.against.get(row)
        one = shared[row] if base is None else _minus(shared[row], shared[base])
        points = [(x, estimate(seeds.values())) for x, seeds in sorted(one.items())]
        kept = tuple((x, cell) for x, cell in points if cell.mean is not None and abs(cell.mean) < math.inf)
        if kept:
            all_.append(Line(_label(spec, row, found), kept, tuple(_printed(spec, row, kept[-1][0], found))))
    return all_


def _label(spec: FigureSpec, row: str, found: Measured) -> str:
    rows = found.paper.tables[spec.table].rows
    one_base = len(set(spec.against.values())) == 1
    return (
        rows[row].label
        if one_base or not spec.against
        else f"{rows[row].label}, against {rows[spec.against[row]].label}"
    )


def compared(spec: FigureSpec, found: Measured) -> dict[str, Series]:
    """Of the rows of a figure the seeds that all share, place by place: where some have more of them, the others' luck
    is not a difference between methods. All seeds where each row is held against another: a difference is of the seeds
    of its own two rows.
    """
    rows = spec.against or spec.rows or tuple(found.paper.tables[spec.table].rows)
    all_ = {row: series(spec, row, found) for row in (*rows, *spec.against.values())}
    if spec.against:
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
        accuracies = {i: 100 * value for i, value, _ in record.curve if value is not None}
        runs[record.seed] = dict(record.norms) if kind == "norms" else accuracies
    rounds = sorted(set.intersection(*map(set, runs.values()))) if runs else []
    return {i: {seed: run[i] for seed, run in runs.items()} for i in rounds}


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


def reported(paper: Paper, place: Place) -> float | None:
    table, row, column = place
    return paper.tables[table].reported.get(row, {}).get(column)


def gain(paper: Paper, one: Place, other: Place) -> float | None:
    """The difference that a paper prints: of two cells, or in words, as a claim on this pair quotes it."""
    first, second = reported(paper, one), reported(paper, other)
    if first is not None and second is not None:
        return first - second
    tests = [claim.test for claim in paper.claims.values() if claim.test.kind == "better"]
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


def _line(axes: Axes, one: Line, color: str, style: str, place: float, spec: FigureSpec) -> None:
    """place: of the line among all, from the middle."""
    ends = [x for x, _ in one.points] if spec.kind != "lines" else list(spec.x)
    few = len(one.points) <= BARS

    def moved(x: float) -> float:
        """Beside its own x, so that the bars of several lines are seen."""
        apart, low, high = place * APART if few else 0.0, min(ends), max(ends)
        return x * (high / low) ** apart if spec.log else x + apart * (high - low)

    x, mean = [moved(x) for x, _ in one.points], [cell.mean or 0.0 for _, cell in one.points]
    low, high = zip(*(_interval(cell, spec) for _, cell in one.points), strict=True)
    if few:
        errors = [[m - end for m, end in zip(mean, low, strict=True)], [e - m for m, e in zip(mean, high, strict=True)]]
        axes.errorbar(
            x, mean, yerr=errors, color=color, ls=style, lw=1.8, elinewidth=1, capsize=2, marker="o", ms=4,
            label=one.label,
        )  # fmt: skip
    else:
        draw_line(axes, x, mean, color, one.label, style)  # type: ignore[arg-type]
        axes.fill_between(x, low, high, color=color, alpha=0.14, lw=0)
    if one.printed:
        at, printed = zip(*one.printed, strict=True)
        axes.plot(list(map(moved, at)), printed, ls="none", marker="D", ms=6, mfc="none", mec=color, mew=1.4)


def _interval(cell: Estimate, spec: FigureSpec) -> tuple[float, float]:
    """The 95 % interval; an accuracy's ends at 0 and 100 %, a length's at 0."""
    mean, half = cell.mean or 0.0, cell.half_width or 0.0
    low, high = mean - half, mean + half
    if spec.against or (spec.kind != "norms" and "%" not in spec.ylabel):
        return low, high
    return max(low, min(mean, 0.0)), high if spec.kind == "norms" else min(high, max(mean, 100.0))


def _levels(spec: FigureSpec, found: Measured) -> Iterable[str]:
    """Where the rows end from which the others' differences are."""
    for base in dict.fromkeys(spec.against.values()):
        if own := sorted(compared(spec, found)[base].items()):
            last, level = own[-1][0], estimate(own[-1][1].values())
            at = f"at {in_figures(last)}" if spec.kind == "lines" else f"in round {in_figures(last)}"
            label = found.paper.tables[spec.table].rows[base].label
            yield f"“{label}”, from which they are taken: {shown(level, seeds=False)} {at}."


def _captions(spec: FigureSpec, shown_lines: Sequence[Line]) -> Iterable[str]:
    seeds = sorted({cell.n for one in shown_lines for _, cell in one.points})
    if seeds[-1] > 1:
        shape = "Bands" if all(len(one.points) > BARS for one in shown_lines) else "Bars"
        of = " of the paired differences" if spec.against else ""
        fewer = f" (some {seeds[0]})" if seeds[0] < seeds[-1] else ""
        yield f"{shape}: 95 % intervals{of} over {seeds[-1]} seeds{fewer}."
    else:
        yield "One seed."
    if any(one.printed for one in shown_lines):
        yield "Hollow: as printed" + ("." if spec.kind == "lines" else ", for the end of the paper's own training.")


# --- boards ------------------------------------------------------------------------------------------------

#: Color, marker and words of a line, and whose entries it is of: on equal inputs each.
ROLES = (
    (BLUE, "o", "plain methods", lambda entry: entry.idea == "plain" and not on_features(entry)),
    (VERMILLION, "s", "ideas of the papers", lambda entry: entry.idea == "paper" and not on_features(entry)),
    (GREEN, "D", "rivals", lambda entry: entry.idea == "rival" and not on_features(entry)),
    (PURPLE, "^", "on public features", on_features),
)


def draw_overview(boards: Sequence[Board], folder: Path) -> Picture | None:
    """Accuracy against verified epsilon, a panel for each board, in rows by who is trusted: overview.svg, in letters
    that a telephone shows; None where no board has an entry. What is no accuracy has an axis of its own.
    """
    rows = [(one.title, some) for one, here in by_question(boards) if (some := [b for b in here if b.entries])]
    if not rows:
        return None
    heights = [0.35 + 1.65 * math.ceil(len(here) / 2) for _, here in rows]
    canvas = Canvas(figsize=(4.3, 0.5 + sum(heights)), facecolor="white", layout="constrained")
    FigureCanvasAgg(canvas)
    parts = canvas.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, (title, here) in zip(parts, rows, strict=True):
        part.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
        for place, board in enumerate(here):
            _overview_panel(part.add_subplot(math.ceil(len(here) / 2), 2, place + 1), board)
    handles = [Line2D([], [], color=color, marker=mark, ms=4, label=words) for color, mark, words, _ in ROLES]
    handles.append(Line2D([], [], color=INK, ls=(0, (4, 2)), lw=1.2, label="without privacy"))
    canvas.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=10, labelcolor=INK, ncols=2)
    save(canvas, folder / "overview.svg")
    alt = (
        "Accuracy, or what else a board ranks by, against verified epsilon: a panel for each board of the table above."
    )
    caption = (
        "The best of each board's plain methods, papers' ideas and rivals, and of all on features, over the verified "
        "epsilon of a run, logarithmic. Bars: 95 % intervals over seeds. Epsilons of two panels are not comparable."
    )
    return Picture("overview.svg", alt, caption)


def _overview_panel(axes: Axes, board: Board) -> None:
    for color, marker, _, role in ROLES:
        if entries := of_role(board, role):
            x, means = [one.verified_epsilon for one in entries], [one.accuracy.mean or 0.0 for one in entries]
            half = [one.accuracy.half_width or 0.0 for one in entries]
            axes.errorbar(x, means, yerr=half, color=color, lw=1.4, capsize=2, elinewidth=1, marker=marker, ms=4)
    for free in filter(None, (board.reference, board.on_features)):
        axes.axhline(free.mean or 0.0, color=INK, lw=1.2, ls=(0, (4, 2)), zorder=1)
    axes.set_xscale("log")
    targets = sorted({entry.target for entry in board.entries})
    _ticks(axes, targets if len(targets) < 5 else targets[::2])
    axes.set_xlim(targets[0] / 1.6, targets[-1] * 1.6)
    axes.set_ylim(*((0, 102) if board.metric == "accuracy" else (50, 102)))
    axes.set_ylabel(f"{metric_name(board)}, %", fontsize=10, color=INK)
    axes.set_title(textwrap.fill(board.title, 22), fontsize=10, color=INK, loc="left")
    axes.grid(color=FAINT, lw=0.7)
    axes.tick_params(colors=INK, length=0, labelsize=10)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)


def of_role(board: Board, role: Any) -> list[Entry]:
    """The most accurate entry of a role at each target where there is one."""
    targets = sorted({entry.target for entry in board.entries})
    return [one for target in targets if (one := best([entry for entry in board.at(target) if role(entry)]))]


# --- mean estimation ---------------------------------------------------------------------------------------

AXES = {
    "epsilon": "epsilon of a coordinate",
    "n": "clients n",
    "bits": "shared bits M of a pair",
    "group_size": "group size g",
}
COLOURS = {"ldpfl": BLACK, "sq": ORANGE, "corrquant": PURPLE, "coqfl": BLUE, "coqfl-g4": VERMILLION, "coqfl-g8": GREEN}


def draw_sweep(axis: str, curves: Sequence[Curve], setting: str, folder: Path) -> Picture:
    """Draws error-<axis>.svg; logarithmic against epsilon and n. A repaired quantiser is the dashed line."""
    figure, axes = blank_figure(f"Error against {AXES[axis]}", "mean squared error per coordinate", inches=(7.4, 4.2))
    families = [curve.name.removesuffix("-repaired") for curve in curves]
    others = cycle([SKY, *PALETTE])
    colours = {family: COLOURS.get(family) or next(others) for family in dict.fromkeys(families)}
    for curve, family in zip(curves, families, strict=True):
        colour, repaired = colours[family], curve.name != family
        marker: dict[str, Any] = {"color": colour, "ms": 4.5, "mfc": "white" if repaired else colour}
        line: dict[str, Any] = {"color": colour, "lw": 1.6, "ls": (0, (4, 1.5)) if repaired else "-"}
        axes.plot(*zip(*curve.line, strict=True), **line)
        x, y = [point.x for point in curve.points], [point.error for point in curve.points]
        axes.errorbar(x, y, [2 * point.standard_error for point in curve.points], fmt="o", capsize=2, **marker)
        axes.plot([], [], marker="o", label=curve.name, **marker | line)
    if axis in ("epsilon", "n"):
        axes.set_xscale("log")
        log_axis(axes, [error for curve in curves for _, error in curve.line if error > 0] or [1.0])
    else:
        axes.set_ylim(bottom=0)
    if axis == "bits":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        if axis == "group_size":
            axes.set_xscale("log", base=2)
        _ticks(axes, [point.x for point in curves[0].points])
    axes.set_xlabel(f"{AXES[axis]}   ({setting})", color=INK)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    ends = ", ".join(f"{curve.name} {in_figures(curve.points[-1].error)}" for curve in curves)
    alt = f"Mean squared error against {AXES[axis]} ({setting}); at {curves[0].points[-1].x:g}: {ends}."
    caption = "Points: measured, bars of two standard errors. Lines: closed forms, dashed and hollow where repaired."
    if axis == "group_size":
        caption += " A group of two is the antithetic pair; clients left over form a smaller group."
    picture = Picture(f"error-{axis.replace('_', '-')}.svg", alt, caption)
    save(figure, folder / picture.file)
    return picture
