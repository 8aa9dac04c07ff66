"""Proportional hazards in a sum beside Cox regression without privacy, over splits: the table in docs/survival.md. And
how far the Kaplan-Meier curve of all rows is from that without noise, at five sixths of the end and at most.

    python -m tools.survival_figure TABLE.csv SCHEMA.yaml [splits=20] [epsilons=0.5,1,2,8] [folder=F] [OPTION...]

TABLE.csv has the columns of a schema with `task: survival`. German breast cancer (GBSG2) is `lifelines.datasets.
load_gbsg2().to_csv("gbsg2.csv", index=False)`, the flchain table comes from `sksurv.datasets.load_flchain()`. Five
sites, each row a patient, delta 1e-4; a split is a seed. Both models are trained and tested on the same rows with the
same inputs.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
from scipy.stats import t

from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.data.survival import Curve, LifeTable
from fedpriv.privacy.gaussian_dp import gaussian_mu
from fedpriv.runs.start import start_run
from fedpriv.training.task_metrics import concordance
from tools.inference_figure import MODELS

SETTINGS = [
    "strategy=dpsum",
    "dataset=table",
    "model=linear",
    "num_clients=5",
    "clients_per_round=5",
    "num_rounds=20",
    "strategy.server.min_replies=5",
    "strategy.client.clip_norm=2",
    "privacy.delta=1e-4",
    "evaluate.every=0",
    "operations.report=false",
]


def cox(x: np.ndarray, times: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Coefficients [d] of the largest partial likelihood (D. R. Cox 1972; ties as N. Breslow has them), by Newton's
    method; of collinear columns the shortest.
    """
    order = np.argsort(-times, kind="stable")
    x, times, events = x[order], times[order], events[order]
    last = np.searchsorted(-times, -times, side="right") - 1  # of those at risk
    beta = np.zeros(x.shape[1])
    for _ in range(50):
        weight = np.exp(x @ beta - (x @ beta).max())
        total = np.cumsum(weight)[last]
        mean = np.cumsum(x * weight[:, None], axis=0)[last] / total[:, None]
        square = np.cumsum(np.einsum("ni,nj,n->nij", x, x, weight), axis=0)[last] / total[:, None, None]
        score = events @ (x - mean)
        information = np.tensordot(events, square - mean[:, :, None] * mean[:, None, :], axes=1)
        step = np.linalg.pinv(information, rcond=1e-9, hermitian=True) @ score
        beta = beta + step
        if np.abs(step).max() < 1e-9:
            break
    return np.asarray(beta)


def without_privacy(options: list[str]) -> float:
    """C-index of Cox regression on a run's split."""
    data = load_federated(compose(options))
    train, test = data.dataset.train, data.dataset.test
    beta = cox(np.asarray(train.inputs, np.float64), *train.targets.astype(np.float64).T)
    index = concordance(np.asarray(test.inputs, np.float64) @ beta, *test.targets.T)
    assert index is not None
    return index


def curve_errors(options: list[str], epsilon: float, noises: int, draws: int = 200) -> tuple[float, float]:
    """Means of the distance of the noisy curve to that without noise, (at 5/6 of the end, the largest)."""
    data = load_federated(compose(options)).dataset
    times, events = np.concatenate([data.train.targets, data.test.targets]).astype(np.float64).T
    table, rng, std = LifeTable(1.0), np.random.default_rng(0), math.sqrt(noises) / gaussian_mu(epsilon, 1e-4)
    total = table.vectors(times, events.astype(np.int64)).sum(axis=0)
    exact, at = Curve.of(table, total, 1e-9).values, int(np.searchsorted(table.times, 5 / 6 - 1e-9))
    apart = [np.abs(Curve.of(table, total + rng.normal(0, std, table.size), std).values - exact) for _ in range(draws)]
    return float(np.mean(apart, axis=0)[at]), float(np.max(apart, axis=1).mean())


def main(table: str, schema: str, splits: int, epsilons: list[str], folder: Path, more: list[str]) -> None:
    options = [*SETTINGS, f"dataset.root={table}", f"dataset.schema_file={schema}", *more]
    plain = np.array([without_privacy([*options, f"seed={seed}"]) for seed in range(splits)])
    print("| epsilon | C-index | difference to Cox | brier | base brier | survival error |\n|---|---|---|---|---|---|")
    for epsilon in epsilons:
        final = []
        for seed in range(splits):
            place = folder / Path(table).stem / epsilon / str(seed)
            if not (place / "summary.json").exists():
                shutil.rmtree(place, ignore_errors=True)  # of one that was stopped
                start_run(compose([*options, f"privacy.target_epsilon={epsilon}", f"seed={seed}"]), place)
            final.append(json.loads((place / "summary.json").read_text())["metrics"]["final"])
        index, brier, base, error = (
            np.array([one[name] for one in final]) for name in ("c_index", "brier", "base_brier", "survival_error")
        )
        cells = [*map(_mean, (index, index - plain, brier, base, error))]
        print(f"| {epsilon} | {' | '.join(cells)} |", flush=True)
    print(f"| no privacy | {_mean(plain)} | | | | |")
    for epsilon, (noise, noises) in itertools.product(epsilons, MODELS.items()):
        at, most = curve_errors(options, float(epsilon), noises)
        print(f"curve of all rows, epsilon {epsilon}, {noise}: {at:.3f} at 5/6 of the end, the largest {most:.3f}")


def _mean(values: np.ndarray) -> str:
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.3f} ± {half:.3f}"


if __name__ == "__main__":
    files = [argument for argument in sys.argv[1:] if "=" not in argument]
    given = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    number, place = int(given.pop("splits", 20)), Path(given.pop("folder", "outputs/survival"))
    targets = given.pop("epsilons", "0.5,1,2,8").split(",")
    main(files[0], files[1], number, targets, place, [f"{name}={value}" for name, value in given.items()])
