"""Four unmodified Flower apps under the guard on the hospital table: accuracy and AUC by row, at epsilon 0.5 to 4.

    python -m benchmarks.guard_apps search APP     # settings, on splits that are not measured
    python -m benchmarks.guard_apps found APP      # 20 splits, in the secure sum and with each machine's own noise
    python -m benchmarks.guard_apps confirm APP    # a split again by `fedpriv.simulate_guard`, with the app itself; and
                                                   # two rounds with the app in the sandbox
    python -m benchmarks.guard_apps show

Lines of JSON in benchmarks/results/guard_apps.jsonl, one for each run; what is there is not run again. Shards, terms,
clipping, noise and account are the guard's own functions, with the seeds of `simulate_guard`. The answers of a
machine's shards are computed together, by the app's formula written for many shards at once: the app itself would be
started half a million times. `confirm` holds the models that come of it against those of the app's own answers.

APP: message (logistic regression in numpy, by the message API), sklearn, torch (16 hidden units), jax (linear
regression; in benchmarks/apps, needs jax). Inputs: public ranges to [-0.5, 1.5], since a length is mostly in the lower
half of its range. What the operators choose: shards, rounds, clip norm, the app's own configuration, and for sklearn,
whose one step of the solver has length 1, Flower's `FedAvgM(server_learning_rate=...)`.

The rule: of the settings in `search` at epsilon 1 whose mean AUC is within 0.001 of the best of their form, the one of
best accuracy; the same of no privacy, among its rounds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from benchmarks.guard_tables import APPS, DELTA, EPSILONS, NEAR, ROOT, SITES, SPLITS, hospital, start_of, tables
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard.release import Terms, claimed_epsilon, with_epsilon
from fedpriv.guard.shards import shard_of
from fedpriv.guard.simulation import Simulated, mean_of, simulate_guard
from fedpriv.mechanisms.noise import SeededNoise, encode_key

RESULTS = ROOT / "benchmarks" / "results" / "guard_apps.jsonl"
SEARCHED = range(1000, 1020)
CENTRE = 0.25
HIDDEN, CLASSES, MOMENTUM = 16, 2, 0.9

Vector = NDArray[np.float64]
Setting = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """Shards of a machine, filled up to the longest: x [k, n, d], y [k, n], and which rows are there [k, n]."""

    x: Vector
    y: Vector
    there: Vector

    def alone(self) -> Batch:
        """The shards with one row; the others have no answer."""
        kept = self.rows[:, 0] == 1
        return Batch(self.x[kept, :1], self.y[kept, :1], self.there[kept, :1])

    @property
    def rows(self) -> Vector:
        """[k, 1]"""
        found: Vector = self.there.sum(1, keepdims=True)
        return found


# --- the apps, for many shards at once: answers less the model that came down, float64 [k, numbers] -----------------


def message(model: Vector, batch: Batch, epochs: int, rate: float) -> Vector:
    """tests/guard/apps/quickstart-message"""
    weights = np.repeat(model[None], len(batch.x), 0)
    for _ in range(epochs):
        scores = np.einsum("knd,kd->kn", batch.x, weights[:, :-1]) + weights[:, -1:]
        slopes = (1 / (1 + np.exp(-scores)) - batch.y) * batch.there
        weights -= rate * _with_bias(batch, slopes)
    return weights - model


def jax(model: Vector, batch: Batch, epochs: int, rate: float) -> Vector:
    """benchmarks/apps/quickstart-jax"""
    weights = np.repeat(model[None], len(batch.x), 0)
    for _ in range(epochs):
        scores = np.einsum("knd,kd->kn", batch.x, weights[:, :-1]) + weights[:, -1:]
        weights -= rate * _with_bias(batch, 2 * (scores - batch.y) * batch.there)
    return weights - model


def _with_bias(batch: Batch, slopes: Vector) -> Vector:
    found = np.concatenate([np.einsum("knd,kn->kd", batch.x, slopes), slopes.sum(1, keepdims=True)], 1)
    return found / batch.rows


def sklearn(model: Vector, batch: Batch, epochs: int, repeat: int) -> Vector:
    """tests/guard/apps/quickstart-sklearn; a shard without both classes has no answer."""
    from sklearn.linear_model import LogisticRegression

    found = np.zeros((len(batch.x), len(model)))
    for shard, count in enumerate(batch.rows[:, 0].astype(int)):
        x, y = batch.x[shard, :count], batch.y[shard, :count].astype(int)
        if len(np.unique(y)) == 2:
            app = LogisticRegression(max_iter=epochs, warm_start=True)
            app.classes_, app.coef_, app.intercept_ = np.array([0, 1]), model[None, :-1].copy(), model[-1:].copy()
            app.fit(np.tile(x, (repeat, 1)), np.tile(y, repeat))
            found[shard] = np.concatenate([app.coef_[0], app.intercept_]) - model
    return found


def network(model: Vector, batch: Batch, epochs: int, rate: float) -> Vector:
    """tests/guard/apps/quickstart-torch: no shard has more rows than its batch, so an epoch is one step."""
    assert batch.x.shape[1] <= 32
    k, columns = len(batch.x), batch.x.shape[2]
    x, y, there = (torch.tensor(part, dtype=torch.float32) for part in (batch.x, batch.y, batch.there / batch.rows))
    start = torch.tensor(model, dtype=torch.float32)
    now, speed = start.repeat(k, 1), torch.zeros(k, len(model))
    for _ in range(epochs):
        now = now.detach().requires_grad_()
        w1, b1, w2, b2 = now.split([HIDDEN * columns, HIDDEN, CLASSES * HIDDEN, CLASSES], 1)
        hidden = torch.relu(x @ w1.view(k, HIDDEN, columns).mT + b1[:, None])
        logits = hidden @ w2.view(k, CLASSES, HIDDEN).mT + b2[:, None]
        losses = torch.nn.functional.cross_entropy(logits.mT, y.long(), reduction="none")
        (slopes,) = torch.autograd.grad((losses * there).nansum(), now)
        speed = MOMENTUM * speed + slopes
        now = now - rate * speed
    moved: Vector = (now.detach().double() - start.double()).numpy()
    moved[batch.rows[:, 0] == 0] = 0  # no rows, no steps
    return moved


@dataclass(frozen=True)
class App:
    folder: Path
    api: str
    answers: Callable[..., Vector]
    #: Of `search`: (shards, rounds), and for each (clip norm, the rest).
    shapes: tuple[tuple[int, int], ...]
    steps: tuple[tuple[float, Setting], ...]
    #: Without a guard, one shard a machine: (rounds, the rest).
    free: tuple[tuple[int, Setting], ...]
    #: As `steps`, with rounds, of `guard.single` among `LONE` shards.
    lone: tuple[tuple[float, Setting], ...] = ()
    searched: int = len(SEARCHED)


#: Shards of a machine with `guard.single`: of 91 rows about 73 are alone in theirs.
LONE = 400


def _lone(rounds: Sequence[int], clips: Sequence[float], over: Sequence[float]) -> tuple[tuple[float, Setting], ...]:
    return tuple(
        (clip, {"rounds": number, "epochs": 1, "rate": times * clip})
        for number in rounds
        for clip in clips
        for times in over
    )


def _gradient(clips: Sequence[float], over: float = 10.0) -> tuple[tuple[float, Setting], ...]:
    """One step of a rate at which nearly every answer is longer than clip."""
    return tuple((clip, {"epochs": 1, "rate": over * clip}) for clip in clips)


#: The model is the mean of the last half of the rounds' models, which the server makes of what it has.
AVERAGED = tuple((clip, {**rest, "average": 0.5}) for clip, rest in _lone((20, 40), (26, 52), (10,)))
GRADIENT = ((30, 10), (60, 5), (60, 10), (60, 15), (90, 10))
LINEAR_FREE = tuple((rounds, {"epochs": 10, "rate": rate}) for rounds in (10, 100) for rate in (0.3, 1.0, 3.0))
KNOWN = {
    "message": App(
        APPS / "quickstart-message",
        "message",
        message,
        GRADIENT,
        _gradient((4, 8)),
        LINEAR_FREE,
        _lone((20,), (26, 52), (1, 10)) + AVERAGED,
    ),
    "jax": App(
        ROOT / "benchmarks" / "apps" / "quickstart-jax",
        "numpy",
        jax,
        ((60, 5), (60, 10)),
        _gradient((0.25, 0.5)),
        tuple((rounds, {"epochs": 10, "rate": rate}) for rounds in (10, 100) for rate in (0.01, 0.03, 0.1)),
        _lone((20,), (1.3, 2.6), (1, 10)),
        searched=10,
    ),
    "torch": App(
        APPS / "quickstart-torch",
        "numpy",
        network,
        ((30, 5), (60, 5), (60, 10), (90, 5), (90, 10)),
        tuple((clip, {"epochs": epochs, "rate": clip}) for clip in (0.5, 1.5, 4.0) for epochs in (1, 3)),
        tuple((10, {"epochs": 10, "rate": rate}) for rate in (0.03, 0.1)),
        _lone((10, 20), (3.3, 6.6, 13), (1,)),
        searched=10,
    ),
    "sklearn": App(
        APPS / "quickstart-sklearn",
        "numpy",
        sklearn,
        ((15, 10), (20, 10), (15, 15), (30, 10)),
        tuple((1.0, {"epochs": 1, "repeat": 30, "server_rate": rate}) for rate in (1.0, 2.0, 0.5)),
        tuple((3, {"epochs": epochs, "repeat": 1}) for epochs in (10, 100)),
        searched=5,
    ),
}


# --- one run --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Inputs [n, d] and labels [n], the rows of each machine, and those of the test."""

    x: Vector
    y: NDArray[np.int64]
    machines: tuple[NDArray[np.int64], ...]
    test: NDArray[np.int64]

    @classmethod
    def of(cls, x: Vector, y: NDArray[np.int64], seed: int) -> Table:
        """80 % of the rows, in equal parts on the machines."""
        order = np.random.default_rng(seed).permutation(len(y))
        train = order[: int(0.8 * len(order))]
        return cls(x, y, tuple(np.array_split(train, SITES)), order[len(train) :])


