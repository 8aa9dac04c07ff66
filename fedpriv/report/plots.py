"""The plots of a run and of a comparison: matplotlib objects only, no global state, colour-blind safe.

Each function draws one file and returns it with its alternative text, or returns None where there is nothing to
draw.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from fedpriv.report.client_accuracy import last_known, spread_over_clients
from fedpriv.report.compare import BUDGETS, Comparison, Row, mean_curve
from fedpriv.report.pictures import (
    BLACK,
    BLUE,
    DOTS,
    FAINT,
    GREEN,
    INCHES,
    INK,
    ORANGE,
    PALETTE,
    SKY,
    VERMILLION,
    Picture,
    save_themed,
)
from fedpriv.report.run_summary import Answer, Privacy, Risks, mapping_of, number
from fedpriv.report.words import figure as in_figures
from fedpriv.report.words import in_metric, leading_of_round, percent, threat_short

Round = Mapping[str, Any]
Series = tuple[Sequence[int], Sequence[float]]

#: Marks; more of them are pixels in an SVG too, where each would be an element of its own.
MANY = 500
#: Bars of a histogram that are drawn.
MOST_BARS = 100
#: Letters of a legend's line.
WIDTH = 42


def draw_run(rounds: Sequence[Round], privacy: Privacy, folder: Path) -> list[Picture]:
    """Draws what outsiders may see, as far as the rounds have values for it."""
    drawn = draw_metric(rounds, folder), draw_epsilon(rounds, privacy, folder)
    return [picture for picture in (*drawn, draw_loss(rounds, folder), draw_clipping(rounds, folder)) if picture]


def draw_answers(answers: Sequence[Answer], folder: Path) -> list[Picture]:
    """Draws each question whose answer is a histogram, a curve, quantiles, or how well a model does, with intervals."""
    drawn = []
    for place, one in enumerate(answers, 1):
        for part, draw in DRAWN.get(one.question.partition(":")[0], {}).items():
            caption = f"{one.question}. Bars and bands: 95 % intervals."
            with suppress(ValueError, IndexError, KeyError, OverflowError):  # a summary may be anybody's
                every = zip(map(_literal, one.of), one.values, one.low, one.high, strict=True)
                lines = [line for line in every if np.isfinite(line[1:]).all()]
                if (found := draw(_literal(one.question), lines)) is not None:
                    picture = Picture(f"answer-{place}-{part}.png", found[1], caption)
                    drawn.append(_saved(found[0], folder, picture))
    return drawn


def _literal(text: str) -> str:
    """A text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


Line = tuple[str, float, float, float]
Drawing = tuple[Figure, str] | None


def _histogram(question: str, lines: Sequence[Line]) -> Drawing:
    if len(lines) < 2 or len(lines) > MOST_BARS:
        return None
    if question.startswith("top:"):
        lines = sorted(lines, key=lambda line: -line[1])[: int(question.rpartition(":")[2])]
    figure, axes = blank_figure(f"Rows by {question.split(':')[1]}")
    places = range(len(lines))
    axes.bar(places, [max(line[1], 0.0) for line in lines], color=SKY, width=0.9)
    _bars(axes, places, lines)
    every = math.ceil(len(lines) / 8)
    names = [textwrap.shorten(line[0], 18, placeholder="…") for line in lines]
    axes.set_xticks(
        [*places][::every],
        names[::every],
        rotation=25 if len(lines) > 3 else 0,
        ha="right" if len(lines) > 3 else "center",
    )
    axes.set_xlabel("")
    most = max(lines, key=lambda line: line[1])
    return figure, f"Bar chart of {len(lines)} counts; the largest is {most[0]}, about {most[1]:,.0f}."


def _quantiles(question: str, lines: Sequence[Line]) -> Drawing:
    if len(lines) < 2:
        return None
    figure, axes = blank_figure(f"Quantiles of {question.split(':')[1]}", "share of rows below")
    shares, values = [float(line[0]) for line in lines], [line[1] for line in lines]
    low, high = [max(line[1] - line[2], 0.0) for line in lines], [max(line[3] - line[1], 0.0) for line in lines]
    axes.errorbar(values, shares, xerr=[low, high], fmt="o-", color=BLUE, ecolor=INK, capsize=3)
    _unit_axes(axes, "y")
    axes.set_xlabel(question.split(":")[1], color=INK)
    return figure, f"Line of {len(lines)} quantiles from {in_figures(values[0])} to {in_figures(values[-1])}."


