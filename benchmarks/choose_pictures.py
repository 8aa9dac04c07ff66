"""How the options of CIFAR-10 in a secure sum, and with a trusted server, were chosen: on held-out training pictures.

    python -m benchmarks.choose_pictures grid data=PICTURES [trust=sum]      # then noise, final
    python -m benchmarks.choose_pictures show

PICTURES has a folder cifar10 (dataset=image_folder) of 20,000 training and 4,000 test pictures. Lines of JSON in
benchmarks/results/choices.jsonl, each written as its run ends; what is there is not run again.

The rule, written before any of these runs. 4,000 of the 20,000 training pictures, 400 of each class, are held out;
1,000 clients share the other 16,000, so that cohorts and noise are those of the experiment. All accuracies below are on
the held-out pictures. The test pictures are read by `benchmarks.bench_backbones`, after the choice is committed.
Features are those of the network that has seen no data, mirrored, with the map of drawings. Trust is a secure sum of
all 1,000 clients in every round (FedOnce by Gaussians), or a server that adds the noise (DP-FedAvg, all 1,000 expected
in a round). `simulated` computes such a run in one array: the product's arithmetic, in a small part of its time.

1. grid: every candidate of `GRID`, constant steps among them, at epsilon 1, 2, 4 and 8, seed 100. It was stopped when
   dims 100 and a part of 200 were there: whoever is trusted, the best step at epsilon 8 was six to eight times that at
   1, and a constant lost two points and more at one of them. So the rule below took the place of what had been written
   (one constant setting), before any of the runs that it asks for.
2. even: all steps of a run are equal, and so long that the noise of the whole run moves the model by a length K in the
   root mean square: K = step * (standard deviation of a round's noise in a coordinate) * sqrt(rounds * numbers). Of
   this a part was tried at dims 200: near the best constant of each epsilon, but where a message of length one moved
   the model by more than about 40, training diverged (41 to 56 %).
3. noise: the same, and a message of the largest length moves the model by 30 (`LONGEST`) at most, the longest step of
   the grid. `SHARED`: K, dims and exponent, few or many rounds, of the server also plain steps, at all epsilons, seed
   100.
4. final: of each number of rounds the two (dims, exponent, K) with the largest mean over both trusts and all epsilons,
   for the server plain and with momentum, and what was used before this study (`BEFORE`), with seeds 101 to 103.
5. One (dims, exponent, K) is chosen for both trusts: that with the largest mean over trusts, epsilons and seeds. Few
   rounds and plain steps are taken unless the other is better by half a point in that mean.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.config.compose import compose
from fedpriv.data.load import load_dataset
from fedpriv.data.networks import drawings_map
from fedpriv.data.partition import divide_by_class
from fedpriv.privacy.gaussian_dp import gaussian_mu
from strategies.fedonce import step_of

RESULTS = Path(__file__).parent / "results" / "choices.jsonl"
HELD_OUT, EPSILONS, FIRST_SEED, FINAL_SEEDS, BEST = 0.2, (1, 2, 4, 8), 100, (101, 102, 103), 2
CLIENTS, CLASSES, DELTA = 1000, 10, 1e-5
#: Of both experiments: local training, and the trusted server's C.
LOCAL_STEPS, LOCAL_RATE, CLIP_NORM = 5, 60.0, 0.05
SPREAD, MOMENTUM = 2.0, 0.8
MOST, LONGEST, HALF = 360, 30.0, 0.5

#: (dims, exponent, step, rounds). step: of a sum its length, "auto TAU" or "noise K"; of the server its rate, "noise
#: K", "noise K plain" or "RATE plain": without momentum.
Setting = tuple[int, float, str, int]
STEPS = {
    "sum": (("auto 48", "auto 100", "auto 200", "5", "10", "15", "20", "30"), (16, 32)),
    "server": (("40", "80", "160", "320", "640"), (20, 40)),
}
BEFORE: dict[str, Setting] = {"sum": (100, 0.25, "auto 48", 16), "server": (100, 0.25, "400 plain", 16)}
GRID: dict[str, tuple[Setting, ...]] = {
    trust: tuple(
        (dims, exponent, step, number)
        for dims in (100, 200, MOST)
        for exponent in (0.25, 0.4, 0.5, 0.6)
        for number in rounds
        for step in steps
    )
    for trust, (steps, rounds) in STEPS.items()
}
ROUNDS = {"sum": (16, 32), "server": (20, 40)}  # few, many
#: (dims, exponent, K)
Shared = tuple[int, float, int]
SHARED: tuple[Shared, ...] = tuple(
    (dims, exponent, k) for dims in (200, MOST) for exponent in (0.25, 0.4, 0.5) for k in (45, 60, 80)
)

Floats = NDArray[np.float32]


class Pictures:
    """Features in all directions of the map, unweighted, of the pictures to train on and of those held out."""

    def __init__(self, data: Path) -> None:
        options = ("features=processes", "features.map=drawings", "features.mirror=true", "model=softmax")
        where = ("dataset=image_folder", f"dataset.root={data / 'cifar10'}", "dataset.size=32", "dataset.auxiliary=0")
        config = compose([*options, *where, f"features.dims={MOST}", "features.exponent=0"])
        whole = load_dataset(config.dataset, 0, config.features).train
        assert whole.features is not None
        train, held = divide_by_class(np.asarray(whole.targets), HELD_OUT, 0)
        self.train, self.held = whole.features[train], whole.features[held]
        self.labels, self.held_labels = (np.asarray(whole.targets)[rows] for rows in (train, held))
        self._weights = np.linalg.norm(drawings_map(MOST, 1.0).matrix, axis=0)

    def weighed(self, dims: int, exponent: float) -> tuple[Floats, Floats]:
        """What `features.dims` and `features.exponent` make of both."""
        weights = self._weights[:dims] ** exponent

        def unit(rows: Floats) -> Floats:
            return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)

        return unit(self.train[:, :dims] * weights), unit(self.held[:, :dims] * weights)


def simulated(pictures: Pictures, trust: str, setting: Setting, epsilon: float, seed: int) -> float:
    """Accuracy in % on the held-out pictures. The clients' updates are A'Z with coefficients A [clients, n, C] and a
    client's features Z [n, d] (`fedpriv.training.full_batch`).
    """
    dims, exponent, step, rounds = setting
    train, held = pictures.weighed(dims, exponent)
    random = np.random.default_rng(seed)
    order = random.permutation(len(train))[: len(train) // CLIENTS * CLIENTS]
    flat = train[order]
    z = flat.reshape(CLIENTS, -1, dims)
    wanted = np.eye(CLASSES, dtype=np.float32)[pictures.labels[order]].reshape(CLIENTS, -1, CLASSES)
    kernel = z @ z.transpose(0, 2, 1)
    mu, size = gaussian_mu(epsilon, DELTA), dims * CLASSES
    name, _, more = step.partition(" ")
    momentum = MOMENTUM if trust == "server" and not step.endswith("plain") else 0.0
    error = float(more) ** 2 if name == "auto" else 0.0
    spread = SPREAD**2 * error
    theta, velocity = np.zeros((CLASSES, dims)), np.zeros((CLASSES, dims))
    for _ in range(rounds):
        start = (flat @ theta.astype(np.float32).T).reshape(wanted.shape)
        a = np.zeros_like(wanted)
        for _ in range(LOCAL_STEPS):
            shares = np.exp(start + kernel @ a)
            a += LOCAL_RATE / z.shape[1] * (wanted - shares / shares.sum(2, keepdims=True))
        lengths = np.sqrt((a * (kernel @ a)).sum((1, 2)))
        if trust == "sum":  # directions, and each client's own noise, of which the sum has CLIENTS times the variance
            std = 2 * math.sqrt(rounds / CLIENTS) / mu
            a /= lengths[:, None, None]
            noise = std / math.sqrt(CLIENTS)
            if name == "noise":
                length = min(LONGEST, float(more) / (noise * math.sqrt(rounds * size)))
            elif name == "auto":
                length, error = step_of(error, spread, (1 - 1 / CLASSES) * size * std**2, CLIENTS)
            else:
                length = float(name)
        else:
            a *= np.minimum(1 / LOCAL_RATE, CLIP_NORM / lengths)[:, None, None]
            noise = CLIP_NORM * math.sqrt(rounds) / mu / CLIENTS
            if name == "noise":
                even = (1 - momentum) * float(more.split()[0]) / (noise * math.sqrt(rounds * size))
                length = min(LONGEST / CLIP_NORM, even)
            else:
                length = float(name)
        moved = a.reshape(-1, CLASSES).T @ flat / CLIENTS + random.normal(0, noise, (CLASSES, dims))
        velocity = momentum * velocity + length * moved
        theta += velocity
    return 100 * float((np.argmax(held @ theta.T, 1) == pictures.held_labels).mean())


def lines() -> list[dict[str, Any]]:
    return _read(RESULTS.stat().st_size) if RESULTS.is_file() else []


@lru_cache(maxsize=1)
def _read(size: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.open()]


def found(trust: str, epsilon: float, seeds: Sequence[int]) -> dict[Setting, list[float]]:
    """Setting -> accuracies in %, of those that have all seeds."""
    values: dict[Setting, dict[int, float]] = {}
    for line in lines():
        if (line["trust"], line["epsilon"]) == (trust, epsilon) and line["seed"] in seeds:
            values.setdefault(tuple(line["setting"]), {})[line["seed"]] = line["accuracy"]
    return {one: [mine[seed] for seed in seeds] for one, mine in values.items() if len(mine) == len(seeds)}


def asked(part: str, trust: str) -> Iterator[tuple[Setting, float, int]]:
    """The runs of a part, in their order."""
    if part == "grid":
        yield from ((one, epsilon, FIRST_SEED) for one in GRID[trust] for epsilon in EPSILONS)
        return
    if part == "noise":
        yield from (
            (one, epsilon, FIRST_SEED) for shared in SHARED for one in forms(trust, shared) for epsilon in EPSILONS
        )
        return
    finalists = [BEFORE[trust]]
    for many in (False, True):
        best = sorted(SHARED, key=lambda shared, m=many: score(shared, m, (FIRST_SEED,)))[-BEST:]  # type: ignore[misc]
        finalists += [one for shared in best for one in forms(trust, shared) if one[3] == ROUNDS[trust][many]]
    for one in finalists:
        yield from ((one, epsilon, seed) for epsilon in EPSILONS for seed in FINAL_SEEDS)


def forms(trust: str, shared: Shared, plain: bool | None = None) -> list[Setting]:
    """The settings of one trust that have these shared values; plain: None for steps of both kinds."""
    dims, exponent, k = shared
    kinds = ("", " plain") if trust == "server" else ("",)
    if plain is not None and trust == "server":
        kinds = (kinds[plain],)
    return [(dims, exponent, f"noise {k}{kind}", number) for number in ROUNDS[trust] for kind in kinds]


def score(shared: Shared, many: bool, seeds: Sequence[int], plain: bool = True) -> float:
    """The mean over trusts, epsilons and seeds; 0 where runs are missing."""
    means = []
    for trust, numbers in ROUNDS.items():
        (one,) = (one for one in forms(trust, shared, plain) if one[3] == numbers[many])
        for epsilon in EPSILONS:
            means.append(mean(found(trust, epsilon, seeds).get(one, [0.0])))
    return mean(means) if all(means) else 0.0


def chosen() -> dict[str, Setting]:
    """What the last step of the rule takes, by trust."""
    best = {
        (many, plain): max((score(shared, many, FINAL_SEEDS, plain), shared) for shared in SHARED)
        for many in (False, True)
        for plain in (True, False)
    }
    many = max(best[True, p] for p in (True, False))[0] - max(best[False, p] for p in (True, False))[0] >= HALF
    plain = best[many, False][0] - best[many, True][0] < HALF
    shared = best[many, plain][1]
    return {
        trust: next(one for one in forms(trust, shared, plain) if one[3] == ROUNDS[trust][many]) for trust in ROUNDS
    }


def study(part: str, trust: str, pictures: Pictures) -> None:
    done = {(tuple(line["setting"]), line["epsilon"], line["seed"]) for line in lines() if line["trust"] == trust}
    for setting, epsilon, seed in asked(part, trust):
        if (setting, epsilon, seed) not in done:
            accuracy = round(simulated(pictures, trust, setting, epsilon, seed), 2)
            line = {"trust": trust, "setting": setting, "epsilon": epsilon, "seed": seed, "accuracy": accuracy}
            with RESULTS.open("a") as out:
                out.write(json.dumps(line) + "\n")


def show() -> None:
    """What is shared, then the settings of each trust, by their means; few, many rounds; plain, with momentum."""
    for seeds in ((FIRST_SEED,), FINAL_SEEDS):
        for shared in sorted(SHARED, key=lambda one: -score(one, True, seeds)):
            means = [score(shared, many, seeds, plain) for many in (False, True) for plain in (True, False)]
            print(f"both   {len(seeds)} {shared!s:32s}" + " ".join(f"{value:6.2f}" for value in means))
    print(f"chosen {chosen()}")
    for trust in STEPS:
        for seeds in ((FIRST_SEED,), FINAL_SEEDS):
            by_epsilon = [found(trust, epsilon, seeds) for epsilon in EPSILONS]
            table = {one: [mean(values[one]) for values in by_epsilon if one in values] for one in by_epsilon[0]}
            for one in sorted(table, key=lambda one: -mean(table[one])):
                cells = " ".join(f"{value:6.2f}" for value in (*table[one], mean(table[one])))
                print(f"{trust:7s}{len(seeds)} {one!s:32s}{cells}")


def main(arguments: Sequence[str]) -> None:
    part, given = arguments[0], dict(one.split("=", 1) for one in arguments[1:])
    if part == "show":
        return show()
    pictures = Pictures(Path(given["data"]))
    for trust in [given["trust"]] if "trust" in given else STEPS:
        study(part, trust, pictures)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