@cache
def hospital_table(seed: int) -> Table:
    x, y = hospital()
    return Table.of(2 * (x - CENTRE), y, seed)


def batches(table: Table, seed: int, shards: int) -> list[Batch]:
    """Of each machine: the shards in which the guard puts its rows, as they stand in its CSV file."""
    x, y = table.x, table.y
    salt, found = encode_key("guard salt", seed).ljust(32, b"\0")[:32], []
    for rows in table.machines:
        parts: list[list[tuple[list[float], int]]] = [[] for _ in range(shards)]
        for row in rows:
            cells = [f"{value:.6g}" for value in x[row]]
            record = ",".join([*cells, str(y[row])]).encode()
            parts[shard_of(salt, record, shards)].append(([float(cell) for cell in cells], int(y[row])))
        longest = max(len(part) for part in parts)
        batch = Batch(np.zeros((shards, longest, x.shape[1])), np.zeros((shards, longest)), np.zeros((shards, longest)))
        for number, part in enumerate(parts):
            for place, (values, label) in enumerate(part):
                batch.x[number, place], batch.y[number, place], batch.there[number, place] = values, label, 1
        found.append(batch)
    return found


def start(app: str, columns: int) -> ArrayRecord:
    if app == "message":
        from flwr.app import Array

        return ArrayRecord({"weights": Array(np.zeros(columns)), "bias": Array(np.zeros(1))})
    if app == "jax":
        return ArrayRecord(numpy_ndarrays=[np.zeros(columns, "f4"), np.zeros(1, "f4")])
    return start_of(f"quickstart-{app}", columns)


