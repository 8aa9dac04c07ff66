"""How often the 95 % intervals of quantiles hold, and how wide they are: the table in docs/statistics.md.

    python -m tools.quantile_figure [draws=1000] [rounds=2]

Five columns of 5,000 rows, whose truth is the quantile of these rows: weight (a range that fits), children (8 values,
no step), score (5 values, with a step), income and sensor (a range about a thousand times as wide as the values). Noise
is that of a Gaussian at delta 1e-5, of one (secure sum) or of five (each site its own). The release's own rounding is
left out (`tests/runs/test_asking.py` asks through runs).
"""

from __future__ import annotations

import math
import sys

import numpy as np

from fedpriv.common.command_line import command
from fedpriv.data.questions import Bins, root
from fedpriv.privacy.gaussian_dp import gaussian_mu

SHARES = (0.01, 0.25, 0.5, 0.9)
EPSILONS = (0.5, 1.0, 4.0)
DELTA, ROWS = 1e-5, 5000
#: Trust model -> noises in the sum.
MODELS = {"secure sum": 1, "own noise": 5}


def columns(rows: int = ROWS) -> dict[str, tuple[np.ndarray, float, float, float | None]]:
    """Name -> (values [rows], low, high, step)."""
    rng = np.random.default_rng(0)
    return {
        "weight": (rng.normal(80, 15, rows), 0, 200, None),
        "children": (rng.poisson(1.3, rows).clip(0, 7).astype(float), 0, 12, None),
        "score": (rng.choice([0.0, 25, 50, 75, 100], rows, p=[0.05, 0.2, 0.3, 0.25, 0.2]), 0, 100, 25),
        "income": (rng.lognormal(10.3, 0.5, rows), 0, 1e8, None),
        "sensor": (rng.normal(4e5, 100, rows), 0, 1e6, None),
    }


def trials(name: str, epsilon: float, noises: int, draws: int, rounds: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """(whether an interval held [draws, shares], its width [draws, shares])."""
    values, low, high, step = columns()[name]
    scaled = (2 * (values.clip(low, high) - low) / (high - low) - 1).astype(np.float32).astype(np.float64)
    true, first = np.quantile(values, SHARES, method="inverted_cdf"), Bins.of_range(low, high, step, SHARES)
    std, rng = math.sqrt(noises * rounds) / gaussian_mu(epsilon, DELTA), np.random.default_rng(1)

    def noisy(bins: Bins) -> np.ndarray:
        places = bins.places(scaled)
        matrix, length = root(len(bins.edges) - 1)
        total = np.zeros(bins.size)
        total[: len(matrix) - 1] = matrix[1:] @ np.bincount(places, minlength=len(matrix) - 1) / length
        return total + rng.normal(0, std, bins.size)

    held, widths = [], []
    for _ in range(draws):
        bins, totals = first, [noisy(first)]
        for _ in range(rounds - 1):
            bins = bins.zoomed(totals[-1], std)
            totals.append(noisy(bins))
        asked = totals if bins.final else totals[-1:]
        _, lows, highs, _ = bins.answer(np.mean(asked, axis=0), std / math.sqrt(len(asked)))
        held.append((lows <= true) & (true <= highs))
        widths.append(highs - lows)
    return np.array(held), np.array(widths)


@command
def main(*, draws: int = 1000, rounds: int = 2) -> None:
    shares = ", ".join(f"{share:g}" for share in SHARES)
    print(f"| column | epsilon | noise | held, of {shares} | median width, of {shares} |\n|---|---|---|---|---|")
    for name in columns():
        for epsilon in EPSILONS:
            for model, noises in MODELS.items():
                held, widths = trials(name, epsilon, noises, draws, rounds)
                shown = [
                    "; ".join(f"{n:.3f}" for n in held.mean(0)),
                    "; ".join(f"{n:.4g}" for n in np.median(widths, 0)),
                ]
                print(f"| {name} | {epsilon:g} | {model} | {shown[0]} | {shown[1]} |", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
