"""Draws docs/figures/private_mnist.svg from `tools.private_runs` and from the leaderboard.

python -m tools.private_figure
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import matplotlib as mpl
import numpy as np

from fedpriv.studies.pages import FEATURES
from tools.private_runs import EPSILONS, FIGURES, read

ROOT = Path(__file__).resolve().parents[1]
BOARD = ROOT / "docs" / "results" / "leaderboard" / "leaderboard.csv"
Row = dict[int, tuple[float, float]]  # epsilon -> mean and half width of the 95 % interval over seeds, in percent


def interval(values: list[float]) -> tuple[float, float]:
    """(mean, half width of Student's 95 % interval)."""
    from scipy import stats

    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return float(np.mean(values)), quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def measured(row: str) -> Row:
    """A row of `tools.private_runs`, over all seeds that are there."""
    lines = [line for line in read(FIGURES) if line["row"] == row]
    return {
        epsilon: interval([line["accuracy"] for line in lines if line["epsilon"] == epsilon]) for epsilon in EPSILONS
    }


def ranked(idea: str | None) -> Row:
    """The most accurate entry on pixels at each epsilon of the board of clients against the server: of the papers' own
    ideas (``idea="paper"``), or of all (None).
    """
    with BOARD.open(encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["board"] == "client_server"]
    found: Row = {}
    for epsilon in EPSILONS:
        at = [line for line in lines if float(line["target"]) == epsilon]
        pixels = [line for line in at if not set(FEATURES) & set(line["method"].split("-"))]
        mine = [line for line in pixels if idea in (None, line["idea"])]
        best = max(mine, key=lambda one: float(one["accuracy"]))
        found[epsilon] = float(best["accuracy"]), float(best["accuracy_half_width"])
    return found


def rows() -> dict[str, Row]:
    """What the picture shows, by its legend."""
    return {
        "FedOnce, knows strokes": measured("strokes"),
        "FedOnce, knows that ink is upright": measured("upright"),
        "FedOnce, nothing of digits": measured("nothing of digits"),
        "best without public features": ranked(None),
        "best idea of the five papers": ranked("paper"),
    }


def draw(known: dict[str, Row], file: Path) -> None:
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "fedpriv"  # the same bytes from the same numbers
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    colours = ("#1b6ca8", "#2f9e8f", "#c46a1b", "#666666", "#a03a5a")
    for (name, row), colour, marker in zip(known.items(), colours, "os^xD", strict=False):
        means, widths = zip(*row.values(), strict=True)
        axes.errorbar(list(row), means, widths, color=colour, marker=marker, capsize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.set_ylim(0, 100)
    axes.set_xlabel("epsilon of everything that a client ever sends")
    axes.set_ylabel("MNIST, test accuracy (%)")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(rows(), ROOT / "docs" / "figures" / "private_mnist.svg")
