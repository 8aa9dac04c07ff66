"""Flower's own example apps under the guard: what answers, and what sharding and noise cost each of them.

    python -m benchmarks.flower_apps run APP [PICTURES]   # sklearn_iris, fl_tabular, fl_tabular_public, pytorch_cnn,
                                                          # opacus_cnn, personal_head, kaplan_meier
    python -m benchmarks.flower_apps show

The apps are in tests/guard/flower: written after the public ones, with a local file in the place of their loaders. Five
machines, unit row, delta 1e-4. bare: one start on all rows of a machine, no noise. sharded: as under the guard, no
noise. Lines of JSON in benchmarks/results/flower_apps.jsonl. PICTURES: a folder with a folder for each of ten classes.
Settings (`SETTINGS`) were chosen by hand on other seeds; the figures say what a first try gives, not the best.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict

from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard.account import with_epsilon
from fedpriv.guard.record import counts_of, reply_arrays
from fedpriv.guard.shards import Shards
from fedpriv.guard.simulation import simulate_guard
from fedpriv.guard.terms import Terms
from fedpriv.guard.trial import message_of
from fedpriv.mechanisms.noise import SeededNoise, encode_key

ROOT = Path(__file__).resolve().parents[1]
APPS, RESULTS = ROOT / "tests" / "guard" / "flower", ROOT / "benchmarks" / "results" / "flower_apps.jsonl"
SITES, DELTA, EPSILONS = 5, 1e-4, (1.0, 2.0, 4.0)
OWN, SUM = "own", "ddgauss"
#: rows of a machine, shards, clip norm, rounds, seeds, and of an app's rules and server's words what it needs.
SETTINGS: dict[str, dict[str, Any]] = {
    "sklearn_iris": {"rows": 24, "shards": 3, "clip": 0.1, "rounds": 25, "seeds": 5},
    "sklearn_iris_many": {"rows": 400, "shards": 40, "clip": 0.3, "rounds": 10, "seeds": 1},
    "fl_tabular": {"rows": 400, "shards": 10, "repeat": 10, "clip": 0.5, "rounds": 10, "seeds": 1},
    "fl_tabular_public": {"rows": 400, "shards": 10, "repeat": 10, "clip": 0.5, "rounds": 10, "seeds": 1},
    "pytorch_cnn": {"rows": 1000, "shards": 20, "clip": 1.0, "rounds": 5, "seeds": 1, "train": {"lr": 0.1}},
    "opacus_cnn": {"rows": 1000, "shards": 20, "clip": 0.1, "rounds": 5, "seeds": 1, "train": {"lr": 0.1}},
    "personal_head": {"rows": 1000, "shards": 20, "clip": 1.0, "rounds": 5, "seeds": 1},
    "kaplan_meier": {"rows": 200, "shards": 800, "clip": 3.0, "rounds": 1, "seeds": 2},
}
PUBLIC = {"fl_tabular_public": {"public-codes": True}}
PROJECT = """\
[project]
name = "{project}"
version = "1.0.0"
license = "Apache-2.0"
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "example"
[tool.flwr.app.components]
serverapp = "{name}:server"
clientapp = "{name}:app"
[tool.flwr.app.config]
"""


def app_folder(name: str, folder: Path) -> Path:
    """A Flower app's folder, of one of `APPS`."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name, project=name.replace("_", "-")))
    for module in {name, "pytorch_cnn"} if name in ("opacus_cnn", "personal_head") else {name}:
        shutil.copy(APPS / f"{module}.py", folder)
    return folder


# --- data -----------------------------------------------------------------------------------------------------------


def irises(seed: int, rows: int = SITES * 1000 + 1000) -> tuple[list[str], list[list[Any]]]:
    """As many flowers as that, drawn from normal laws with the means and covariances of the three species."""
    names, known = iris(0)
    table, rng = np.array(known), np.random.default_rng(seed)
    of = [table[table[:, 4] == kind, :4] for kind in range(3)]
    kinds = rng.integers(0, 3, rows)
    drawn = [rng.multivariate_normal(of[kind].mean(0), np.cov(of[kind].T)).round(3) for kind in kinds]
    return names, [[*map(float, x), int(kind)] for x, kind in zip(drawn, kinds, strict=True)]


def iris(seed: int) -> tuple[list[str], list[list[Any]]]:
    from sklearn.datasets import load_iris

    found = load_iris()
    rows = [[*map(float, x), int(y)] for x, y in zip(found.data[:, [2, 3, 0, 1]], found.target, strict=True)]
    np.random.default_rng(seed).shuffle(rows)
    return ["petal_length", "petal_width", "sepal_length", "sepal_width", "species"], rows


