"""Proportional hazards in a sum beside Cox regression without privacy, over splits: the table in docs/tables.md.

    python -m tools.survival_figure TABLE.csv SCHEMA.yaml [splits=20] [epsilons=0.5,1,2,8] [folder=F] [OPTION...]

TABLE.csv has the columns of a schema with `task: survival`. German breast cancer (GBSG2) is `lifelines.datasets.
load_gbsg2().to_csv("gbsg2.csv", index=False)`, the flchain table comes from `sksurv.datasets.load_flchain()`. Five
sites, each row a patient, delta 1e-4; a split is a seed. Both models are trained and tested on the same rows with the
same inputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from scipy.stats import t

from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.runs.start import start_run
from fedpriv.training.task_metrics import concordance

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


def main(table: str, schema: str, splits: int, epsilons: list[str], folder: Path, more: list[str]) -> None:
    options = [*SETTINGS, f"dataset.root={table}", f"dataset.schema_file={schema}", *more]
    plain = np.array([without_privacy([*options, f"seed={seed}"]) for seed in range(splits)])
    print("| epsilon | C-index | difference to Cox | brier | base brier | survival error |\n|---|---|---|---|---|---|")
    for epsilon in epsilons:
        final = []
        for seed in range(splits):
            place = folder / Path(table).stem / epsilon / str(seed)
            if not (place / "summary.json").exists():
                start_run(compose([*options, f"privacy.target_epsilon={epsilon}", f"seed={seed}"]), place)
            final.append(json.loads((place / "summary.json").read_text())["metrics"]["final"])
        index, brier, base, error = (
            np.array([one[name] for one in final]) for name in ("c_index", "brier", "base_brier", "survival_error")
        )
        cells = [*map(_mean, (index, index - plain, brier, base, error))]
        print(f"| {epsilon} | {' | '.join(cells)} |", flush=True)
    print(f"| no privacy | {_mean(plain)} | | | | |")


def _mean(values: np.ndarray) -> str:
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.3f} ± {half:.3f}"


if __name__ == "__main__":
    files = [argument for argument in sys.argv[1:] if "=" not in argument]
    given = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    number, place = int(given.pop("splits", 20)), Path(given.pop("folder", "outputs/survival"))
    targets = given.pop("epsilons", "0.5,1,2,8").split(",")
    main(files[0], files[1], number, targets, place, [f"{name}={value}" for name, value in given.items()])
