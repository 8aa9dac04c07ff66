"""How the defaults of `dpsum` on tables are chosen.

    python -m benchmarks.dpsum_defaults [part=0/2] [shapes | steps]   # runs what is missing of the first, second, third
    python -m benchmarks.dpsum_defaults choose                        # prints what the rules say

A part of the runs may go on in another process; `benchmarks/results/dpsum_defaults.jsonl` has the scores of a cell's
settings, for one seed, in each line.

**The rule**, written before any of its runs.

*Settings* (16): every combination of

- the noise length (`strategies.dpsum.NOISE_LENGTH`): 4, 6, 8, 12;
- the start of a linear model: drawn, or zero;
- rounds for each of the two statistics of the inputs, means and deviations, of which the server takes the mean: 1, 2
  (one of 20 or of 10 rounds: `fedpriv.config.methods.STATISTICS`). All rounds have the same noise, so these are the
  statistics' share.

*Data*: 12 tables, none of which a page reports (`TABLES`), by generators with a fixed seed, or pairs of scikit-learn's
8x8 digits. A seed draws training rows and 2,000 test rows from the table's 22,000 (of digits a split). Ranges are the
0.001 and 0.999 quantiles of all, rounded outwards to one digit.

*Runs*: `experiment=hospitals` (five sites, 20 rounds, delta 1e-4) with epsilon 0.5, 1, 2 and 8, in the secure sum and
with each site's own noise, seeds 0 to 5: 12 x 4 x 2 cells of 16 x 6 runs.

A run is `Direct`, which a test compares with the product's own.

*Score* in points: accuracy in %; of the rare class 100 AUC; of a regression 100 R^2, not below 0.

*Regret* of a setting in a cell: the best setting's score less its own, where the best is the one with the highest mean
over seeds 0 to 2 and the scores are means over seeds 3 to 5, and the other way round, and the regret is the mean of
both. So what is best by luck is no measure. It is cut at 0 from below where the worst cell is looked for, not in means.

*Choice*: the setting with the smallest mean regret over all cells, among those with a mean regret of at most 2 points
on each table at each epsilon in each form; if there is none, the one whose worst cell is smallest. Of settings whose
mean regret differs by less than 0.1 points: the one with fewer changes from 4, drawn and 1, then the shorter length.

*Shape of the steps*, written when the choice above was known, and that on breast_cancer accuracy rose with own noise
and AUC fell by 0.002 to 0.003: 12 is the longest of the four and a compromise, as early steps gain by length and late
ones lose. 16 settings with zero and 2: noise lengths 8, 12, 16, 24; equal steps, or linearly falling ones with the same
mean square; the model is the mean of the last half of the rounds', or of all that train. Epsilon 0.5, 1 and 2, both
forms, same tables and seeds; the score of two classes is the mean of accuracy and AUC. The same choice, the fewest
changes from 12, equal and half.

*Then*, with the chosen setting: the largest step (`strategies.dpsum.LARGEST_STEP`) of 6, 4, 3, 2 at epsilon 2, 8 and
1,000 in the secure sum, same tables, scores and seeds; the smallest mean regret (as above), and 6 where it is within
0.1 points of that.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.datasets import load_digits, make_classification, make_regression
from sklearn.metrics import roc_auc_score

import fedpriv.config.methods
import strategies.dpsum
from fedpriv.common.messages import FloatVector, pack_vector, unpack_vector
from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import clip_factors
from fedpriv.mechanisms.recalibration import counted, parts
from fedpriv.mechanisms.scaling import Scaling
from fedpriv.runs.preparation import make_strategy, resolve
from fedpriv.server.round import Round

RESULTS = Path(__file__).parent / "results" / "dpsum_defaults.jsonl"
SETTINGS = list(product((4.0, 6.0, 8.0, 12.0), ("drawn", "zero"), (1, 2)))
SHAPES, LOUD = list(product((8.0, 12.0, 16.0, 24.0), (False, True), (0.5, 1.0))), (0.5, 1, 2)
LARGEST, QUIET, STEPS = (6.0, 4.0, 3.0, 2.0), (2, 8, 1000), "ddgauss, largest step"
EPSILONS, FORMS, SEEDS = (0.5, 1, 2, 8), ("ddgauss", "local"), range(6)
POPULATION, TEST = 22_000, 2_000

Rows = tuple[NDArray[np.float64], NDArray[np.float64]]


def classes(**options: Any) -> Callable[[], Rows]:
    def made() -> Rows:
        return make_classification(n_samples=POPULATION, shuffle=True, **options)

    return made


def by_logit(columns: Callable[[np.random.Generator], NDArray[np.float64]], strength: float) -> Callable[[], Rows]:
    """Classes by a logistic model of these columns with normal weights: log odds with this standard deviation."""

    def made() -> Rows:
        random = np.random.default_rng(57)
        rows = columns(random)
        odds = rows @ (random.normal(size=rows.shape[1]) / rows.std(0))
        odds = strength * (odds - odds.mean()) / odds.std()
        return rows, (random.random(len(rows)) < 1 / (1 + np.exp(-odds))).astype(float)

    return made


def factors(random: np.random.Generator) -> NDArray[np.float64]:
    """30 columns of 4 factors, skewed."""
    common = random.normal(size=(POPULATION, 4)) @ random.normal(size=(4, 30))
    return np.asarray(np.exp(0.2 * (common + 0.5 * random.normal(size=(POPULATION, 30)))))


def skewed(random: np.random.Generator) -> NDArray[np.float64]:
    return random.lognormal(sigma=1.0, size=(POPULATION, 12))


def rare_marks(random: np.random.Generator) -> NDArray[np.float64]:
    """16 columns of 0 and 1, half of them rare, beside four numbers."""
    marks = random.random((POPULATION, 16)) < np.r_[np.full(8, 0.02), np.full(8, 0.3)]
    return np.hstack([marks, random.normal(size=(POPULATION, 4))])


def digits(first: int, second: int) -> Callable[[], Rows]:
    def made() -> Rows:
        images, labels = load_digits(return_X_y=True)
        kept = (labels == first) | (labels == second)
        return images[kept], (labels[kept] == second).astype(float)

    return made


#: name -> (rows and targets, training rows, score).
TABLES: dict[str, tuple[Callable[[], Rows], int, str]] = {
    "few rows": (classes(n_features=10, n_informative=5, n_clusters_per_class=1, random_state=1), 300, "accuracy"),
    "many rows": (classes(n_features=12, n_informative=6, n_redundant=4, flip_y=0.1, random_state=2), 4000, "accuracy"),
    "many columns": (classes(n_features=50, n_informative=12, n_redundant=20, random_state=3), 700, "accuracy"),
    "few columns": (
        classes(n_features=4, n_informative=3, n_redundant=0, n_clusters_per_class=1, random_state=4),
        400,
        "accuracy",
    ),
    "factors": (by_logit(factors, 6.0), 500, "accuracy"),
    "skewed": (by_logit(skewed, 3.0), 600, "accuracy"),
    "rare class": (
        classes(n_features=15, n_informative=6, weights=[0.93], n_clusters_per_class=1, random_state=7),
        1500,
        "auc",
    ),
    "rare marks": (by_logit(rare_marks, 1.5), 2000, "accuracy"),
    "3 or 8": (digits(3, 8), 250, "accuracy"),
    "4 or 9": (digits(4, 9), 250, "accuracy"),
    "three classes": (
        classes(n_features=12, n_informative=6, n_classes=3, n_clusters_per_class=1, random_state=11),
        900,
        "accuracy",
    ),
    "regression": (
        lambda: make_regression(POPULATION, 10, n_informative=6, effective_rank=6, noise=0.5, random_state=12),
        500,
        "r2",
    ),
}


def outwards(values: NDArray[np.float64]) -> list[float]:
    """A range for these values: their 0.001 and 0.999 quantiles, rounded outwards to one digit of the larger one."""
    low, high = np.quantile(values, [0.001, 0.999])
    unit = 10.0 ** np.floor(np.log10(max(abs(low), abs(high), 1e-9)))
    low, high = (float(f"{round_(value / unit) * unit:.6g}") for round_, value in ((np.floor, low), (np.ceil, high)))
    return [low, high if low < high else low + 1]


def write(name: str, seed: int, folder: Path) -> list[str]:
    """The files of a table's sample; what a run has to be told."""
    made, train, score = TABLES[name]
    rows, targets = made()
    chosen = np.random.default_rng([seed, len(rows)]).permutation(len(rows))[: train + TEST]
    names = [f"c{place}" for place in range(rows.shape[1])]
    columns = {column: {"range": outwards(rows[:, place])} for place, column in enumerate(names)}
    if score == "r2":
        target: dict[str, Any] = {"column": "y", "task": "regression", "range": outwards(targets)}
    else:
        labels = [f"k{int(value)}" for value in np.unique(targets)]
        target = {"column": "y", "task": "classification", "classes": labels}
        target |= {"positive": labels[1]} if len(labels) == 2 else {}
    (folder / "schema.yaml").write_text(json.dumps({"target": target, "columns": columns}))
    for file, some in (("train.csv", chosen[:train]), ("test.csv", chosen[train:])):
        cells = [[f"{value:.6g}" for value in rows[row]] + [_cell(targets[row], score)] for row in some]
        (folder / file).write_text("\n".join(",".join(line) for line in [[*names, "y"], *cells]) + "\n")
    paths = {"root": "train.csv", "test_root": "test.csv", "schema_file": "schema.yaml"}
    return ["dataset=table", *(f"dataset.{option}={folder / file}" for option, file in paths.items()), f"seed={seed}"]