def rules_of(app: App, setting: Setting, form: str, sites: int = SITES) -> Setting:
    found = {"sites": sites, "unit": "row", "shards": setting["shards"], "clip": setting["clip"], "api": app.api}
    found |= {"repeat": setting.get("repeat", 1), "single": setting.get("single", False)}
    return found if form in ("own", "none") else {**found, "noise": form}


@cache
def _multiplier(rules: str, numbers: int, rounds: int, epsilon: float) -> float:
    """The noise does not depend on the clip norm."""
    return with_epsilon(_terms(json.loads(rules)), numbers, rounds, DELTA, epsilon).noise_multiplier


def _terms(rules: Setting) -> Terms:
    given = {"apps": (), "noise_multiplier": 1.0, "min_replies": rules["sites"], **rules}
    return Terms.of(GuardPolicy.model_validate(given))


def model_after(app: str, table: Table, seed: int, epsilon: float, form: str, setting: Setting) -> tuple[Vector, float]:
    """The model after all rounds, and what was spent."""
    known = KNOWN[app]
    now = _numbers(start(app, table.x.shape[1]))
    rules, rounds = rules_of(known, setting, form, len(table.machines)), setting["rounds"]
    terms, single = _terms(rules), app in ("torch", "jax")
    if form != "none":
        key = json.dumps({**rules, "clip": 1.0}, sort_keys=True)
        terms = replace(terms, noise_multiplier=_multiplier(key, len(now), rounds, epsilon))
    given = {name: setting[name] for name in ("epochs", "rate", "repeat") if name in setting}
    machines = batches(table, seed, setting["shards"])
    if setting.get("single", False):
        machines = [batch.alone() for batch in machines]
    kept: list[Vector] = []
    for number in range(1, rounds + 1):
        releases = []
        for client, batch in enumerate(machines):
            with np.errstate(all="ignore"):
                answers = known.answers(now, batch, **given)
            if form == "none":
                releases.append(answers.sum(0) / terms.clip)
            else:
                source = SeededNoise(seed, client, number, 0, "guard")
                releases.append(terms.release(list(answers), len(now), source).numpy())
        now = now + setting.get("server_rate", 1.0) * mean_of(terms, len(now), releases, form == "none")
        now = now.astype(np.float32).astype(float) if single else now
        kept = [*kept, now] if number > rounds * (1 - setting.get("average", 0)) else []
    now = np.mean(kept or [now], 0)
    return now, float("inf") if form == "none" else claimed_epsilon(terms, len(now), rounds, DELTA)


