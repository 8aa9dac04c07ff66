"""The plots of a run and of a comparison: matplotlib objects only, no global state, colour-blind safe.

Each function draws one file and returns it with its alternative text, or returns None where there is nothing to
draw.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from fedpriv.report.client_accuracy import last_known, spread_over_clients
from fedpriv.report.pictures import (
    BLACK,
    BLUE,
    DOTS,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    SKY,
    VERMILLION,
    Picture,
    save_themed,
)
from fedpriv.report.words import figure as in_figures
from fedpriv.report.words import in_metric, leading_of_round, mapping_at, number, number_at, percent

Round = Mapping[str, Any]

#: Marks; more of them are pixels in an SVG too, where each would be an element of its own.
MANY = 500


@dataclass(frozen=True)
class Band:
    """Mean and standard deviation over seeds, round by round."""

    label: str
    rounds: Sequence[int]
    mean: Sequence[float]
    std: Sequence[float]
    metric: str = "accuracy"


def draw_run(rounds: Sequence[Round], privacy: Mapping[str, Any], folder: Path) -> list[Picture]:
    """Draws what outsiders may see, as far as the rounds have values for it."""
    drawn = draw_accuracy(rounds, folder), draw_metric(rounds, folder), draw_epsilon(rounds, privacy, folder)
    return [picture for picture in (*drawn, draw_loss(rounds, folder), draw_clipping(rounds, folder)) if picture]


def draw_private(rounds: Sequence[Round], folder: Path) -> list[Picture]:
    """Draws what clients' data are in, as far as the rounds have values for it."""
    drawn = [draw_clients(rounds, folder), draw_noise(rounds, folder), draw_significance(rounds, folder)]
    if any(row.get("train_loss") is not None for row in rounds):
        drawn.append(draw_loss(rounds, folder))
    if any(row.get("update_norm") is not None for row in rounds):
        drawn.append(draw_clipping(rounds, folder))
    return [picture for picture in drawn if picture]