def _cell(target: float, score: str) -> str:
    return f"{target:.6g}" if score == "r2" else f"k{int(target)}"


@dataclass(frozen=True)
class Direct:
    """A run of the linear model of a table, without its messages: the server half is the product's own, clients and
    their noise (of whole numbers: the Gaussian of their variance) are one clipped sum here.
    """

    config: Config
    worker: Worker

    @classmethod
    def of(cls, options: list[str]) -> Direct:
        config, worker, _ = resolve(compose(["experiment=hospitals", *options]), None)
        return cls(config, worker)

    @cached_property
    def rows(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.int64] | NDArray[np.float64]]]:
        dataset = self.worker.data.dataset
        parts = {"train": dataset.train, "test": dataset.test}
        return {name: (np.array(part.inputs, float), np.array(part.targets)) for name, part in parts.items()}

    def theta(self, seed: int, start: str, falls: bool = False) -> FloatVector:
        """Of the last model. start: zero, or drawn as it was before this study. falls: whether steps fall linearly
        where noise decides them; the squares of their shares have the mean 1.
        """
        server = make_strategy(self.config, self.worker)
        assert isinstance(server, strategies.dpsum.DPSum)
        (inputs, targets), random = self.rows["train"], np.random.default_rng(seed)
        theta, bound = self.worker.initial_parameters(), server.options.clip_norm
        length, training = strategies.dpsum.NOISE_LENGTH, server.trained - 2 * server.input_rounds
        for number in range(1, server.options.rounds + 1):
            server.current = Round(number, theta)
            down = unpack_vector(server.coming_down(pack_vector(theta))).astype(np.float64).reshape(3, -1)
            scaling = server.scaling
            assert scaling is not None
            if number > server.trained:
                examples, classes = torch.from_numpy(inputs), torch.from_numpy(targets)
                centre, width = float(down[1, 0]), math.exp(down[2, 0])
                total = counted(examples, classes, down[0], scaling.outputs, centre, width).numpy().sum(0)
            elif number <= 2 * server.input_rounds:
                rows = inputs if number <= server.input_rounds else np.abs(inputs - down[1, : inputs.shape[1]])
                total = clipped(rows, np.ones((len(rows), 1)), scaling.bound)[0] / scaling.bound
            else:
                total = gradients(scaling, theta, inputs, targets, bound) / bound
            mean = np.pad(total, (0, len(theta) - len(total))) / len(inputs)
            mean += server.noise * random.normal(size=len(theta))
            server.mean = lambda size, replies, mean=mean: mean  # type: ignore[method-assign, misc]
            if falls:
                share = (server.trained + 1 - number) / math.sqrt((training + 1) * (2 * training + 1) / 6)
                strategies.dpsum.NOISE_LENGTH = length * (1 if number <= 2 * server.input_rounds else share)
            theta = server.aggregate(theta, [])
            if start == "drawn" and number <= 2 * server.input_rounds:
                theta = self.worker.initial_parameters()
        strategies.dpsum.NOISE_LENGTH = length
        return theta

    def score(self, theta: FloatVector, name: str) -> float:
        """In points, of the test rows."""
        inputs, targets = self.rows["test"]
        outputs = self.worker.model.layout.shapes[0][0]
        weights, biases = parts(theta.astype(np.float64), outputs)
        found = inputs @ weights.T + biases
        if name == "r2":
            residual = targets.reshape(-1) - found[:, 0]
            return 100 * max(0.0, 1 - float(residual @ residual) / float(np.var(targets) * len(targets)))
        if name == "auc":
            return 100 * float(roc_auc_score(targets, found[:, 1] - found[:, 0]))
        return 100 * float((found.argmax(1) == targets).mean())