def judged(app: str, table: Table, model: Vector) -> tuple[float, float]:
    """AUC and accuracy on the test rows."""
    from sklearn.metrics import roc_auc_score

    x, y = table.x[table.test], table.y[table.test]
    if app == "torch":
        w1, b1, w2, b2 = np.split(model, np.cumsum([HIDDEN * x.shape[1], HIDDEN, CLASSES * HIDDEN]))
        logits = np.maximum(x @ w1.reshape(HIDDEN, -1).T + b1, 0) @ w2.reshape(CLASSES, -1).T + b2
        said = logits[:, 1] - logits[:, 0]
    else:
        said = x @ model[:-1] + model[-1] - (0.5 if app == "jax" else 0)
    return round(float(roc_auc_score(y, said)), 5), round(float(((said > 0) == y).mean()), 5)


def run(app: str, seed: int, epsilon: str | float, form: str, **setting: Any) -> dict[str, Any]:
    table = hospital_table(seed)
    if app == "torch" and form == "none":  # several batches in an epoch, in an order by chance
        found, numbers = itself(app, seed, epsilon, form, setting | {"clip": 1e6})
        auc, accuracy = judged(app, table, numbers)
        return {"auc": auc, "accuracy": accuracy, "spent": found.epsilon}
    model, spent = model_after(app, table, seed, float(epsilon), form, setting)
    auc, accuracy = judged(app, table, model)
    return {"auc": auc, "accuracy": accuracy, "spent": spent}


def itself(app: str, seed: int, epsilon: str | float, form: str, setting: Setting) -> tuple[Simulated, Vector]:
    """By the app's own code; the model, or with `average` the mean of the last half of the models."""
    kept: list[Vector] = []

    def keep(number: int, arrays: ArrayRecord) -> None:
        if number > setting["rounds"] * (1 - setting.get("average", 0)):
            kept.append(_numbers(arrays))

    known, table = KNOWN[app], hospital_table(seed)
    rows = np.concatenate(table.machines)
    config = {"local-epochs": setting["epochs"]} | ({"learning-rate": setting["rate"]} if "rate" in setting else {})
    with tempfile.TemporaryDirectory() as folder:
        found = simulate_guard(
            known.folder,
            tables(Path(folder), (table.x[rows], table.y[rows])),
            rules_of(known, setting, form),
            start(app, table.x.shape[1]),
            setting["rounds"],
            epsilon=float(epsilon),
            delta=DELTA,
            run_config=config,
            seed=seed,
            server_learning_rate=setting.get("server_rate", 1.0),
            confined=setting.get("confined", False),
            each_round=keep,
        )
    return found, np.mean(kept, 0) if kept else _numbers(found.arrays)


def _numbers(arrays: ArrayRecord) -> Vector:
    return np.concatenate([array.numpy().ravel().astype(float) for array in arrays.values()])


def confirmed(app: str, seed: int, epsilon: str | float, form: str, **setting: Any) -> dict[str, Any]:
    """apart: largest difference of a number of the app's own model and of `model_after`; length: of the model."""
    table, (found, own) = hospital_table(seed), itself(app, seed, epsilon, form, setting)
    model, spent = model_after(app, table, seed, float(epsilon), form, setting)
    (auc, accuracy), apart = judged(app, table, own), float(np.abs(own - model).max())
    same = ((auc, accuracy), found.epsilon) == (judged(app, table, model), spent)
    line = {"auc": auc, "accuracy": accuracy, "spent": found.epsilon, "apart": apart, "same": same}
    return {**line, "length": float(np.linalg.norm(model))}


# --- what is run ------------------------------------------------------------------------------------------------------


