"""Apps of Flower's quickstarts under the guard, unchanged, on the hospital table: accuracy and AUC by unit row.

    python -m benchmarks.guard_tables choose    # settings, on made tables of the same size alone
    python -m benchmarks.guard_tables hospital  # five machines, 20 splits, the scikit-learn app
    python -m benchmarks.guard_tables torch     # the same of the torch app, 10 splits
    python -m benchmarks.guard_tables shards    # k against epsilon
    python -m benchmarks.guard_tables chosen    # five machines, 20 splits, one round of 100 steps: the pick of `choose`
    python -m benchmarks.guard_tables search    # settings of one round, on other splits of the hospital table
    python -m benchmarks.guard_tables found     # five machines, 20 splits: what the search found, and Flower's own
    python -m benchmarks.guard_tables whole     # the same without shards: the laws of Flower's own wrappers
    python -m benchmarks.guard_tables practices # ten machines with made tables of 11, 50 and 200 columns
    python -m benchmarks.guard_tables show      # the tables of docs/guard_figures.md

Lines of JSON in benchmarks/results/guard.jsonl, one for each run; what is there is not run again. The app runs in this
process (its answers are the same in a sandbox), and shards, clipping, noise and account are the guard's own code.

Settings of the scikit-learn app: `found` has those that the rule in `found()` picks of
`search`; `hospital` and `shards` have those of a first look at three made tables, `chosen`,
`whole` and `practices` those that are best in `choose`. Of the torch app nothing
was searched: as many shards and rounds, twice the clip norm.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard.release import SENSITIVITY, Terms, claimed_epsilon, with_epsilon
from fedpriv.guard.simulation import simulate_guard

ROOT = Path(__file__).resolve().parents[1]
APPS, RESULTS = ROOT / "tests" / "guard" / "apps", ROOT / "benchmarks" / "results" / "guard.jsonl"
SITES, DELTA, SPLITS, TUNING = 5, 1e-4, 20, 3
PATIENTS, COLUMNS = 3276, (11, 50, 200)
LOCAL, CENTRAL = "flower-local", "flower-central"
#: Splits on which `search` looks; none is among those that are measured.
SEARCHED = range(1000, 1005)
EPSILONS = (0.5, 1.0, 2.0, 4.0)

#: Chosen on `choose`: (shards of a machine, clip norm, rounds, the app's own configuration).
SETTINGS: dict[str, tuple[int, float, int, dict[str, Any]]] = {
    "quickstart-sklearn": (30, 0.25, 3, {"local-epochs": 3}),
    "quickstart-torch": (30, 0.5, 3, {"local-epochs": 10, "learning-rate": 0.1}),
}
Data = tuple[NDArray[np.float64], NDArray[np.int64]]


def made(seed: int, rows: int = 569, columns: int = 30) -> Data:
    """A table of the hospital's size that is nobody's: positive, skewed, correlated inputs within [0, 1], and a label
    that follows from hidden causes of theirs.
    """
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(rows, 6))
    label = hidden[:, 0] + 0.7 * hidden[:, 1] + 0.35 * rng.normal(size=rows) > 0.4
    loads = rng.normal(size=(6, columns)) * (rng.random((6, columns)) < 0.5)
    loads[:2] = np.abs(loads[:2])
    lengths = np.exp(0.35 * (hidden @ loads) / 1.5 + 0.25 * rng.normal(size=(rows, columns)))
    return np.clip(lengths / 5, 0, 1), label.astype(np.int64)


def hospital() -> Data:
    """scikit-learn's breast cancer table, its inputs moved to [0, 1] by the schema's public ranges."""
    from sklearn.datasets import load_breast_cancer

    from fedpriv.config.own_options import CONF
    from fedpriv.data.table_schema import read_schema

    found = load_breast_cancer()
    known = read_schema(CONF / "schema" / "breast_cancer.yaml").columns
    ranges = np.array([known[name].range for name in found.feature_names], float)
    scaled = (found.data - ranges[:, 0]) / (ranges[:, 1] - ranges[:, 0])
    return np.clip(scaled, 0, 1), 1 - found.target


def tables(folder: Path, data: Data, sites: int = SITES) -> list[Path]:
    """A CSV file for each machine."""
    found, names = [], [f"c{number}" for number in range(data[0].shape[1])]
    for site, rows in enumerate(np.array_split(np.arange(len(data[1])), sites)):
        lines = [",".join([*(f"{value:.6g}" for value in data[0][row]), str(data[1][row])]) for row in rows]
        found.append(folder / f"site-{site}.csv")
        found[-1].write_text("\n".join([",".join([*names, "y"]), *lines]) + "\n")
    return found


def start_of(app: str, columns: int) -> ArrayRecord:
    if app == "quickstart-sklearn":
        return ArrayRecord(numpy_ndarrays=[np.zeros((1, columns)), np.zeros(1)])
    import torch

    torch.manual_seed(0)
    return ArrayRecord(_net(columns).state_dict())


def _net(columns: int) -> Any:
    from torch import nn

    class Net(nn.Module):
        """As the app's: names and shapes."""

        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(columns, 16), nn.Linear(16, 2)

    return Net()