def gradients(
    scaling: Scaling, theta: FloatVector, inputs: NDArray[Any], targets: NDArray[Any], bound: float
) -> NDArray[np.float64]:
    """The sum of clipped gradients [d]."""
    weights, biases = parts(scaling.forward(theta).astype(np.float64), scaling.outputs)
    scaled = (inputs - scaling.shift) / np.exp(scaling.log_scale)
    errors = scaled @ weights.T + biases
    if scaling.outputs == 1:
        errors -= targets.reshape(-1, 1)
    else:
        errors = softmax(errors, axis=1) - np.eye(scaling.outputs)[targets]
    total = clipped(np.hstack([scaled, np.ones((len(scaled), 1))]), errors, bound)
    return np.concatenate([total[:, :-1].ravel(), total[:, -1]])


def clipped(rows: NDArray[np.float64], errors: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
    """The sum [o, k] over rows [n, k] of errors [n, o] x row, each clipped to ``bound``."""
    lengths = torch.from_numpy(np.linalg.norm(rows, axis=1) * np.linalg.norm(errors, axis=1))
    return np.asarray((errors * clip_factors(lengths, bound).numpy()[:, None]).T @ rows)


def shapes(part: int, parts: int) -> None:
    """Of the steps' shape."""
    found = done()
    for name, seed in cells(part, parts):
        with tempfile.TemporaryDirectory() as folder:
            options = write(name, seed, Path(folder))
            for epsilon, form in product(LOUD, FORMS):
                if (name, seed, epsilon, f"{form}, shape") in found:
                    continue
                run = Direct.of([*options, f"privacy.target_epsilon={epsilon}", f"strategy.client.form={form}"])
                scores, score = [], TABLES[name][2]
                for length, falls, average in SHAPES:
                    strategies.dpsum.NOISE_LENGTH = length
                    shaped = Direct(run.config.with_options(average=average), run.worker)
                    theta = shaped.theta(seed, "zero", falls)
                    both = score == "accuracy" and len(np.unique(run.rows["test"][1])) == 2
                    scores.append(
                        round(
                            float(
                                np.mean([run.score(theta, one) for one in (("accuracy", "auc") if both else (score,))])
                            ),
                            3,
                        )
                    )
                add(name, seed, epsilon, f"{form}, shape", scores)


def cells(part: int, parts: int) -> Iterator[tuple[str, int]]:
    every = list(product(SEEDS, TABLES))
    return ((name, seed) for place, (seed, name) in enumerate(every) if place % parts == part)


Found = dict[tuple[str, int, float, str], list[float]]


def done() -> Found:
    """(table, seed, epsilon, form) -> the score of each setting."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {(name, seed, epsilon, form): scores for name, seed, epsilon, form, scores in map(json.loads, lines)}


def add(*line: Any) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def study(part: int, parts: int, steps: bool) -> None:
    """steps: of the largest step, with the defaults."""
    found, cases = done(), list(product(QUIET, (STEPS,)) if steps else product(EPSILONS, FORMS))
    for name, seed in cells(part, parts):
        with tempfile.TemporaryDirectory() as folder:
            options = write(name, seed, Path(folder))
            for epsilon, form in cases:
                if (name, seed, epsilon, form) in found:
                    continue
                scores, way = [], FORMS[0] if steps else form
                run = Direct.of([*options, f"privacy.target_epsilon={epsilon}", f"strategy.client.form={way}"])
                for setting in LARGEST if steps else SETTINGS:
                    start = _set(setting)
                    scores.append(round(run.score(run.theta(seed, start), TABLES[name][2]), 3))
                add(name, seed, epsilon, form, scores)


def _set(setting: float | tuple[float, str, int]) -> str:
    """Takes a setting, or a largest step; returns the start."""
    if isinstance(setting, float):
        strategies.dpsum.LARGEST_STEP = setting
        return "zero"
    strategies.dpsum.NOISE_LENGTH, fedpriv.config.methods.STATISTICS = setting[0], 20 // setting[2]
    return setting[1]


def regrets(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """[settings] of a cell's scores [seeds, settings]."""
    half = len(scores) // 2
    halves = scores[:half].mean(0), scores[half:].mean(0)
    best = [halves[1 - side][halves[side].argmax()] for side in (0, 1)]
    return (best[0] - halves[1] + best[1] - halves[0]) / 2


def choose(found: Found) -> tuple[float, str, int]:
    """What the rule says; prints a line for each setting."""
    changes = [sum(now != then for now, then in zip(setting, SETTINGS[0], strict=True)) for setting in SETTINGS]
    chosen = best_of(found, FORMS, list(zip(changes, SETTINGS, strict=True)))
    return SETTINGS[chosen]


def choose_shape(found: Found) -> tuple[float, bool, float]:
    """Noise length, whether steps fall, share of the models in the mean, by the rule."""
    changes = [(length != 12) + falls + (average != 0.5) for length, falls, average in SHAPES]
    return SHAPES[best_of(found, [f"{form}, shape" for form in FORMS], list(zip(changes, SHAPES, strict=True)))]


def choose_largest(found: Found) -> float:
    """The largest step by the rule, with the setting that was chosen."""
    return LARGEST[best_of(found, (STEPS,), [(place > 0, step) for place, step in enumerate(LARGEST)])]


def best_of(found: Found, forms: Sequence[str], settings: Sequence[tuple[Any, Any]]) -> int:
    """Place of the best setting by mean regret, of equally good ones the first by (changes, setting). Prints them."""
    places = sorted({(name, epsilon, form) for name, _, epsilon, form in found if form in forms}, key=str)
    scores = np.array([[found[name, seed, epsilon, form] for seed in SEEDS] for name, epsilon, form in places])
    table = np.array([regrets(cell) for cell in scores])
    means, worst = table.mean(0), table.max(0)
    goal = np.where(worst <= 2, means, np.inf) if (worst <= 2).any() else worst
    near = [place for place in range(len(settings)) if goal[place] - goal.min() < 0.1]
    chosen = min(near, key=lambda place: settings[place])
    print("| setting | mean score | mean regret | worst | where |\n|---|---|---|---|---|")
    for place, (_, setting) in enumerate(settings):
        shown = ", ".join(map(str, setting)) if isinstance(setting, tuple) else setting
        figures = f"{scores[..., place].mean():.2f} | {means[place]:.2f} | {worst[place]:.2f}"
        where = ", ".join(map(str, places[int(table[:, place].argmax())]))
        print(f"| {shown} | {figures} | {where} |{' chosen' if place == chosen else ''}")
    return chosen


def main(arguments: list[str]) -> None:
    given = next((item.removeprefix("part=") for item in arguments if item.startswith("part=")), "0/1")
    part, parts = map(int, given.split("/"))
    if "choose" in arguments:
        for of in (choose, choose_shape, choose_largest):
            print(of(done()), "\n")
    elif "shapes" in arguments:
        shapes(part, parts)
    else:
        study(part, parts, "steps" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