def jobs(what: str, app: str) -> Iterator[dict[str, Any]]:
    known = KNOWN[app]
    if what == "search":
        for seed in SEARCHED[: known.searched]:
            for rounds, rest in known.free:
                yield {
                    "seed": seed,
                    "epsilon": "inf",
                    "form": "none",
                    "shards": 1,
                    "clip": 1.0,
                    "rounds": rounds,
                    **rest,
                }
        for shards, rounds in known.shapes:
            for clip, rest in known.steps:
                for form in ("ddgauss", "own"):
                    for seed in SEARCHED[: known.searched]:
                        tried = {"shards": shards, "rounds": rounds, "clip": clip, **rest}
                        yield {"seed": seed, "epsilon": 1.0, "form": form, **tried}
        for clip, rest in known.lone:
            for form in ("ddgauss", "own"):
                for seed in SEARCHED[: known.searched]:
                    yield {
                        "seed": seed,
                        "epsilon": 1.0,
                        "form": form,
                        "shards": LONE,
                        "single": True,
                        "clip": clip,
                        **rest,
                    }
    elif what == "found":
        best = found(app)
        for epsilon in (1.0, 2.0, 0.5, 4.0):
            for seed in range(SPLITS):
                if epsilon == 1:
                    yield {"seed": seed, "epsilon": "inf", "form": "none", **best["none"]}
                for form in ("ddgauss", "own"):
                    yield {"seed": seed, "epsilon": epsilon, "form": form, **best[form]}
    elif what == "confirm":
        best = found(app)
        for form in ("ddgauss", "own"):
            yield {"seed": 0, "epsilon": 1.0, "form": form, **best[form]}
        yield {"seed": 0, "epsilon": 1.0, "form": "ddgauss", **best["ddgauss"], "rounds": 2, "confined": True}


def found(app: str) -> dict[str, Setting]:
    """By the rule, for each form."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in known_lines().values():
        job = line["job"]
        if (job["what"], job["app"]) == ("search", app):
            setting = {name: job[name] for name in job if name not in ("what", "app", "seed", "epsilon", "form")}
            groups.setdefault(job["form"], {}).setdefault(json.dumps(setting), []).append(line)
    picked = {}
    for form, tried in groups.items():
        means = {
            name: [float(np.mean([line[of] for line in lines])) for of in ("auc", "accuracy")]
            for name, lines in tried.items()
            if len(lines) >= KNOWN[app].searched
        }
        best = max(auc for auc, _ in means.values())
        picked[form] = json.loads(max((m[1], name) for name, m in means.items() if m[0] > best - NEAR)[1])
    return picked


def known_lines() -> dict[str, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {json.dumps(line["job"], sort_keys=True): line for line in map(json.loads, lines)}


def main(what: str, app: str = "", part: str = "0/1") -> None:
    """part: 1/3 is the second third of the runs, for several processes at once."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if what == "show":
        return show()
    done = known_lines()
    mine, parts = map(int, part.split("/"))
    for job in list(jobs(what, app))[mine::parts]:
        named = {"what": what, "app": app, **job}
        if json.dumps(named, sort_keys=True) not in done:
            line = {"job": named, **(confirmed if what == "confirm" else run)(app, **job)}
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")


def show() -> None:
    """Means with 95% intervals; the difference to no guard is split by split."""
    lines = known_lines().values()
    for app in KNOWN:
        best = found(app)
        print(app, best)
        mine = [line for line in lines if (line["job"]["what"], line["job"]["app"]) == ("found", app)]
        free = {line["job"]["seed"]: line for line in mine if line["job"]["form"] == "none"}
        for form, epsilon in [
            ("none", "inf"),
            *((form, epsilon) for form in ("ddgauss", "own") for epsilon in EPSILONS),
        ]:
            here = [line for line in mine if (line["job"]["form"], line["job"]["epsilon"]) == (form, epsilon)]
            cells = []
            for of in ("accuracy", "auc"):
                apart = [line[of] - free[line["job"]["seed"]][of] for line in here if line["job"]["seed"] in free]
                cells += [interval([line[of] for line in here]), interval(apart)]
            print(f"  {form:8s} {epsilon!s:4s} n={len(here):2d} ", *cells)
        for line in lines:
            if (line["job"]["what"], line["job"]["app"]) == ("confirm", app):
                print("  confirmed", {name: line[name] for name in ("auc", "accuracy", "apart", "length", "same")})


def interval(values: Sequence[float]) -> str:
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    mean = float(np.mean(values)) if values else float("nan")
    return f"{mean:.4f}+-{half:.4f}"


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["show"]))
