"""A plot of the partition: the label distribution of every client."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpriv.data.types import FederatedData, ResampledPartition
from fedpriv.report.pictures import FAINT, INCHES, INK, SOFT, save_themed

MAX_BARS = 100  # clients; beyond, a bar would be thinner than its gap
MAX_COLOURS = 20  # classes; beyond, their colours cannot be distinguished
MAX_ROWS = 1000  # clients; beyond, a row of the heat map would be less than a pixel
MANY = 500  # pieces of bars; more of them are pixels in an SVG too, where each would be an element of its own


def label_counts(data: FederatedData) -> np.ndarray:
    """int64 [clients, classes]: examples of each class per client, including its local test set; for the first clients
    only, where each client draws its own.
    """
    most = MAX_ROWS if isinstance(data.partition, ResampledPartition) else data.num_clients
    labels, num_classes = data.dataset.train.targets, len(data.dataset.classes)
    return np.stack(
        [
            np.bincount(labels[data.train_indices(client)], minlength=num_classes)
            + np.bincount(labels[data.test_indices(client)], minlength=num_classes)
            for client in range(min(most, data.num_clients))
        ]
    )


def draw_label_distribution(data: FederatedData, path: Path | str) -> None:
    """Writes a PNG to `path`, and an SVG beside it: stacked bars, or a heat map for many clients (> 100) or classes
    (> 20).
    """
    counts = label_counts(data)
    shown = counts[:MAX_ROWS]
    num_clients, num_classes = shown.shape
    bars = num_clients <= MAX_BARS and num_classes <= MAX_COLOURS
    rows_height = float(np.clip(0.13 * num_clients, 1.6, 11.0))
    figure = Figure(figsize=(INCHES, rows_height + 1.7), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    if bars:
        _draw_bars(axes, shown, data.dataset.classes)
    else:
        _draw_heat_map(figure, axes, shown, data.dataset.classes)
    axes.set_ylabel("client", color=SOFT)
    axes.tick_params(colors=SOFT, length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(f"Who holds what: {data.dataset.name}", x=0.01, ha="left", color=INK, fontsize=12, weight="bold")
    axes.set_title(
        textwrap.fill(_summary(counts, len(shown), data.num_clients), 44), loc="left", color=SOFT, fontsize=10, pad=8
    )
    save_themed(figure, Path(path))


def _draw_bars(axes: Axes, counts: np.ndarray, classes: tuple[str, ...]) -> None:
    clients = np.arange(len(counts))
    colours = colormaps["tab10" if len(classes) <= 10 else "tab20"].colors  # type: ignore[attr-defined]
    start = np.zeros(len(counts), dtype=np.int64)
    for label, name in enumerate(classes):
        axes.barh(
            clients, counts[:, label], left=start, height=0.82, color=colours[label], label=name, alpha=0.9,
            rasterized=counts.size > MANY,
        )  # fmt: skip
        start += counts[:, label]
    axes.set_ylim(len(counts) - 0.4, -0.6)  # client 0 on top
    axes.set_xlim(0, start.max() * 1.01)
    axes.set_yticks(_ticks(len(counts)))
    axes.set_xlabel("examples", color=SOFT)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(
        title="class", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=10, labelcolor=INK,
        handlelength=1.0, handleheight=1.0, borderaxespad=0.2, alignment="left",
    )  # fmt: skip


def _draw_heat_map(figure: Figure, axes: Axes, counts: np.ndarray, classes: tuple[str, ...]) -> None:
    some = np.ma.masked_equal(counts, 0)  # zero counts stay blank
    image = axes.imshow(some, aspect="auto", cmap="magma_r", vmin=0, interpolation="nearest")
    axes.set_facecolor("#f4f4f4")
    if len(classes) <= MAX_COLOURS:
        axes.set_xticks(range(len(classes)), classes)
        if max(map(len, classes)) > 3:
            axes.tick_params(axis="x", rotation=40)
            for name in axes.get_xticklabels():
                name.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(_ticks(len(counts)))
    axes.set_xlabel("class", color=SOFT)
    scale = figure.colorbar(image, ax=axes, pad=0.02, aspect=30)
    scale.set_label("examples", color=SOFT)
    scale.ax.tick_params(colors=SOFT, length=0)
    scale.outline.set_visible(False)  # type: ignore[operator]


def _ticks(num_clients: int) -> np.ndarray:
    """At most a dozen round client numbers."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if num_clients <= 12 * step)
    return np.arange(0, num_clients, step)


def _summary(counts: np.ndarray, num_shown: int, num_clients: int) -> str:
    totals = counts.sum(axis=1)
    same = totals.min() == totals.max()
    spread = f"{totals[0]:,}" if same else f"{totals.min():,} to {totals.max():,}, median {np.median(totals):,.0f}"
    examples = f"{totals.sum():,} examples; " if len(counts) == num_clients else ""  # not all clients were counted
    words = f"{num_clients:,} clients, {examples}per client {spread}"
    return words if num_shown == num_clients else f"{words}\nthe first {num_shown:,} clients are shown"