def incomes(seed: int, rows: int = SITES * 2000 + 2000) -> tuple[list[str], list[list[Any]]]:
    """Nobody's table, of the form of the census table: six numbers, eight codes, and an income that depends on them."""
    rng, law = np.random.default_rng(seed), np.random.default_rng(7)
    numbers, codes = rng.normal(size=(rows, 6)), rng.integers(0, 8, (rows, 8))
    score = numbers @ law.normal(size=6) + sum(law.normal(size=8)[codes[:, place]] for place in range(8))
    label = np.where(score + rng.normal(size=rows) > np.quantile(score, 0.7), ">50K", "<=50K")
    names = [*(f"n{place}" for place in range(6)), *(f"t{place}" for place in range(8)), "income"]
    return names, [
        [*map(float, x.round(4)), *(f"v{code}" for code in c), str(y)]
        for x, c, y in zip(numbers, codes, label, strict=True)
    ]


def lifetimes(seed: int, rows: int = SITES * 200) -> tuple[list[str], list[list[Any]]]:
    rng = np.random.default_rng(seed)
    times, ends = 60 * rng.weibull(2.0, rows), rng.uniform(10, 100, rows)
    return ["T", "E"], [[float(min(t, c).round(3)), int(t <= c)] for t, c in zip(times, ends, strict=True)]