def scores(app: str, arrays: ArrayRecord, x: NDArray[np.float64]) -> NDArray[np.float64]:
    values = [array.numpy() for array in arrays.values()]
    if app == "quickstart-sklearn":
        found: NDArray[np.float64] = x @ values[0].ravel() + values[1]
        return found
    w1, b1, w2, b2 = values
    logits = np.maximum(x @ w1.T + b1, 0) @ w2.T + b2
    difference: NDArray[np.float64] = logits[:, 1] - logits[:, 0]
    return difference


def run(app: str, data: Data, seed: int, epsilon: float, form: str, **setting: Any) -> dict[str, Any]:
    """One split: 80 % of the rows on five machines, the rest for the test. form: own, ddgauss, or none: no guard."""
    from sklearn.metrics import roc_auc_score

    k, clip, rounds, config = SETTINGS[app]
    k, clip, rounds = setting.get("shards", k), setting.get("clip", clip), setting.get("rounds", rounds)
    config = config | ({"local-epochs": setting["steps"]} if "steps" in setting else {})
    order = np.random.default_rng(seed).permutation(len(data[1]))
    train, test = order[: int(0.8 * len(order))], order[int(0.8 * len(order)) :]
    if setting.get("scaled"):  # to [-1, 1], as our own trainers have it
        data = (2 * data[0] - 1, data[1])
    rules: dict[str, Any] = {
        "unit": "row",
        "shards": k,
        "clip": clip,
        "api": "numpy",
        "repeat": setting.get("repeat", 1),
    }
    if form == "none":
        rules |= {"shards": 1, "clip": 1e6}
        rounds, config = 3, config | {"local-epochs": 100}
    elif form not in ("own", LOCAL, CENTRAL):
        rules |= {"noise": form}
    with tempfile.TemporaryDirectory() as folder:
        files = tables(Path(folder), (data[0][train], data[1][train]), setting.get("sites", SITES))
        start = start_of(app, data[0].shape[1])
        if form in (LOCAL, CENTRAL):
            arrays, spent = _flowers(app, files, start, rounds, epsilon, form, clip, seed, config)
        else:
            found = simulate_guard(
                APPS / app,
                files,
                rules | {"min_answered": 0},  # a shard of one class has no answer
                start,
                rounds,
                epsilon=epsilon,
                delta=DELTA,
                run_config=config,
                seed=seed,
                confined=False,
            )
            arrays, spent = found.arrays, found.epsilon
    said = scores(app, arrays, data[0][test])
    auc, accuracy = roc_auc_score(data[1][test], said), ((said > 0) == data[1][test]).mean()
    return {"auc": round(float(auc), 5), "accuracy": round(float(accuracy), 5), "spent": spent}


def _flowers(
    app: str,
    files: list[Path],
    start: ArrayRecord,
    rounds: int,
    epsilon: float,
    form: str,
    clip: float,
    seed: int,
    config: dict[str, Any],
) -> tuple[ArrayRecord, float]:
    """Flower's own classes at the noise that costs epsilon by row, and its exact epsilon."""
    from benchmarks.flower_dp import flower_dp

    rules = {"apps": (), "unit": "row", "clip": clip, "noise_multiplier": 1.0}
    size = sum(array.numpy().size for array in start.values())
    terms = with_epsilon(Terms.of(GuardPolicy.model_validate(rules)), size, rounds, DELTA, epsilon)
    multiplier = terms.noise_multiplier / SENSITIVITY
    given: dict[str, Any] = {"form": form, "clip": clip, "multiplier": multiplier, "delta": DELTA, "seed": seed}
    arrays = flower_dp(APPS / app, files, start, rounds, run_config=config, **given)
    return arrays, claimed_epsilon(terms, size, rounds, DELTA)


