"""The pictures of distributed mean estimation: measured errors with their spread, closed forms as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedpriv.report.pictures import (
    BLACK,
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    SKY,
    VERMILLION,
    Picture,
    save_picture,
)
from fedpriv.report.plots import blank_figure, log_axis
from fedpriv.report.words import figure as in_figures

WORDS = {
    "epsilon": "epsilon of a coordinate",
    "n": "clients n",
    "bits": "shared bits M of a pair",
    "group_size": "group size g",
}
COLOURS = {"ldpfl": BLACK, "sq": ORANGE, "corrquant": PURPLE, "coqfl": BLUE, "coqfl-g4": VERMILLION, "coqfl-g8": GREEN}


@dataclass(frozen=True)
class Point:
    """Mean squared error per coordinate at one place of an axis, and its standard error."""

    x: float
    error: float
    standard_error: float
    closed_form: float


@dataclass(frozen=True)
class Curve:
    """One quantiser along an axis: measured points, and the closed form's line as (x, error)."""

    name: str
    points: list[Point]
    line: list[tuple[float, float]]


def draw_sweep(axis: str, curves: Sequence[Curve], setting: str, folder: Path) -> Picture:
    """Draws error-<axis>.png; logarithmic against epsilon and n. A repaired quantiser is the dashed line."""
    figure, axes = blank_figure(f"Error against {WORDS[axis]}", "mean squared error per coordinate", inches=(7.4, 4.2))
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
    _scale(axes, axis, curves)
    axes.set_xlabel(f"{WORDS[axis]}   ({setting})", color=INK)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    ends = ", ".join(f"{curve.name} {in_figures(curve.points[-1].error)}" for curve in curves)
    alt = f"Mean squared error against {WORDS[axis]} ({setting}); at {curves[0].points[-1].x:g}: {ends}."
    caption = "Points: measured, bars of two standard errors. Lines: closed forms, dashed and hollow where repaired."
    if axis == "group_size":
        caption += " A group of two is the antithetic pair; clients left over form a smaller group."
    return save_picture(figure, folder, Picture(f"error-{axis.replace('_', '-')}.png", alt, caption))


def _scale(axes: Axes, axis: str, curves: Sequence[Curve]) -> None:
    """Plain figures at the measured places; an error of exactly 0 is not on a logarithmic axis."""
    if axis in ("epsilon", "n"):
        axes.set_xscale("log")
        positive = [error for curve in curves for _, error in curve.line if error > 0]
        log_axis(axes, positive or [1.0])
    else:
        axes.set_ylim(bottom=0)
    if axis == "bits":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    if axis == "group_size":
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([point.x for point in curves[0].points]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