def draw_metric(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """The leading metric of a task that has no accuracy."""
    known = [(row["round"], *leading_of_round(row)) for row in rounds]
    points = [(x, y) for x, name, y in known if name != "accuracy" and y is not None]
    name = next((name for _, name, y in known if name != "accuracy" and y is not None), None)
    if name is None:
        return None
    x, y = [x for x, _ in points], [y for _, y in points]
    figure, axes = blank_figure(f"{name} on the test set")
    draw_line(axes, x, y, BLUE, f"test {name}")
    axes.annotate(
        in_metric(name, y[-1]), (1, y[-1]), xycoords=("axes fraction", "data"), xytext=(4, 0),
        textcoords="offset points", va="center", color=BLUE, fontweight="bold", annotation_clip=False,
    )  # fmt: skip
    ends = f"{in_metric(name, y[0])} in round {x[0]}, {in_metric(name, y[-1])} in round {x[-1]}"
    alt = f"Line plot of {name} on the test set over rounds: {ends}."
    return _saved(figure, folder, Picture("metric.png", alt, "Global model on the test set, where evaluated."))


def draw_accuracy(rounds: Sequence[Round], folder: Path) -> Picture | None:
    x, y = _series(rounds, "accuracy")
    if not x:
        return None
    figure, axes = blank_figure("Accuracy on the test set")
    draw_line(axes, x, y, BLUE, "test accuracy")
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.annotate(  # beside the axes: no line is there
        percent(y[-1]), (1, y[-1]), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
        va="center", color=BLUE, fontweight="bold", annotation_clip=False,
    )  # fmt: skip
    alt = f"Line plot of test accuracy over rounds: {percent(y[0])} in round {x[0]}, {percent(y[-1])} in round {x[-1]}."
    return _saved(figure, folder, Picture("accuracy.png", alt, "Global model on the test set, where evaluated."))


def draw_clients(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """Every client's own model on its own test examples, the worst first, with mean and worst decile as levels."""
    known = last_known(rounds)
    if not known:
        return None
    spread = spread_over_clients(known)
    order = sorted(known, key=lambda client: (known[client], client))
    figure, axes = blank_figure("Each client's own model, own test examples")
    axes.plot(
        range(len(order)), [known[client] for client in order], "o", color=INK, ms=6 if len(order) <= 40 else 3,
        label=f"{len(order)} client{'s' * (len(order) != 1)}", rasterized=len(order) > MANY,
    )  # fmt: skip
    for name, color, style in (("mean", BLUE, "-"), ("worst_decile", VERMILLION, (0, (5, 2)))):
        label = f"{name.replace('_', ' ')} {percent(spread[name])}"
        axes.axhline(spread[name], color=color, ls=style, lw=2, label=label, zorder=1)
    room = 0.15 * max(1 - known[order[0]], 0.05)
    low = max(-0.02, known[order[0]] - room)
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(low, 1)
    axes.set_yticks([tick for tick in ticks if low <= tick < 1.0001])
    axes.set_ylim(low, 1 + room)
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.set_xlabel("client, lowest accuracy first", color=INK)
    axes.set_xticks(range(len(order)) if len(order) <= 20 else [], map(str, order) if len(order) <= 20 else [])
    _legend(figure)
    alt = (
        f"Plot of accuracy by client, ascending, number of clients {len(order)}: mean {percent(spread['mean'])}, "
        f"worst decile {percent(spread['worst_decile'])}."
    )
    caption = (
        "After local training, before upload, at each client's last participation. Worst decile: mean over the tenth "
        "of the clients, at least one, that does worst."
    )
    return _saved(figure, folder, Picture("clients.png", alt, caption))


def draw_loss(rounds: Sequence[Round], folder: Path) -> Picture | None:
    test, train = _series(rounds, "loss"), _series(rounds, "train_loss")
    if not test[0] and not train[0]:
        return None
    figure, axes = blank_figure("Loss")
    words = []
    for (x, y), color, label, style in ((test, BLUE, "test set", "-"), (train, ORANGE, "clients' training", "--")):
        if x:
            draw_line(axes, x, y, color, label, style)
            words.append(f"{label} from {in_figures(y[0])} to {in_figures(y[-1])}")
    _legend(figure)
    caption = "Training loss: mean over the round's clients, a diagnostic for the experimenter."
    return _saved(figure, folder, Picture("loss.png", f"Line plot of loss over rounds: {', '.join(words)}.", caption))


def draw_epsilon(rounds: Sequence[Round], privacy: Mapping[str, Any], folder: Path) -> Picture | None:
    """Epsilon spent so far, with the run's guarantee (and its claim, if that covers the run) as levels.

    An infinite value is a line at the top of the picture, where the axis reads ∞.
    """
    x, spent = _series(rounds, "epsilon_so_far", infinite=True)
    levels = {"verified": number_at(privacy, "verified_epsilon")}
    if privacy.get("claimed_scope", "run") == "run":
        levels["claimed"] = number_at(privacy, "claimed_epsilon")
    if not x:
        return None
    figure, axes = blank_figure("Epsilon over the run")
    place = _with_infinity(axes, [*spent, *(level for level in levels.values() if level is not None)])
    axes.step(x, [place(value) for value in spent], where="post", color=BLACK, lw=2.4, label="spent so far")
    axes.plot(x[-1], place(spent[-1]), "o", color=BLACK, ms=5)
    for (name, level), color, dashes in zip(
        levels.items(), (GREEN, VERMILLION), ((0, (7, 3)), (0, (2, 2))), strict=False
    ):
        if level is not None:
            label = f"{name}, whole run: {in_figures(level)}"
            axes.axhline(place(level), color=color, ls=dashes, lw=2, label=label, zorder=3)
    _legend(figure)
    said = [f"{name} for the whole run {_in_words(level)}" for name, level in levels.items() if level is not None]
    alt = f"Step plot of the epsilon spent so far: {_in_words(spent[-1])} after round {x[-1]}; {', '.join(said)}."
    caption = "Spent so far: the epsilon of the choices that were made, no guarantee given beforehand."
    return _saved(figure, folder, Picture("epsilon.png", alt, caption))


def draw_noise(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """Norms of the update and of its noise (mean over the round's clients) on a logarithmic axis."""
    lines = (
        ("update_norm", SKY, "update", "--"),
        ("clipped_norm", BLUE, "update, clipped", "-"),
        ("noise_norm", VERMILLION, "noise", "-"),
    )
    series = {key: _series(rounds, key, positive=True) for key, *_ in lines}
    if not any(x for x, _ in series.values()):
        return None
    ratio = _median_ratio(rounds)
    title = "Noise against signal" if ratio is None else f"Noise is {in_figures(ratio)} × the clipped update"
    figure, axes = blank_figure(title, "L2 norm, one client")
    for key, color, label, style in lines:
        x, y = series[key]
        if x:
            draw_line(axes, x, y, color, label, style)
    log_axis(axes, [value for _, y in series.values() for value in y])
    _legend(figure)
    last = [f"{label} {in_figures(series[key][1][-1])}" for key, _, label, _ in lines if series[key][0]]
    caption = "Mean over the round's clients, before the server averages; a diagnostic for the experimenter."
    if not series["noise_norm"][0]:
        caption = f"No noise was added. {caption}"
    alt = f"Line plot of L2 norms over rounds, logarithmic; in the last round: {', '.join(last)}."
    return _saved(figure, folder, Picture("noise.png", alt, caption))


def draw_clipping(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """The clip norm, where it is adaptive, with the updates that it clips and the reported statistics of their
    norms.
    """
    moving = [{"round": row["round"], **mapping_at(row, "figures")} for row in rounds]
    x, y = _series(moving, "clip_norm", positive=True)
    if not x:
        return None
    figure, axes = blank_figure("Clip norm against the updates", "L2 norm, one client")
    points = [
        (row["round"], norm)
        for row in moving
        for value in mapping_at(row, "reported_norms").values()
        if (norm := number(value)) is not None and 0 < norm < math.inf
    ]
    if points:
        axes.plot(
            *zip(*points, strict=True), ".", color=DOTS, ms=3, label="norm, as reported", zorder=1,
            rasterized=len(points) > MANY,
        )  # fmt: skip
    updates = _series(rounds, "update_norm", positive=True)
    if updates[0]:
        draw_line(axes, *updates, SKY, "update, mean", "--")
    draw_line(axes, x, y, VERMILLION, "clip norm C")
    log_axis(axes, [*y, *updates[1], *(norm for _, norm in points)])
    _legend(figure)
    alt = f"Line plot of the clip norm over rounds, logarithmic: from {in_figures(y[0])} to {in_figures(y[-1])}."
    caption = "The clip norm moves by what clients report of their updates; the updates themselves are a diagnostic."
    return _saved(figure, folder, Picture("clipping.png", alt, caption))


def draw_significance(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """The share of coordinates that received noise, and the share in the method's schedule."""
    shares = [{"round": row["round"], **mapping_at(row, "figures")} for row in rounds]
    found, planned = (_series(shares, name) for name in ("share_perturbed", "scheduled_share"))
    if not found[0]:
        return None
    figure, axes = blank_figure("Coordinates with noise", "share, mean over clients")
    draw_line(axes, *found, BLUE, "measured")
    if planned[0]:
        draw_line(axes, *planned, ORANGE, "schedule", "--")
    axes.set_ylim(0, 1.02)
    _legend(figure)
    ends = f"{percent(found[1][0])} in the first round and {percent(found[1][-1])} in the last"
    alt = f"Line plot of the share of coordinates with noise over rounds: {ends}."
    caption = "Published, the other coordinates are sent as they are; repaired, nothing is sent for them."
    return _saved(figure, folder, Picture("significance.png", alt, caption))


def draw_comparison(bands: Sequence[Band], folder: Path) -> Picture | None:
    """The leading metric over rounds, a line and a band of one standard deviation for each group: comparison.png."""
    bands = [band for band in bands if band.rounds]
    if not bands:
        return None
    names = {band.metric for band in bands}
    metric = next(iter(names)) if len(names) == 1 else "leading metric"
    accuracy = metric == "accuracy"
    figure, axes = blank_figure(
        f"{metric.capitalize()} on the test set, mean over seeds", inches=(6.2, 3.4 + 0.2 * len(bands))
    )
    styles = cycle([(color, style) for style in ("-", "--", ":") for color in PALETTE])
    for band, (color, style) in zip(bands, styles, strict=False):
        draw_line(axes, band.rounds, band.mean, color, textwrap.fill(band.label, 66), style)
        most = 1.0 if accuracy else math.inf
        low = [max(0.0, mean - std) for mean, std in zip(band.mean, band.std, strict=True)]
        high = [min(most, mean + std) for mean, std in zip(band.mean, band.std, strict=True)]
        axes.fill_between(band.rounds, low, high, color=color, alpha=0.16, lw=0)
    if accuracy:
        axes.set_ylim(max(0, axes.get_ylim()[0]), min(1.04, axes.get_ylim()[1]))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    figure.legend(loc="outside lower left", frameon=False, fontsize=9, labelcolor=INK)
    ends = ", ".join(f"{band.label} {in_metric(band.metric, band.mean[-1])}" for band in bands)
    alt = f"Line plot of mean test {metric} over rounds, one line per configuration; at the end: {ends}."
    return _saved(figure, folder, Picture("comparison.png", alt, "Band: one standard deviation over seeds."))


# --- shared ----------------------------------------------------------------------------------------------


def blank_figure(title: str, ylabel: str = "", inches: tuple[float, float] = (5.2, 3.3)) -> tuple[Figure, Axes]:
    figure = Figure(figsize=inches, dpi=200, facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    axes.set_xlabel("round", color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    return figure, axes


def draw_line(axes: Axes, x: Sequence[int], y: Sequence[float], color: str, label: str, style: str = "-") -> None:
    """A line; with few points each is marked, so that a single one is visible."""
    axes.plot(x, y, color=color, ls=style, lw=2, marker="o" if len(x) <= 12 else None, ms=4, label=label)


def _legend(figure: Figure) -> None:
    """Below the axes, where no line can be: as many columns as fit."""
    labels = figure.axes[0].get_legend_handles_labels()[1]
    fit = sum(len(label) + 7 for label in labels) <= 64
    figure.legend(loc="outside lower left", ncols=len(labels) if fit else 2, frameon=False, fontsize=9, labelcolor=INK)


def _series(
    rounds: Sequence[Round], key: str, *, positive: bool = False, infinite: bool = False
) -> tuple[list[int], list[float]]:
    """(rounds, values) where there is a value to draw; null or text leaves a gap."""
    pairs = [(row["round"], number(row.get(key))) for row in rounds]
    kept = [(x, y) for x, y in pairs if y is not None and (infinite or math.isfinite(y)) and (y > 0 or not positive)]
    return [x for x, _ in kept], [y for _, y in kept]


def _median_ratio(rounds: Sequence[Round]) -> float | None:
    pairs = [(number(row.get("noise_norm")), number(row.get("clipped_norm"))) for row in rounds]
    ratios = [noise / signal for noise, signal in pairs if noise and signal]
    return median(ratios) if ratios else None


def log_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic y axis with plain numbers at its ticks and margins around the (positive) values."""
    low, high = min(values) / 2, max(values) * 2
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))
    axes.yaxis.set_minor_locator(NullLocator())


def _with_infinity(axes: Axes, values: Sequence[float]) -> Callable[[float], float]:
    """Scales the y axis for ``values`` and returns where each is drawn: infinity at the top, labelled ∞."""
    positive = [value for value in values if 0 < value < math.inf]
    high = max(positive, default=1.0)
    logarithmic = bool(positive) and high > 30 * min(positive)
    if logarithmic:
        log_axis(axes, positive)
    else:
        axes.set_ylim(0, 1.1 * high)
    if math.inf not in values:
        return lambda value: max(value, axes.get_ylim()[0])
    low, end = axes.get_ylim()
    top = end * (end / low) ** 0.1 if logarithmic else 1.1 * end
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high] if positive else []
    axes.set_yticks([*ticks, top], [*map(in_figures, ticks), "∞"])
    axes.set_ylim(low, top * (top / low) ** 0.04 if logarithmic else 1.04 * top)
    return lambda value: top if math.isinf(value) else max(value, low)


def _in_words(value: float) -> str:
    return "without finite bound" if math.isinf(value) else in_figures(value)


def _saved(figure: Figure, folder: Path, picture: Picture) -> Picture:
    save_themed(figure, folder / picture.file)
    return picture
