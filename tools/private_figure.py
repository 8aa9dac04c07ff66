"""Draws docs/figures/private_mnist.svg from the measured accuracies in docs/figures/private_mnist.json.

python -m tools.private_figure
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib as mpl
import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures"
#: 97.5 % quantile of Student's t with 3 degrees of freedom: four seeds.
QUANTILE = 3.182


def interval(values: list[float]) -> tuple[float, float]:
    """(mean, half width of the 95 % interval) of four runs."""
    assert len(values) == 4
    return float(np.mean(values)), QUANTILE * float(np.std(values, ddof=1)) / math.sqrt(4)


def draw(known: dict[str, list[list[float]]], epsilons: list[float], other: float, file: Path) -> None:
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "fedpriv"  # the same bytes from the same numbers
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for (name, rows), colour, marker in zip(known.items(), ("#1b6ca8", "#c46a1b"), "os", strict=True):
        means, widths = zip(*map(interval, rows), strict=True)
        axes.errorbar(epsilons, means, widths, color=colour, marker=marker, capsize=4, label=name)
    axes.plot([8], [other], "x", color="#666666", ms=9, label="best of the other methods, pixels")
    axes.set_xscale("log", base=2)
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_ylim(35, 100)
    axes.set_xlabel("epsilon of everything that a client ever sends")
    axes.set_ylabel("MNIST, test accuracy (%)")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower center", fontsize=9)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    found = json.loads((FOLDER / "private_mnist.json").read_text())
    names = {"with what is known of strokes": "fedonce", "without": "fedonce, without knowledge of strokes"}
    known = {label: found[name] for name, label in names.items()}
    draw(known, found["epsilon"], found["best of the other methods at 8"], FOLDER / "private_mnist.svg")


if __name__ == "__main__":
    main()
