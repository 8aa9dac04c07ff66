"""Ranks and risks of `dpsum` on a table of two classes: the figures of docs/tables.md.

    python -m tools.risks_figure [splits=20] [OPTION=VALUE ...]

Options are those of `experiment=hospitals`, as `dataset=practices privacy.target_epsilon=2`; a split is a seed. Printed
are means over the splits of accuracy in %, AUC and Brier score with 95 % intervals (Student's t), and the median of the
calibration slope: of the run, of the same run without recalibration, and of scikit-learn's logistic regression of the
same training rows. A slope is left out where a test set's classes are separated, so that there is none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import t
from sklearn.linear_model import LogisticRegression

from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.runs.start import start_run
from fedpriv.training.task_metrics import RISKS, of_two

WAYS = {"dpsum": (), "without recalibration": ("strategy.client.recalibration=0",)}


def without_privacy(options: list[str]) -> list[float]:
    """Accuracy, AUC, Brier score and slope of logistic regression."""
    data = load_federated(compose(options)).dataset
    train, test = ((np.array(part.inputs), np.array(part.targets)) for part in (data.train, data.test))
    odds = LogisticRegression(max_iter=10_000).fit(*train).decision_function(test[0])
    metrics = of_two(odds, test[1])
    return [float(((odds > 0) == test[1]).mean()), *(metrics.get(name, np.nan) for name in RISKS)]


def of_run(options: list[str], folder: Path) -> list[float]:
    start_run(compose([*options, "evaluate.every=0", "operations.report=false"]), folder)
    summary = json.loads((folder / "summary.json").read_text())
    final = summary["metrics"]["final"]
    return [summary["accuracy"]["final"], *(final.get(name, np.nan) for name in RISKS)]


def line(name: str, values: np.ndarray) -> str:
    half = t.ppf(0.975, max(1, len(values) - 1)) * values.std(0, ddof=min(1, len(values) - 1)) / np.sqrt(len(values))
    means = values.mean(0)
    shown = [f"{100 * means[0]:.1f} ± {100 * half[0]:.1f}", *(f"{means[i]:.3f} ± {half[i]:.3f}" for i in (1, 2))]
    return f"| {name} | {' | '.join(shown)} | {np.nanmedian(values[:, 3]):.2f} |"


def main(arguments: list[str]) -> None:
    splits = int(next((item.partition("=")[2] for item in arguments if item.startswith("splits=")), "20"))
    options = ["experiment=hospitals", *(item for item in arguments if not item.startswith("splits="))]
    values: dict[str, list[list[float]]] = {name: [] for name in (*WAYS, "no privacy")}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(splits):
            for name, more in WAYS.items():
                values[name].append(of_run([*options, *more, f"seed={seed}"], Path(folder) / f"{name}{seed}"))
            values["no privacy"].append(without_privacy([*options, f"seed={seed}"]))
    print(f"{' '.join(options)}: {splits} splits\n\n| | accuracy | AUC | Brier | slope |\n|---|---|---|---|---|")
    for name, rows in values.items():
        print(line(name, np.array(rows)))
    both = np.array(values["dpsum"]) - np.array(values["no privacy"])
    print(line("difference", both).rpartition(" | ")[0] + " | |")


if __name__ == "__main__":
    main(sys.argv[1:])