def jobs(what: str) -> Iterator[dict[str, Any]]:
    sklearn, torch = SETTINGS
    if what == "choose":
        for shards in (15, 30):
            for rounds, steps in ((1, 100), (1, 3), (3, 3), (6, 2)):
                for clip in (0.25, 1.0):
                    tried = {"shards": shards, "clip": clip, "rounds": rounds, "steps": steps}
                    for seed in range(TUNING):
                        yield {"app": sklearn, "seed": seed, "epsilon": 1.0, "form": "ddgauss", **tried}
    elif what in ("chosen", "whole"):
        picked: dict[str, int] = {"rounds": 1, "steps": 100} | ({"shards": 1} if what == "whole" else {})
        for epsilon in (1.0, 4.0, 2.0, 0.5):
            for seed in range(SPLITS):
                for form in ("ddgauss", "own"):
                    yield {"app": sklearn, "seed": seed, "epsilon": epsilon, "form": form, **picked}
    elif what == "search":
        for seed in SEARCHED:
            yield {"app": sklearn, "seed": seed, "epsilon": "inf", "form": "none", "scaled": True}
            for shards in (20, 30, 40):
                for repeat in (1, 30):
                    for steps in (3, 5, 8, 15, 100):
                        tried = {"shards": shards, "repeat": repeat, "steps": steps}
                        yield {"app": sklearn, "seed": seed, "epsilon": 1.0, "form": "ddgauss", **ONE, **tried}
            for steps in (3, 8, 100):
                for form in (LOCAL, CENTRAL):
                    yield {"app": sklearn, "seed": seed, "epsilon": 1.0, "form": form, **ONE, "steps": steps}
    elif what == "found":
        best, flowers = found()
        for seed in range(SPLITS):
            yield {"app": sklearn, "seed": seed, "epsilon": "inf", "form": "none", "scaled": True}
            for epsilon in (1.0, 0.5, 2.0, 4.0):
                for form in ("ddgauss", "own", LOCAL, CENTRAL):
                    picked = flowers.get(form, best)
                    yield {"app": sklearn, "seed": seed, "epsilon": epsilon, "form": form, **ONE, **picked}
    elif what == "practices":
        for seed in range(SPLITS // 4):
            for columns in COLUMNS:
                of = {"app": sklearn, "seed": seed, "columns": columns, "sites": 10}
                yield {**of, "epsilon": "inf", "form": "none"}
                for form in ("ddgauss", "own"):
                    yield {**of, "epsilon": 1.0, "form": form, "rounds": 1, "steps": 100}
    elif what in ("hospital", "torch"):
        for seed in range(SPLITS if what == "hospital" else SPLITS // 2):
            app = sklearn if what == "hospital" else torch
            yield {"app": app, "seed": seed, "epsilon": "inf", "form": "none"}
            for epsilon in EPSILONS:
                for form in ("ddgauss", "own"):
                    yield {"app": app, "seed": seed, "epsilon": epsilon, "form": form}
    else:
        for seed in range(SPLITS):
            for shards in (4, 8, 15, 60):
                for epsilon in EPSILONS:
                    yield {"app": sklearn, "seed": seed, "epsilon": epsilon, "form": "ddgauss", "shards": shards}


#: One round, and inputs within [-1, 1].
ONE: dict[str, Any] = {"rounds": 1, "scaled": True}
#: AUCs that are this near to the best are as good as it; accuracy decides among them.
NEAR = 0.001


def found() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The rule: of the settings in `search` whose mean AUC is within NEAR of the best, the one of best accuracy. For
    the guard by its secure sum, and for Flower's two by their own searches.
    """
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in known().values():
        job = line["job"]
        if job["what"] == "search" and job["form"] != "none":
            setting = {name: job[name] for name in ("shards", "repeat", "steps") if name in job}
            groups.setdefault(job["form"], {}).setdefault(json.dumps(setting), []).append(line)
    picked = {}
    for form, tried in groups.items():
        means = {
            name: [np.mean([line[of] for line in lines]) for of in ("auc", "accuracy")] for name, lines in tried.items()
        }
        best = max(auc for auc, _ in means.values())
        picked[form] = json.loads(max((m[1], name) for name, m in means.items() if m[0] > best - NEAR)[1])
    return picked.pop("ddgauss"), picked


def known() -> dict[str, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {json.dumps(line["job"], sort_keys=True): line for line in map(json.loads, lines)}


def main(what: str) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if what == "show":
        return show()
    RESULTS.parent.mkdir(exist_ok=True)
    done, tables_of = known(), {"hospital": hospital()}
    for job in jobs(what):
        named = {"what": what, **job}
        if json.dumps(named, sort_keys=True) in done:
            continue
        given = {**job, "epsilon": float(job["epsilon"])}
        data = made(job["seed"]) if what == "choose" else tables_of["hospital"]
        if what == "practices":
            data = made(job["seed"], PATIENTS, given.pop("columns"))
        line = {"job": named, **run(given.pop("app"), data, **given)}
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")


def show() -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in known().values():
        job = line["job"]
        tried = [job.get(name) for name in ("shards", "repeat", "clip", "rounds", "steps", "scaled", "columns")]
        key = (job["what"], job["app"], job["form"], *tried, float(job["epsilon"]))
        groups.setdefault(key, []).append(line)
    for key, lines in sorted(groups.items(), key=str):
        print(
            *key,
            f"n={len(lines)}",
            *(f"{name} {_interval([line[name] for line in lines])}" for name in ("accuracy", "auc")),
        )


def _interval(values: Sequence[float]) -> str:
    """Mean, and half of a 95% interval of it."""
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{np.mean(values):.3f} +- {half:.3f}"


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "show")