def _survival(question: str, lines: Sequence[Line]) -> Drawing:
    figure, axes = blank_figure("Survival", "share alive")
    groups = dict[str, list[Line]]()
    for line in lines:
        groups.setdefault(line[0].rpartition("at ")[0].strip(), []).append(line)
    for (group, part), (color, _) in zip(groups.items(), _styles(), strict=False):
        times = [0.0, *(float(line[0].rpartition("at ")[2]) for line in part)]
        value, low, high = ([1.0, *(line[place] for line in part)] for place in (1, 2, 3))
        axes.step(times, value, where="post", color=color, lw=2, label=group or None)
        axes.fill_between(times, low, high, step="post", color=color, alpha=0.15, lw=0)
    if len(groups) > 1:
        _legend(figure)
    _unit_axes(axes, "y")
    axes.set_xlabel(question.split(":")[1], color=INK)
    ends = ", ".join(f"{group or 'all'} {percent(part[-1][1])}" for group, part in groups.items())
    return (figure, f"Kaplan-Meier curves; at the end: {ends}.") if groups else None


def _calibration(question: str, lines: Sequence[Line]) -> Drawing:
    """Of classes the observed share over the mean score, of numbers the mean target over the prediction."""
    shares = [(float(line[0].rpartition(" ")[2]), *line[1:]) for line in lines if line[0].startswith("observed at ")]
    ends = [
        (line[0].removeprefix("mean at a prediction of ").split(" to "), line[1:])
        for line in lines
        if line[0].startswith("mean at ")
    ]
    points = shares or [((float(low) + float(high)) / 2, *rest) for (low, high), rest in ends]
    if len(points) < 2:
        return None
    figure, axes = blank_figure("Calibration", "observed")
    reach = [0.0, 1.0] if shares else [points[0][0], points[-1][0]]
    axes.plot(reach, reach, color=DOTS, ls="--", lw=1)
    axes.plot([point[0] for point in points], [point[1] for point in points], "o-", color=BLUE, ms=4)
    _bars(axes, [point[0] for point in points], [("", *point[1:]) for point in points])
    if shares:
        _unit_axes(axes, "xy")
    axes.set_xlabel("predicted", color=INK)
    return figure, f"Observed over predicted values at {len(points)} points, with the line of a calibrated model."


def _roc(question: str, lines: Sequence[Line]) -> Drawing:
    by_name = {line[0]: line for line in lines}
    edges = [name.rpartition(" ")[2] for name in by_name if name.startswith("sensitivity at ")]
    if not edges:
        return None
    figure, axes = blank_figure("ROC curve", "sensitivity")
    points = [(1 - by_name[f"specificity at {edge}"][1], *by_name[f"sensitivity at {edge}"][1:]) for edge in edges]
    points.sort()
    axes.plot([0, 1], [0, 1], color=DOTS, ls="--", lw=1)
    axes.plot(
        [0.0, *(point[0] for point in points), 1.0], [0.0, *(point[1] for point in points), 1.0], "o-", color=BLUE, ms=4
    )
    _bars(axes, [point[0] for point in points], [("", *point[1:]) for point in points])
    _unit_axes(axes, "xy")
    axes.set_xlabel("1 - specificity", color=INK)
    auc = by_name["AUC"]
    return figure, f"ROC curve; area {auc[1]:.3f} ({auc[2]:.3f} to {auc[3]:.3f})."


#: Kind of question -> name of a picture -> what draws it.
DRAWN: dict[str, dict[str, Callable[[str, Sequence[Line]], Drawing]]] = {
    "histogram": {"histogram": _histogram},
    "top": {"histogram": _histogram},
    "quantiles": {"quantiles": _quantiles},
    "survival": {"survival": _survival},
    "score": {"calibration": _calibration, "roc": _roc},
}


def _bars(axes: Axes, places: Sequence[float], lines: Sequence[Line]) -> None:
    """Intervals of values as bars."""
    axes.vlines(places, [line[2] for line in lines], [line[3] for line in lines], color=INK, lw=1.2)


def _unit_axes(axes: Axes, names: str) -> None:
    """Axes of shares."""
    for name in names:
        axis = getattr(axes, f"{name}axis")
        axis.set_major_locator(MaxNLocator(nbins=6))
        axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        getattr(axes, f"set_{name}lim")(-0.02, 1.04)


