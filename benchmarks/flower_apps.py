"""Flower's own example apps under the guard: what answers, and what sharding and noise cost each of them.

    python -m benchmarks.flower_apps run APP [PICTURES]     # of `SETTINGS`
    python -m benchmarks.flower_apps ending APP [PICTURES]  # without noise, with other numbers of shards
    python -m benchmarks.flower_apps show

The apps are in tests/guard/flower: written after the public ones, with a local file in the place of their loaders. Five
machines, unit row, delta 1e-4. bare: one start on all rows of a machine, no noise. sharded: as under the guard, no
noise. Accuracy is on rows that no machine has, by the app's own loader and network. Lines of JSON in
benchmarks/results/flower_apps.jsonl; what is there is not run again. Settings (`SETTINGS`) were chosen by hand on other
seeds; the figures say what a first try gives, not the best. PICTURES: a folder with train/ and test/, each with a
folder for each of ten classes.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard.arrays import model_of
from fedpriv.guard.record import counts_of, reply_arrays
from fedpriv.guard.release import Terms, with_epsilon
from fedpriv.guard.shards import Shards, Starts
from fedpriv.guard.simulation import in_process, simulate_guard
from fedpriv.guard.trial import message_of
from fedpriv.mechanisms.noise import SeededNoise, encode_key

ROOT = Path(__file__).resolve().parents[1]
APPS, RESULTS = ROOT / "tests" / "guard" / "flower", ROOT / "benchmarks" / "results" / "flower_apps.jsonl"
SITES, DELTA, EPSILONS = 5, 1e-4, (1.0, 2.0, 4.0)
OWN, SUM, FREE = "own", "ddgauss", float("inf")
#: rows of a machine, shards, clip norm, rounds, seeds; ending: other numbers of shards; and of an app's rules and its
#: server's words what it needs.
_TABULAR = {"app": "fl_tabular", "rows": 1000, "shards": 5, "repeat": 5, "clip": 0.5, "rounds": 5, "seeds": 5}
_PICTURES = {"rows": 400, "shards": 5, "clip": 1.0, "rounds": 3, "seeds": 5}
SETTINGS: dict[str, dict[str, Any]] = {
    "sklearn_iris": {"rows": 24, "shards": 3, "clip": 0.1, "rounds": 10, "seeds": 10},
    "sklearn_iris_many": {"rows": 400, "shards": 10, "clip": 0.1, "rounds": 10, "seeds": 5}
    | {"app": "sklearn_iris", "ending": (5, 20)},
    "fl_tabular": _TABULAR,
    "fl_tabular_public": _TABULAR | {"config": {"public-codes": True}},
    "pytorch_cnn": _PICTURES | {"train": {"lr": 0.1}},
    "opacus_cnn": _PICTURES | {"rows": 100, "clip": 0.1, "rounds": 1},
    "personal_head": _PICTURES | {"rows": 120, "rounds": 2},
    "kaplan_meier": {"rows": 200, "shards": 800, "clip": 3.0, "rounds": 1, "seeds": 10},
}
NETWORKS = ("pytorch_cnn", "opacus_cnn", "personal_head")
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
    for module in {name, "pytorch_cnn"} if name in NETWORKS else {name}:
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


def write_pictures(folder: Path, source: Path, seed: int, counts: Any, site: int) -> Path:
    """As many pictures of each class as counts [sites, classes] gives this site; no two sites have the same one."""
    for kind, place in enumerate(sorted(place for place in source.iterdir() if place.is_dir())):
        (folder / place.name).mkdir(parents=True)
        files = np.random.default_rng([seed, kind]).permutation(np.array(sorted(place.iterdir()), object))
        for file in files[counts[:site, kind].sum() : counts[: site + 1, kind].sum()]:
            shutil.copy(file, folder / place.name)
    return folder


def written(label: str, folder: Path, seed: int, pictures: Path | None) -> tuple[list[Path], list[Path], Any]:
    """The machines' data, those to test on (one file for all, or one for each machine), and the rows of the first."""
    rows, name = SETTINGS[label]["rows"], app_of(label)
    if name not in NETWORKS:
        made = {"sklearn_iris": iris, "sklearn_iris_many": irises, "kaplan_meier": lifetimes}.get(label, incomes)
        names, table = made(seed)
        files = [
            write_table(folder / f"site-{site}.csv", names, table[site * rows : (site + 1) * rows])
            for site in range(SITES)
        ]
        rest = table[SITES * rows :] or table
        return files, [write_table(folder / "test.csv", names, rest)], rest
    assert pictures is not None, f"{label} needs PICTURES"
    counts = np.full((SITES, 10), rows // 10)
    if name == "personal_head":  # two classes of each machine's own are four fifths of its pictures
        counts = np.full((SITES, 10), rows // 40)
        for site in range(SITES):
            counts[site, 2 * site : 2 * site + 2] = rows * 2 // 5
    files = [write_pictures(folder / f"site-{site}", pictures / "train", seed, counts, site) for site in range(SITES)]
    counts = counts if name == "personal_head" else np.full((1, 10), 100)
    tests = [
        write_pictures(folder / f"test-{site}", pictures / "test", seed, counts, site) for site in range(len(counts))
    ]
    return files, tests, None


# --- accuracy -------------------------------------------------------------------------------------------------------


def right_iris(arrays: ArrayRecord, rows: Any) -> float:
    weights, bias = arrays.to_numpy_ndarrays()
    table = np.array(rows, float)
    return float(((table[:, :4] @ weights.T + bias).argmax(1) == table[:, 4]).mean())


def imported(app: Path, name: str) -> Any:
    sys.path.insert(0, str(app))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(app))


def right_module(app: Path, label: str, test: Path) -> Callable[[ArrayRecord, Any], float]:
    """By the app's own loader and network: the part that it trains on, of the test file."""
    import torch

    module, config = imported(app, app_of(label)), SETTINGS[label].get("config", {})
    loaded = module.load_data(Context(1, 2, {"data-path": str(test), **config}, RecordDict(), {}))
    loader = loaded[0] if isinstance(loaded, tuple) else loaded
    batches = list(loader)

    def right(arrays: ArrayRecord, _: Any) -> float:
        model = network(app, label)
        model.load_state_dict(arrays.to_torch_state_dict())
        model.eval()
        with torch.no_grad():
            outputs = [(model(x), y) for x, y in batches]
        hits = [(out > 0.5).float() == y if out.shape[1] == 1 else out.argmax(1) == y for out, y in outputs]
        return float(torch.cat([hit.ravel() for hit in hits]).float().mean())

    return right


def network(app: Path, label: str) -> Any:
    if app_of(label) == "fl_tabular":
        return imported(app, "fl_tabular").IncomeClassifier()
    return imported(app, "pytorch_cnn").Net()


def start_of(app: Path, label: str, seed: int) -> ArrayRecord:
    import torch

    if app_of(label) == "sklearn_iris":
        return ArrayRecord([np.zeros((3, 4)), np.zeros(3)])
    torch.manual_seed(seed)
    return ArrayRecord(network(app, label).state_dict())


# --- runs -----------------------------------------------------------------------------------------------------------


def app_of(label: str) -> str:
    return str(SETTINGS[label].get("app", label))


def rules_of(label: str, shards: int, **more: Any) -> dict[str, Any]:
    setting = SETTINGS[label]
    rules = {"unit": "row", "shards": shards, "clip": setting["clip"], "node_config": setting.get("config", {})}
    repeat = shards if setting.get("repeat") else 1  # as many rows in each start as without shards
    return rules | {"min_answered": 0, "noise_multiplier": 1.0, "repeat": repeat} | more


def known() -> dict[tuple[Any, ...], dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {tuple(row[name] for name in KEY): row for row in map(json.loads, lines)}


KEY = ("app", "seed", "form", "epsilon", "shards")


def run(label: str, pictures: Path | None = None, ending: bool = False) -> None:
    """Every form and seed that is not yet in the results."""
    setting, there, name = SETTINGS[label], known(), app_of(label)
    shards, summed = setting["shards"], {"noise": SUM, "sites": SITES, "min_replies": SITES}
    whole = {"unit": "client", "clip": 1e6, "repeat": 1}
    forms = [("bare", 1, whole, FREE), ("sharded", shards, {}, FREE)]
    for epsilon in EPSILONS:
        forms += [(SUM, shards, summed, epsilon), (OWN, shards, {}, epsilon)]
    if ending:
        forms = [("sharded", other, {}, FREE) for other in setting.get("ending", ())]
    for seed in range(setting["seeds"]):
        todo = [each for each in forms if (label, seed, each[0], each[3], each[1]) not in there]
        if not todo:
            continue
        with tempfile.TemporaryDirectory() as place:
            app = app_folder(name, Path(place) / "app")
            files, tests, rows = written(label, Path(place), seed, pictures)
            measure = survival if name == "kaplan_meier" else accuracy
            for row in measure(label, app, files, tests, rows, seed, todo):
                note({"app": label, "seed": seed, **row})


Form = tuple[str, int, dict[str, Any], float]


def accuracy(
    label: str, app: Path, files: list[Path], tests: list[Path], rows: Any, seed: int, todo: list[Form]
) -> Iterator[dict[str, Any]]:
    import torch

    setting, start = SETTINGS[label], start_of(app, label, seed)
    rights = [right_iris] if rows and app_of(label) == "sklearn_iris" else [right_module(app, label, t) for t in tests]
    given: Any = {"delta": DELTA, "train_config": setting.get("train"), "seed": seed, "confined": False}
    for form, shards, more, epsilon in todo:
        row = {"form": form, "epsilon": epsilon, "shards": shards}
        rules = rules_of(label, shards, **more)
        torch.manual_seed(seed)  # apps draw from the libraries' own generators
        np.random.seed(seed)  # noqa: NPY002 - scikit-learn's solver reads it
        if label == "personal_head" and form == "bare":
            models = own_heads(app, files, start, setting["rounds"])
        else:
            models = [simulate_guard(app, files, rules, start, setting["rounds"], epsilon=epsilon, **given).arrays]
            models *= len(rights)
        row["accuracy"] = float(np.mean([right(model, rows) for right, model in zip(rights, models, strict=True)]))
        if form == "sharded":
            starts = Starts()
            told = ConfigRecord({"server-round": 1, **setting.get("train", {})})
            content = RecordDict({"arrays": start, "config": told})
            model = model_of(content, 10**8)
            with in_process(app, rules["node_config"]) as ask:
                for site, file in enumerate(files):
                    divided = shards_of(file, rules, seed)
                    for part in divided.asked():
                        starts.add(model, None if part is None else ask(site, part, divided.place, content, {}))
            row |= {"answered": starts.answered, "started": starts.started}
        yield row


def shards_of(file: Path, rules: dict[str, Any], seed: int) -> Shards:
    """As `simulate_guard` divides it."""
    (folder := Path(tempfile.mkdtemp(dir=file.parent)) / ".fedpriv").mkdir()
    (folder.parent / file.name).symlink_to(file)
    policy = GuardPolicy.model_validate({"apps": (), **rules, "table": file.name})
    return Shards(folder.parent, policy, encode_key("guard salt", seed).ljust(32, b"\0")[:32])


def own_heads(app: Path, files: list[Path], start: ArrayRecord, rounds: int) -> list[ArrayRecord]:
    """Without the guard: FedAvg of all layers, and on each machine the head that its `context.state` kept."""
    module, arrays = imported(app, "personal_head"), start
    contexts = [Context(1, 2, {"data-path": str(file)}, RecordDict(), {}) for file in files]
    for _ in range(rounds):
        replies = []
        for context in contexts:
            message = message_of(RecordDict({"arrays": arrays, "config": ConfigRecord({})}))
            reply: Any = module.app(message, context).content["arrays"]
            replies.append(reply.to_torch_state_dict())
        arrays = ArrayRecord({name: sum(each[name] for each in replies) / SITES for name in replies[0]})
    heads: list[Any] = [context.state["head"] for context in contexts]
    own = [{f"fc3.{name}": value for name, value in head.to_torch_state_dict().items()} for head in heads]
    return [ArrayRecord(arrays.to_torch_state_dict() | head) for head in own]


def survival(
    label: str, app: Path, files: list[Path], tests: list[Path], rows: Any, seed: int, todo: list[Form]
) -> Iterator[dict[str, Any]]:
    """Largest error of the survival curve, against that of all rows; single rows, one query."""
    module = imported(app, label)
    metrics = {"at_risk": len(module.TIMES), "died": len(module.TIMES)}
    clip, zeros = SETTINGS[label]["clip"], np.zeros(sum(metrics.values()))
    answers, starts = [], Starts()
    for file in files:
        parts = shards_of(file, rules_of(label, SETTINGS[label]["shards"], single=True), seed).asked()
        counted = [None if part is None else count(module, part, metrics) for part in parts]
        answers.append([zeros if found is None else found for found in counted])
        starts.answered += sum(found is not None for found in counted)
        starts.reasons["no counts"] += sum(part is not None for part in parts) - sum(c is not None for c in counted)

    def curve(counts: Any) -> Any:
        risk, died = np.split(np.maximum(counts, 0), 2)
        return np.cumprod(1 - np.clip(died / np.maximum(risk, 1), 0, 1))

    exact = curve(sum(count(module, file, metrics) for file in files))
    for form, shards, more, epsilon in todo:
        row = {"form": form, "epsilon": epsilon, "shards": shards}
        sums: Any = [np.sum(of, axis=0) for of in answers]
        if form == "bare":
            sums = [count(module, file, metrics) for file in files]
        elif form == "sharded":
            row |= {"answered": starts.answered, "started": starts.started}
        else:
            query = {"metrics": metrics, "clip": clip, "noise_multiplier": 1.0}
            rules = rules_of(label, shards, single=True, apps=(), counts={"query.survival": query}, **more)
            terms, size = Terms.of(GuardPolicy.model_validate(rules | {"table": "t.csv"})).counted("query.survival")
            terms = with_epsilon(terms, size, 1, DELTA, epsilon)
            sources = [SeededNoise("survival", seed, site, form, int(epsilon)) for site in range(SITES)]
            sums = [terms.release(of, size, src).double().numpy() for of, src in zip(answers, sources, strict=True)]
            sums = [terms.clip * (terms.grid(size).decode(sum(sums)) if form == SUM else sum(sums))]
        yield row | {"error": float(abs(curve(sum(sums)) - exact).max())}


def count(module: Any, part: Path, metrics: dict[str, int]) -> Any:
    message = message_of(RecordDict())
    message.metadata.message_type = "query.survival"
    reply = module.app(message, Context(1, 2, {"data-path": str(part)}, RecordDict(), {}))
    return counts_of(tuple(reply_arrays(reply, message)), metrics)


def note(row: dict[str, Any]) -> None:
    print(row, flush=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def cells(of: str) -> dict[str, str]:
    """By app, what docs/guard_figures.md prints: starts and what came of them, or where sharding ends. Means and
    standard deviations over seeds, in %.
    """
    rows, found = list(known().values()), {}

    def cell(label: str, form: str, epsilon: float, shards: int) -> str:
        runs = [row for row in rows if [row[name] for name in KEY if name != "seed"] == [label, form, epsilon, shards]]
        values = [100 * row.get("accuracy", row.get("error", 0.0)) for row in runs]
        return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "-"

    for label, setting in SETTINGS.items():
        shards = setting["shards"]
        first = [cell(label, "bare", FREE, 1)]
        if of == "ending":
            at = sorted({shards, *setting.get("ending", ())})
            found[label] = [
                *first,
                ", ".join(f"{setting['rows'] // n} rows: {cell(label, 'sharded', FREE, n)}" for n in at),
            ]
            continue
        mine = [row for row in rows if (row["app"], row["form"], row["shards"]) == (label, "sharded", shards)]
        starts = " of ".join(f"{sum(row[name] for row in mine):,}" for name in ("answered", "started"))
        noisy = [cell(label, form, epsilon, shards) for form in (SUM, OWN) for epsilon in EPSILONS]
        found[label] = [starts, *first, cell(label, "sharded", FREE, shards), *noisy]
    return {label: " | ".join(parts) for label, parts in found.items() if of != "ending" or "ending" in SETTINGS[label]}


if __name__ == "__main__":
    command, *more = sys.argv[1:] or ["show"]
    if command == "show":
        for table in ("run", "ending"):
            print("\n".join(f"| {label} | {text} |" for label, text in cells(table).items()), end="\n\n")
    else:
        run(more[0], Path(more[1]) if len(more) > 1 else None, ending=command == "ending")
