"""What epsilon costs on docstrings, rows and whole modules protected: the table of docs/text.md.

    python tools/text_figure.py [seeds=8] [folder=outputs/docstrings]

Runs of `experiment=docstrings` with its own settings; a seed draws the test modules, the sites and the noise. Prints
means of the accuracy in % with 95 % intervals (Student's t).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from scipy.stats import t

from fedpriv.config.compose import compose
from fedpriv.runs.start import start_run

#: Column of the table -> options.
UNITS = {"row": (), "module": ("dataset.schema_file=conf/schema/docstrings_modules.yaml",)}
NO_NOISE = ("privacy.target_epsilon=null", "strategy.client.noise_multiplier=0")
EPSILONS = (1, 2, 4, 8, None)


def accuracy(options: tuple[str, ...], folder: Path) -> float:
    """In %, of a run that is carried out if it has not been."""
    if not (folder / "summary.json").exists():
        quiet = ("experiment=docstrings", "evaluate.every=0", "operations.report=false")
        start_run(compose([*quiet, *options]), folder)
    found: float = json.loads((folder / "summary.json").read_text())["accuracy"]["final"]
    return 100 * found


def cell(values: list[float]) -> str:
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.1f} ± {half:.1f}"


def main(seeds: int, folder: Path) -> None:
    for epsilon in EPSILONS:
        target = NO_NOISE if epsilon is None else (f"privacy.target_epsilon={epsilon}",)
        cells = []
        for unit, options in UNITS.items():
            runs = [(folder / unit / str(epsilon) / str(seed), f"seed={seed}") for seed in range(seeds)]
            cells.append(cell([accuracy((*options, *target, seed), place) for place, seed in runs]))
        print(f"| {epsilon or 'no noise'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(int(given.get("seeds", 8)), Path(given.get("folder", "outputs/docstrings")))
