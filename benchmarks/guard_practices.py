"""Where sharding ends: ten made practices with 11, 50 and 200 columns, the guard beside `dpsum` at the same epsilon.

    python -m benchmarks.guard_practices search  # shards, rounds and clip norm, on other tables of the same generator
    python -m benchmarks.guard_practices found   # ten tables for each number of columns, in the secure sum
    python -m benchmarks.guard_practices dpsum   # the same tables, rows and machines by this project's own trainer
    python -m benchmarks.guard_practices show

Lines of JSON in benchmarks/results/guard_practices.jsonl. The tables are those of `dataset=practices` with other seeds
and numbers of columns: 3,276 patients, x = z + 0.5 u_k, |w| = 1.75, inputs moved from [-4, 4] to [-1, 1] for both. 80 %
of the rows are for training. Under the guard runs the message quickstart, unchanged, as in `benchmarks.guard_apps`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.guard_apps import NEAR, Setting, Table, interval, judged, model_after
from benchmarks.guard_tables import DELTA, ROOT

RESULTS = ROOT / "benchmarks" / "results" / "guard_practices.jsonl"
COLUMNS, SITES, PATIENTS, RANGE = (11, 50, 200), 10, 3276, 4.0
SEARCHED, TABLES = range(1000, 1004), 10
SHARDS, ROUNDS, CLIPS = (20, 60, 200), (5, 20), (1.0, 3.0)
#: With `guard.single`: of 262 rows about 200 are alone in their shard.
LONE, LONE_ROUNDS, LONE_CLIPS = 1000, (20,), (12.0, 24.0, 48.0, 96.0)
FREE: tuple[Setting, ...] = ({"rounds": 20, "epochs": 5, "rate": 3.0}, {"rounds": 20, "epochs": 1, "rate": 3.0})


def practices(seed: int, columns: int) -> Table:
    """Inputs within [-1, 1]; practice k has the rows k, k + 10, ..."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=columns)
    weights *= 1.75 / np.linalg.norm(weights)
    site = np.arange(PATIENTS) % SITES
    x = rng.normal(size=(PATIENTS, columns)) + 0.5 * rng.normal(size=(SITES, columns))[site]
    y = rng.random(PATIENTS) < 1 / (1 + np.exp(-(x @ weights + np.linspace(-2.2, -0.2, SITES)[site])))
    order = rng.permutation(PATIENTS)
    train = order[: int(0.8 * PATIENTS)]
    machines = tuple(train[site[train] == number] for number in range(SITES))
    return Table(np.clip(x / RANGE, -1, 1), y.astype(np.int64), machines, order[len(train) :])


def guarded(columns: int, seed: int, form: str, epsilon: str | float, **setting: Any) -> dict[str, Any]:
    table = practices(seed, columns)
    model, spent = model_after("message", table, seed, float(epsilon), form, setting)
    auc, accuracy = judged("message", table, model)
    return {"auc": auc, "accuracy": accuracy, "spent": spent}


def dpsum(columns: int, seed: int, epsilon: float) -> dict[str, Any]:
    """By the settings that the method has for every table."""
    import fedpriv

    table = practices(seed, columns)
    names = [f"x{number}" for number in range(columns)]
    site = {int(row): number for number, rows in enumerate(table.machines) for row in rows}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, rows in (("train.csv", np.concatenate(table.machines)), ("test.csv", table.test)):
            lines = [",".join([*names, "practice", "y"])]
            for row in rows:
                cells = [f"{value:.6g}" for value in table.x[row]]
                lines.append(",".join([*cells, f"p{site.get(int(row), 0)}", str(table.y[row])]))
            (folder / file).write_text("\n".join(lines) + "\n")
        columns_of = "".join(f"  {column}: {{range: [-1, 1]}}\n" for column in names)
        target = 'target: {column: y, task: classification, classes: ["0", "1"]}\n'
        (folder / "schema.yaml").write_text(
            f"{target}columns:\n{columns_of}  practice: {{ignore: true}}\nmissing: refuse\n"
        )
        options = [
            *("experiment=hospitals", "dataset=table", "partition=column", "partition.column=practice"),
            *(f"num_clients={SITES}", f"clients_per_round={SITES}", f"seed={seed}", "operations.report=false"),
            *(f"privacy.target_epsilon={epsilon}", f"privacy.delta={DELTA}"),
            *(f"dataset.root={folder}/train.csv", f"dataset.test_root={folder}/test.csv"),
            f"dataset.schema_file={folder}/schema.yaml",
        ]
        run = fedpriv.run(options, folder=str(folder / "run"), quiet=True)
        given: Any = {column: table.x[table.test][:, place] for place, column in enumerate(names)}
        said, spent = np.asarray(run.model.probabilities(given))[:, 1], run.claimed_epsilon
    from sklearn.metrics import roc_auc_score

    truth = table.y[table.test]
    found = {"auc": float(roc_auc_score(truth, said)), "accuracy": float(((said > 0.5) == truth).mean())}
    return {name: round(value, 5) for name, value in found.items()} | {"spent": spent}