def draw_private(rounds: Sequence[Round], folder: Path) -> list[Picture]:
    """Draws what clients' data are in, as far as the rounds have values for it."""
    drawn = [draw_clients(rounds, folder), draw_noise(rounds, folder), draw_significance(rounds, folder)]
    if any(row.get("train_loss") is not None for row in rounds):
        drawn.append(draw_loss(rounds, folder))
    if any(row.get("update_norm") is not None for row in rounds):
        drawn.append(draw_clipping(rounds, folder))
    return [picture for picture in drawn if picture]


def draw_risks(risks: Risks, folder: Path) -> list[Picture]:
    """ROC curve and calibration curve of two classes on the test set."""
    if not (risks.known and risks.roc and risks.calibration):
        return []
    shares = [row[1:] for row in risks.calibration]
    words = ", ".join(f"{share:.2f} at {mean:.2f}" for mean, share in shares)
    roc = Picture(
        "roc.png",
        "ROC curve of the class with the outcome on the test set.",
        "True against false positive rate at every threshold. The diagonal is chance.",
    )
    calibration = Picture(
        "calibration.png",
        f"Plot of the share of test examples with the outcome over the mean risk, in tenths by risk: {words}.",
        "Tenths of the test set by risk: how many had the outcome. On the diagonal risks are right.",
    )
    return [
        _on_diagonal(roc, risks.roc, "ROC curve, test set", ("false positive rate", "true positive rate"), folder),
        _on_diagonal(calibration, shares, "Calibration, test set", ("mean risk", "share with the outcome"), folder),
    ]


def _on_diagonal(
    picture: Picture, points: Sequence[Sequence[float]], title: str, labels: tuple[str, str], folder: Path
) -> Picture:
    figure, axes = blank_figure(title, labels[1])
    axes.plot((0, 1), (0, 1), color=INK, ls="--", lw=1)
    x, y = zip(*points, strict=True)
    axes.plot(x, y, color=BLUE, lw=2, marker="o" if len(x) <= 12 else None, ms=4)
    axes.set_xlabel(labels[0], color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.02, 1.02))
    return _saved(figure, folder, picture)


