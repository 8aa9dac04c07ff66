"""Small charts as inline SVG: no picture file, no script, colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from fedpriv.report.words import figure, percent
from fedpriv.studies.results import Estimate

#: round, accuracy, loss, as `RunRecord.curve` has them.
Point = tuple[int, float | None, float | None]

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 18, 38
#: Up to so many points each is marked, so that a single one is seen.
MARKED = 12


class _Scale(NamedTuple):
    """From a value to a place in the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def accuracy_chart(curve: Sequence[Point]) -> Markup | None:
    """Accuracy over rounds, None where it was never evaluated."""
    points = [(x, y) for x, y, _ in curve if y is not None and math.isfinite(y)]
    top = max(1.0, *(y for _, y in points)) if points else 1.0
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    return _line_chart("Accuracy on the test set", points, ticks, (0.0, top), percent)


def loss_chart(curve: Sequence[Point]) -> Markup | None:
    return _from_zero("Loss on the test set", [(x, y) for x, _, y in curve if y is not None])


def norm_chart(norms: Sequence[tuple[int, float]]) -> Markup | None:
    return _from_zero("Mean length of the clients’ updates", norms)


def _from_zero(title: str, found: Sequence[tuple[int, float]]) -> Markup | None:
    points = [(x, y) for x, y in found if math.isfinite(y)]
    high = max((y for _, y in points), default=1.0)
    ticks = _ticks(0.0, high if high > 0 else 1.0, 4)
    return _line_chart(title, points, ticks, (0.0, max(ticks[-1], high)), figure)


def _line_chart(
    title: str,
    points: Sequence[tuple[int, float]],
    ticks: Sequence[float],
    limits: tuple[float, float],
    words: Callable[[float], str],
) -> Markup | None:
    if not points:
        return None
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(limits[0], *(y for _, y in points), ticks[0]), limits[1]
    across = (
        _Scale(first, last, LEFT, WIDTH - RIGHT) if last > first else _Scale(first - 1, first + 1, LEFT, WIDTH - RIGHT)
    )
    up = _Scale(low, high if high > low else low + 1, HEIGHT - BOTTOM, TOP)
    ends = f"{words(points[0][1])} in round {points[0][0]}, {words(points[-1][1])} in round {points[-1][0]}"
    parts = [
        Markup('<svg class="chart" role="img" viewBox="0 0 {} {}"><title>{} over rounds: {}.</title>').format(
            WIDTH, HEIGHT, title, ends
        )
    ]
    for tick in ticks:
        parts.append(
            Markup('<path class="grid" d="M{} {}H{}"/><text x="{}" y="{}" text-anchor="end">{}</text>').format(
                LEFT, up(tick), WIDTH - RIGHT, LEFT - 8, up(tick) + 4, words(tick).replace(".0 %", " %")
            )
        )
    for tick in _round_ticks(first, last):
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
                across(tick), HEIGHT - BOTTOM + 18, f"{tick:,}"
            )
        )
    parts.append(
        Markup('<text x="{}" y="{}" text-anchor="end">round</text>').format(WIDTH - RIGHT, HEIGHT - BOTTOM + 34)
    )
    places = [(across(x), up(y)) for x, y in points]
    parts.append(Markup('<polyline points="{}"/>').format(" ".join(f"{x},{y}" for x, y in places)))
    if len(places) <= MARKED:
        parts.append(Markup('<path class="dots" d="{}"/>').format("".join(f"M{x} {y}h0" for x, y in places)))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from low to at least high."""
    raw = (high - low) / about
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * base for factor in (1, 2, 2.5, 5, 10) if factor * base >= raw * 0.999)
    count = max(1, math.ceil((high - low) / step - 1e-9))
    return [low + index * step for index in range(count + 1)]


def _round_ticks(first: int, last: int) -> list[int]:
    if last - first < 6:
        return list(range(first, last + 1))
    step = max(1, int(_ticks(0, last - first, 5)[1]))
    return [first, *(tick for tick in range(first - first % step + step, last + 1, step) if tick - first > step / 2)]


class Mark(NamedTuple):
    """A vertical line in a strip: where, and of which kind ("zero", "reference")."""

    value: float
    kind: str


def strip(estimate: Estimate | None, low: float, high: float, marks: Sequence[Mark] = ()) -> Markup:
    """A mean with its interval between low and high; the figures beside it say the same, so it is hidden from readers
    who do not see it.
    """
    if estimate is None or estimate.mean is None or not math.isfinite(estimate.mean) or not high > low:
        return Markup("")
    scale = _Scale(low, high, 4, 156)

    def place(value: float) -> float:
        return scale(min(max(value, low), high))

    width = estimate.half_width or 0.0
    parts = [Markup('<svg class="strip" viewBox="0 0 160 18" aria-hidden="true"><path class="axis" d="M4 9H156"/>')]
    parts += [
        Markup('<path class="{}" d="M{} 2V16"/>').format(mark.kind, place(mark.value))
        for mark in marks
        if math.isfinite(mark.value)
    ]
    if width > 0 and math.isfinite(width):
        parts.append(
            Markup('<path class="interval" d="M{} 9H{}"/>').format(
                place(estimate.mean - width), place(estimate.mean + width)
            )
        )
    parts.append(Markup('<circle cx="{}" cy="9" r="4"/></svg>').format(place(estimate.mean)))
    return Markup("").join(parts)


def around_zero(estimate: Estimate | None) -> Markup:
    """A difference and its interval beside zero."""
    if estimate is None or estimate.mean is None or not math.isfinite(estimate.mean):
        return Markup("")
    reach = abs(estimate.mean) + (estimate.half_width or 0.0)
    return strip(estimate, -1.15 * reach, 1.15 * reach, [Mark(0.0, "zero")]) if 0 < reach < math.inf else Markup("")


def range_of(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Limits that hold all means with their intervals; (0, 0) where there are none."""
    ends = [
        estimate.mean + side * (estimate.half_width or 0.0)
        for estimate in estimates
        if estimate.mean is not None
        for side in (-1, 1)
    ]
    known = [end for end in ends if math.isfinite(end)]
    return (min(known), max(known)) if known else (0.0, 0.0)