def jobs(what: str) -> Iterator[dict[str, Any]]:
    for columns in COLUMNS:
        if what == "search":
            for seed in SEARCHED:
                for rest in FREE:
                    yield {"columns": columns, "seed": seed, "form": "none", "epsilon": "inf", **_whole(rest)}
                for shards in SHARDS:
                    for rounds in ROUNDS:
                        for clip in CLIPS:
                            tried = {"shards": shards, "rounds": rounds, "clip": clip, "epochs": 1, "rate": 10 * clip}
                            yield {"columns": columns, "seed": seed, "form": "ddgauss", "epsilon": 1.0, **tried}
                for rounds in LONE_ROUNDS:
                    for clip in LONE_CLIPS:
                        tried = {"shards": LONE, "single": True, "rounds": rounds, "clip": clip, "epochs": 1}
                        tried["rate"] = 10 * clip
                        yield {"columns": columns, "seed": seed, "form": "ddgauss", "epsilon": 1.0, **tried}
        elif what == "found":
            for seed in range(TABLES):
                yield {"columns": columns, "seed": seed, "form": "none", "epsilon": "inf", **picked(columns, "none")}
                for shards in (*SHARDS, LONE):
                    best = picked(columns, "ddgauss", shards)
                    yield {"columns": columns, "seed": seed, "form": "ddgauss", "epsilon": 1.0, **best}
        else:
            for seed in range(TABLES):
                yield {"columns": columns, "seed": seed, "epsilon": 1.0}


def _whole(rest: Setting) -> Setting:
    return {"shards": 1, "clip": 1.0, **rest}


def picked(columns: int, form: str, shards: int | None = None) -> Setting:
    """By the rule of `guard_apps`; shards: among the settings with so many."""
    tried: dict[str, list[dict[str, Any]]] = {}
    for line in known_lines().values():
        job = line["job"]
        if (job["what"], job["columns"], job.get("form")) == ("search", columns, form) and shards in (
            None,
            job["shards"],
        ):
            named = ("what", "columns", "seed", "epsilon", "form")
            tried.setdefault(json.dumps({name: job[name] for name in job if name not in named}), []).append(line)
    means = {
        name: [float(np.mean([line[of] for line in lines])) for of in ("auc", "accuracy")]
        for name, lines in tried.items()
    }
    best = max(auc for auc, _ in means.values())
    return dict(json.loads(max((m[1], name) for name, m in means.items() if m[0] > best - NEAR)[1]))


def known_lines() -> dict[str, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {json.dumps(line["job"], sort_keys=True): line for line in map(json.loads, lines)}


def main(what: str) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if what == "show":
        return show()
    done = known_lines()
    for job in jobs(what):
        named = {"what": what, **job}
        if (key := json.dumps(named, sort_keys=True)) not in done:
            line = {"job": named, **(dpsum(**job) if what == "dpsum" else guarded(**job))}
            done[key] = line
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")


def show() -> None:
    lines = known_lines().values()
    for columns in COLUMNS:
        groups: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            job = line["job"]
            if job["what"] != "search" and job["columns"] == columns:
                named = ("form", "shards", "rounds", "clip", "epochs", "rate")
                key = " ".join(f"{name}={job[name]}" for name in named if name in job) or "dpsum"
                groups.setdefault(key, []).append(line)
        for name, mine in sorted(groups.items()):
            print(
                columns, name, f"n={len(mine)}", *(interval([line[of] for line in mine]) for of in ("accuracy", "auc"))
            )


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["show"]))