def draw_metric(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """The leading metric: accuracy, or that of a task that has none."""
    leading = [(row["round"], *leading_of_round(row)) for row in rounds]
    points = [(name, x, y) for x, name, y in leading if y is not None and math.isfinite(y)]
    if not points:
        return None
    name = points[-1][0]
    x, y = [x for of, x, _ in points if of == name], [y for of, _, y in points if of == name]
    figure, axes = blank_figure(f"{name.capitalize() if name == 'accuracy' else name} on the test set")
    draw_line(axes, x, y, BLUE, f"test {name}")
    if name == "accuracy":
        _percent_axis(axes)
    axes.annotate(  # beside the axes: no line is there
        in_metric(name, y[-1]), (1, y[-1]), xycoords=("axes fraction", "data"), xytext=(4, 0),
        textcoords="offset points", va="center", color=BLUE, fontweight="bold", annotation_clip=False,
    )  # fmt: skip
    what = "test accuracy" if name == "accuracy" else f"{name} on the test set"
    ends = f"{in_metric(name, y[0])} in round {x[0]}, {in_metric(name, y[-1])} in round {x[-1]}"
    file, caption = ("accuracy" if name == "accuracy" else "metric"), "Global model on the test set, where evaluated."
    return _saved(figure, folder, Picture(f"{file}.png", f"Line plot of {what} over rounds: {ends}.", caption))


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
    lines = {"test set": (_series(rounds, "loss"), BLUE), "clients' training": (_series(rounds, "train_loss"), ORANGE)}
    drawn = _lines("Loss", "", lines, dashed="clients' training")
    if drawn is None:
        return None
    words = [f"{label} from {in_figures(y[0])} to {in_figures(y[-1])}" for label, ((x, y), _) in lines.items() if x]
    caption = "Training loss: mean over the round's clients, a diagnostic for the experimenter."
    return _saved(drawn[0], folder, Picture("loss.png", f"Line plot of loss over rounds: {', '.join(words)}.", caption))


def draw_epsilon(rounds: Sequence[Round], privacy: Privacy, folder: Path) -> Picture | None:
    """Epsilon spent so far, with the run's guarantee (and its claim, if that covers the run) as levels.

    An infinite value is a line at the top of the picture, where the axis reads ∞.
    """
    x, spent = _series(rounds, "epsilon_so_far", infinite=True)
    covers = (privacy.claimed_scope or "run") == "run"
    levels = {"verified": privacy.verified_epsilon, "claimed": privacy.claimed_epsilon if covers else None}
    known = {name: level for name, level in levels.items() if level is not None}
    if not x:
        return None
    figure, axes = blank_figure("Epsilon over the run")
    place = _with_infinity(axes, [*spent, *known.values()])
    axes.step(x, [place(value) for value in spent], where="post", color=BLACK, lw=2.4, label="spent so far")
    axes.plot(x[-1], place(spent[-1]), "o", color=BLACK, ms=5)
    looks = {"verified": (GREEN, (0, (7, 3))), "claimed": (VERMILLION, (0, (2, 2)))}
    for name, level in known.items():
        (color, dashes), label = looks[name], f"{name}, whole run: {in_figures(level)}"
        axes.axhline(place(level), color=color, ls=dashes, lw=2, label=label, zorder=3)
    _legend(figure)
    said = [f"{name} for the whole run {_in_words(level)}" for name, level in known.items()]
    alt = f"Step plot of the epsilon spent so far: {_in_words(spent[-1])} after round {x[-1]}; {', '.join(said)}."
    caption = "Spent so far: the epsilon of the choices that were made, no guarantee given beforehand."
    return _saved(figure, folder, Picture("epsilon.png", alt, caption))


def draw_noise(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """Norms of the update and of its noise (mean over the round's clients) on a logarithmic axis."""
    keys = {
        "update": ("update_norm", SKY),
        "update, clipped": ("clipped_norm", BLUE),
        "noise": ("noise_norm", VERMILLION),
    }
    lines = {label: (_series(rounds, key, positive=True), color) for label, (key, color) in keys.items()}
    pairs = [(number(row.get("noise_norm")), number(row.get("clipped_norm"))) for row in rounds]
    ratios = [noise / signal for noise, signal in pairs if noise and signal]
    title = f"Noise is {in_figures(median(ratios))} × the clipped update" if ratios else "Noise against signal"
    drawn = _lines(title, "L2 norm, one client", lines, dashed="update", logarithmic=True)
    if drawn is None:
        return None
    last = [f"{label} {in_figures(y[-1])}" for label, ((x, y), _) in lines.items() if x]
    none = "" if lines["noise"][0][0] else "No noise was added. "
    caption = f"{none}Mean over the round's clients, before the server averages; a diagnostic for the experimenter."
    alt = f"Line plot of L2 norms over rounds, logarithmic; in the last round: {', '.join(last)}."
    return _saved(drawn[0], folder, Picture("noise.png", alt, caption))


def draw_clipping(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """The clip norm, where it is adaptive, with the updates that it clips and the reported statistics of their
    norms.
    """
    moving = _figures(rounds)
    clip, updates = _series(moving, "clip_norm", positive=True), _series(rounds, "update_norm", positive=True)
    if not clip[0]:
        return None
    reported = [
        (row["round"], number(norm)) for row in moving for norm in mapping_of(row.get("reported_norms")).values()
    ]
    points = [(x, norm) for x, norm in reported if norm is not None and 0 < norm < math.inf]
    figure, axes = blank_figure("Clip norm against the updates", "L2 norm, one client")
    if points:
        axes.plot(
            *zip(*points, strict=True), ".", color=DOTS, ms=3, label="norm, as reported", zorder=1,
            rasterized=len(points) > MANY,
        )  # fmt: skip
    if updates[0]:
        draw_line(axes, *updates, SKY, "update, mean", "--")
    draw_line(axes, *clip, VERMILLION, "clip norm C")
    log_axis(axes, [*clip[1], *updates[1], *(norm for _, norm in points)])
    _legend(figure)
    first, last = in_figures(clip[1][0]), in_figures(clip[1][-1])
    alt = f"Line plot of the clip norm over rounds, logarithmic: from {first} to {last}."
    caption = "The clip norm moves by what clients report of their updates; the updates themselves are a diagnostic."
    return _saved(figure, folder, Picture("clipping.png", alt, caption))


def draw_significance(rounds: Sequence[Round], folder: Path) -> Picture | None:
    """The share of coordinates that received noise, and the share in the method's schedule."""
    shares = _figures(rounds)
    found, planned = (_series(shares, name) for name in ("share_perturbed", "scheduled_share"))
    lines = {"measured": (found, BLUE), "schedule": (planned, ORANGE)}
    drawn = _lines("Coordinates with noise", "share, mean over clients", lines, dashed="schedule") if found[0] else None
    if drawn is None:
        return None
    drawn[1].set_ylim(0, 1.02)
    ends = f"{percent(found[1][0])} in the first round and {percent(found[1][-1])} in the last"
    alt = f"Line plot of the share of coordinates with noise over rounds: {ends}."
    caption = "Published, the other coordinates are sent as they are; repaired, nothing is sent for them."
    return _saved(drawn[0], folder, Picture("significance.png", alt, caption))


# --- comparisons -----------------------------------------------------------------------------------------


def draw_comparison(comparison: Comparison, folder: Path) -> Picture | None:
    """The leading metric over rounds, a line and a band of one standard deviation for each group: comparison.png; None
    where no run has a value, or their metrics are not one.
    """
    bands = [(textwrap.fill(group.label(), WIDTH), *mean_curve(group)) for group in comparison.groups]
    bands = [band for band in bands if band[1]]
    if len(names := {metric for *_, metric in bands}) != 1:
        return None
    (metric,) = names
    title = f"Mean {metric} on the test set"
    figure, axes = blank_figure(title, inches=(INCHES, _height(label for label, *_ in bands)))
    for (label, rounds, mean, std, _), (color, style) in zip(bands, _styles(), strict=False):
        draw_line(axes, rounds, mean, color, label, style)
        low, high = ([middle + side * half for middle, half in zip(mean, std, strict=True)] for side in (-1, 1))
        axes.fill_between(rounds, low, high, color=color, alpha=0.16, lw=0)
    if metric == "accuracy":
        _percent_axis(axes)
    figure.legend(loc="outside lower left", frameon=False, fontsize=10, labelcolor=INK)
    ends = ", ".join(f"{' '.join(label.split())} {in_metric(metric, mean[-1])}" for label, _, mean, *_ in bands)
    alt = f"Line plot of mean test {metric} over rounds, one line per configuration; at the end: {ends}."
    return _saved(figure, folder, Picture("comparison.png", alt, "Band: one standard deviation over seeds."))


def draw_tradeoffs(comparison: Comparison, folder: Path) -> list[Picture | None]:
    """The leading metric against the verified epsilon: for each threat model tradeoff.png, tradeoff-2.png, ...; None
    where no method has two epsilons.
    """
    files = (f"tradeoff-{n}.png" if n else "tradeoff.png" for n in (0, *range(2, len(comparison.tables) + 1)))
    return [_tradeoff(*table, folder, file) for table, file in zip(comparison.tables, files, strict=False)]


def _tradeoff(threat: Privacy, rows: Sequence[Row], folder: Path, file: str) -> Picture | None:
    curves: dict[str, list[tuple[float, Row]]] = {}  # rows with a finite epsilon, by what tells their curves apart
    flat: list[tuple[str, float]] = []
    for row in rows:
        epsilon, metric = row.figures["verified_epsilon"].mean, row.figures["metric"].mean
        if metric is not None and (epsilon is None or math.isinf(epsilon)):
            flat.append((textwrap.fill(f"{row.group.label()}: no finite epsilon", WIDTH), metric))
        elif metric is not None and epsilon is not None and epsilon > 0:
            along = [name for name in row.group.options if name.rpartition(".")[2] in BUDGETS]
            curves.setdefault(textwrap.fill(row.group.label(along), WIDTH), []).append((epsilon, row))
    names = {row.leading for row in rows}
    if len(names) > 1 or not any(len({epsilon for epsilon, _ in curve}) > 1 for curve in curves.values()):
        return None
    (name,) = names
    title = f"{name.replace('_', ' ').capitalize()} against epsilon"
    figure, axes = blank_figure(title, inches=(INCHES, _height([*curves, *(label for label, _ in flat)])))
    ordered = sorted(curves.items(), key=lambda item: min(epsilon for epsilon, _ in item[1]))
    words = []
    for (label, curve), (color, style) in zip(ordered, _styles(), strict=False):
        curve.sort(key=lambda point: point[0])
        found = [(epsilon, row.figures["metric"].mean or 0.0) for epsilon, row in curve]
        x, y = zip(*found, strict=True)
        bars = [math.nan if (half := row.figures["metric"].half_width) is None else half for _, row in curve]
        axes.errorbar(
            x, y, yerr=bars, color=color, ls=style, lw=2, marker="o", ms=4, capsize=3,
            label=label,
        )  # fmt: skip
        points = [f"{in_metric(name, metric)} at {in_figures(epsilon)}" for epsilon, metric in zip(x, y, strict=True)]
        words.append(f"{' '.join(label.split())} {', '.join(points)}")
    for label, metric in flat:
        axes.axhline(metric, color=INK, ls=(0, (2, 2)), lw=1.2, label=label)
    axes.set_xlabel("verified epsilon (logarithmic)", color=INK)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis, (1, 2, 5))
    ticks = [epsilon for curve in curves.values() for epsilon, _ in curve]
    axes.set_xlim(min(ticks) / 1.3, max(ticks) * 1.3)
    axes.grid(axis="x", color=FAINT, lw=0.8)
    if name == "accuracy":
        _percent_axis(axes)
    figure.legend(loc="outside lower left", frameon=False, fontsize=10, labelcolor=INK)
    alt = f"Plot of {name} against the verified epsilon, {threat_short(threat)}: {'; '.join(words)}."
    caption = "Mean over seeds; bars: its 95 % interval (Student's t), where there are two seeds or more."
    return _saved(figure, folder, Picture(file, alt, caption))


# --- shared ----------------------------------------------------------------------------------------------


def _height(labels: Iterable[str]) -> float:
    """Inches of a figure with these labels below its axes."""
    return 2.8 + 0.2 * sum(label.count("\n") + 1 for label in labels)


def blank_figure(title: str, ylabel: str = "", inches: tuple[float, float] = (INCHES, 2.9)) -> tuple[Figure, Axes]:
    figure = Figure(figsize=inches, dpi=200, facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(textwrap.fill(title, int(9 * inches[0])), loc="left", fontsize=12, fontweight="bold", color=INK)
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


def _lines(
    title: str, ylabel: str, lines: Mapping[str, tuple[Series, str]], dashed: str, logarithmic: bool = False
) -> tuple[Figure, Axes] | None:
    """A figure with a line for each label that has values; None where none has any."""
    if not any(x for (x, _), _ in lines.values()):
        return None
    figure, axes = blank_figure(title, ylabel)
    for label, ((x, y), color) in lines.items():
        if x:
            draw_line(axes, x, y, color, label, "--" if label == dashed else "-")
    if logarithmic:
        log_axis(axes, [value for (_, y), _ in lines.values() for value in y])
    _legend(figure)
    return figure, axes


def _styles() -> cycle[tuple[str, str]]:
    return cycle([(color, style) for style in ("-", "--", ":") for color in PALETTE])


def _legend(figure: Figure) -> None:
    """Below the axes, where no line can be: as many columns as fit."""
    labels = figure.axes[0].get_legend_handles_labels()[1]
    fit = sum(len(label) + 7 for label in labels) <= WIDTH
    figure.legend(loc="outside lower left", ncols=len(labels) if fit else 1, frameon=False, fontsize=10, labelcolor=INK)


def _figures(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """What the method itself reports, round by round."""
    return [{**mapping_of(row.get("figures")), "round": row["round"]} for row in rounds]


def _series(rounds: Sequence[Round], key: str, *, positive: bool = False, infinite: bool = False) -> Series:
    """(rounds, values) where there is a value to draw; null or text leaves a gap."""
    pairs = [(row["round"], number(row.get(key))) for row in rounds]
    kept = [(x, y) for x, y in pairs if y is not None and (infinite or math.isfinite(y)) and (y > 0 or not positive)]
    return [x for x, _ in kept], [y for _, y in kept]


def log_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic y axis with plain numbers at its ticks and margins around the (positive) values."""
    low, high = max(min(values) / 2, 1e-300), max(values) * 2  # half of the least number is 0
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    _plain_ticks(axes.yaxis, (1, 2, 5) if high / low < 100 else (1,))


def _percent_axis(axes: Axes) -> None:
    """The axis fits what is drawn; bars and bands end at 0 and 100 %."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(1.0, high))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0 if high - low > 0.06 else None, symbol=" %"))


def _plain_ticks(axis: Any, subs: tuple[int, ...]) -> None:
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))
    axis.set_minor_locator(NullLocator())


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