def write_table(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def write_pictures(folder: Path, source: Path, first: int, count: int) -> Path:
    """count pictures, as many of each class, from the first-th on."""
    for place in sorted(place for place in source.iterdir() if place.is_dir()):
        (folder / place.name).mkdir(parents=True)
        for file in sorted(place.iterdir())[first // 10 : (first + count) // 10]:
            shutil.copy(file, folder / place.name)
    return folder


# --- accuracy -------------------------------------------------------------------------------------------------------


def right_iris(arrays: ArrayRecord, rows: Any) -> float:
    weights, bias = arrays.to_numpy_ndarrays()
    table = np.array(rows, float)
    return float(((table[:, :4] @ weights.T + bias).argmax(1) == table[:, 4]).mean())


def right_module(app: Path, name: str, context: dict[str, Any], test: Path) -> Callable[[ArrayRecord, Any], float]:
    """By the app's own loader and network: the part that it trains on, of the test file."""
    import torch

    sys.path.insert(0, str(app))
    module = __import__(name)
    net = getattr(module, "IncomeClassifier", None) or __import__("pytorch_cnn").Net
    found = module.load_data(Context(1, 2, {"data-path": str(test), **context}, RecordDict(), {}))
    loader = found[0] if isinstance(found, tuple) else found
    sys.path.remove(str(app))

    def right(arrays: ArrayRecord, _: Any) -> float:
        model = net()
        model.load_state_dict(arrays.to_torch_state_dict())
        model.eval()
        with torch.no_grad():
            outputs = [(model(x), y) for x, y in loader]
        hits = [(out > 0.5).float() == y if out.shape[1] == 1 else out.argmax(1) == y for out, y in outputs]
        return float(torch.cat([hit.ravel() for hit in hits]).float().mean())

    return right


def start_of(app: Path, name: str, seed: int) -> ArrayRecord:
    import torch

    if name == "sklearn_iris":
        return ArrayRecord([np.zeros((3, 4)), np.zeros(3)])
    torch.manual_seed(seed)
    sys.path.insert(0, str(app))
    module = __import__("fl_tabular" if name == "fl_tabular" else "pytorch_cnn")
    sys.path.remove(str(app))
    return ArrayRecord(getattr(module, "IncomeClassifier", getattr(module, "Net", None))().state_dict())  # type: ignore[misc]


# --- runs -----------------------------------------------------------------------------------------------------------


def run(label: str, pictures: Path | None = None) -> None:
    setting, name = SETTINGS[label], label.removesuffix("_public").removesuffix("_many")
    for seed in range(setting["seeds"]):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            app = app_folder(name, folder / "app")
            if name == "kaplan_meier":
                survival(app, folder, setting, seed)
                continue
            extra, test_rows = PUBLIC.get(label, {}), None
            if pictures is None:
                names, rows = {"sklearn_iris": iris, "sklearn_iris_many": irises}.get(label, incomes)(seed)
                n = setting["rows"]
                files = [
                    write_table(folder / f"site-{site}.csv", names, rows[site * n : (site + 1) * n])
                    for site in range(SITES)
                ]
                test_rows = rows[SITES * n :]
                test = write_table(folder / "test.csv", names, test_rows)
            else:
                n = setting["rows"]
                files = [
                    write_pictures(folder / f"site-{site}", pictures / "train", site * n, n) for site in range(SITES)
                ]
                test = write_pictures(folder / "test", pictures / "test", 0, 1000)
            right = right_iris if name == "sklearn_iris" else right_module(app, name, extra, test)
            start = start_of(app, name, seed)
            rules = {"unit": "row", "shards": setting["shards"], "clip": setting["clip"], "node_config": extra}
            rules |= {"min_answered": 0, "noise_multiplier": 1.0, "repeat": setting.get("repeat", 1)}

            given: Any = {"delta": DELTA, "train_config": setting.get("train"), "seed": seed, "confined": False}
            whole = {**rules, "unit": "client", "shards": 1, "clip": 1e6, "repeat": 1}
            summed = {**rules, "noise": SUM, "sites": SITES, "min_replies": SITES}
            free = float("inf")
            todo = [("bare", whole, free), ("sharded", rules, free)]
            for epsilon in EPSILONS:
                todo += [(SUM, summed, epsilon), (OWN, rules, epsilon)]
            for form, of, epsilon in todo:
                found = simulate_guard(app, files, of, start, setting["rounds"], epsilon=epsilon, **given)
                accuracy = right(found.arrays, test_rows)
                note({"app": label, "seed": seed, "form": form, "epsilon": epsilon, "accuracy": accuracy})


def survival(app: Path, folder: Path, setting: dict[str, Any], seed: int) -> None:
    """Largest error of the survival curve, against that of all rows; single rows, one query."""
    names, rows = lifetimes(seed)
    sys.path.insert(0, str(app))
    module = __import__("kaplan_meier")
    sys.path.remove(str(app))
    metrics = {"at_risk": len(module.TIMES), "died": len(module.TIMES)}
    query = {"metrics": metrics, "clip": setting["clip"], "noise_multiplier": 1.0}
    rules = {
        "apps": (),
        "unit": "row",
        "shards": setting["shards"],
        "single": True,
        "clip": 1.0,
        "noise_multiplier": 1.0,
    }
    answers: list[list[Any]] = []
    for site in range(SITES):
        (data := folder / f"data-{site}" / ".fedpriv").mkdir(parents=True)
        n = setting["rows"]
        write_table(data.parent / "t.csv", names, rows[site * n : (site + 1) * n])
        policy = GuardPolicy.model_validate({**rules, "table": "t.csv"})
        shards = Shards(data.parent, policy, encode_key("guard salt", seed).ljust(32, b"\0")[:32])
        answers.append(
            [
                np.zeros(sum(metrics.values())) if part is None else count(module, part, metrics)
                for part in shards.asked()
            ]
        )

    def curve(counts: Any) -> Any:
        risk, died = np.split(np.maximum(counts, 0), 2)
        return np.cumprod(1 - np.clip(died / np.maximum(risk, 1), 0, 1))

    exact = curve(np.sum([module_counts(module, names, rows)], axis=0))
    note(
        {
            "app": "kaplan_meier",
            "seed": seed,
            "form": "sharded",
            "epsilon": float("inf"),
            "error": float(abs(curve(np.sum(answers, axis=(0, 1))) - exact).max()),
        }
    )
    for epsilon in EPSILONS:
        for form in (SUM, OWN):
            more = {"noise": SUM, "sites": SITES, "min_replies": SITES} if form == SUM else {}
            declared = Terms.of(GuardPolicy.model_validate({**rules, **more, "counts": {"query.survival": query}}))
            terms, size = declared.counted("query.survival")
            terms = with_epsilon(terms, size, 1, DELTA, epsilon)
            sources = [SeededNoise("survival", seed, site, form, int(epsilon)) for site in range(SITES)]
            parts = [
                terms.release(of, size, source).double().numpy() for of, source in zip(answers, sources, strict=True)
            ]
            whole = np.sum(parts, axis=0)
            whole = terms.grid(size).decode(whole) * terms.clip if form == SUM else whole * terms.clip
            note(
                {
                    "app": "kaplan_meier",
                    "seed": seed,
                    "form": form,
                    "epsilon": epsilon,
                    "error": float(abs(curve(whole) - exact).max()),
                }
            )


def count(module: Any, part: Path, metrics: dict[str, int]) -> Any:
    message = message_of(RecordDict())
    message.metadata.message_type = "query.survival"
    reply = module.app(message, Context(1, 2, {"data-path": str(part)}, RecordDict(), {}))
    return counts_of(tuple(reply_arrays(reply, message)), metrics)


def module_counts(module: Any, names: list[str], rows: list[list[Any]]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        size = len(module.TIMES)
        return count(module, write_table(Path(folder) / "all.csv", names, rows), {"at_risk": size, "died": size})


def note(row: dict[str, Any]) -> None:
    print(row, flush=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def show() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    print("| app | bare | sharded | " + " | ".join(f"{f} {e:g}" for f in ("sum", "alone") for e in EPSILONS) + " |")
    for label in SETTINGS:
        cells = []
        for form, epsilon in [
            ("bare", float("inf")),
            ("sharded", float("inf")),
            *((form, epsilon) for form in (SUM, OWN) for epsilon in EPSILONS),
        ]:
            of = [row for row in rows if (row["app"], row["form"], row["epsilon"]) == (label, form, epsilon)]
            values = [100 * row.get("accuracy", row.get("error", 0.0)) for row in of]
            cells.append(f"{np.mean(values):.1f}" if values else "-")
        print(f"| {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    show() if sys.argv[1] == "show" else run(sys.argv[2], Path(sys.argv[3]) if len(sys.argv) > 3 else None)
