"""How the options of CIFAR-10 in a secure sum, and with a trusted server, were chosen: on held-out training pictures.

    python -m benchmarks.choose_pictures grid data=PICTURES [trust=sum]      # then rounds, then final
    python -m benchmarks.choose_pictures show

PICTURES has a folder cifar10 (dataset=image_folder) of 20,000 training and 4,000 test pictures. Lines of JSON in
benchmarks/results/choices.jsonl, each written as its run ends; what is there is not run again.

The rule, written before any of these runs. 4,000 of the 20,000 training pictures, 400 of each class, are held out;
1,000 clients share the other 16,000, so that cohorts and noise are those of the experiment. All accuracies below are on
the held-out pictures. The test pictures are read by `benchmarks.bench_backbones`, after the choice is committed.
Features are those of the network that has seen no data, mirrored, with the map of drawings. Trust is a secure sum of
all 1,000 clients in every round (FedOnce by Gaussians), or a server that adds the noise (DP-FedAvg, all 1,000 expected
in a round).

1. grid: every candidate of `GRID` at epsilon 1 and 8, seed 100. For each trust and epsilon the best one goes on.
2. rounds: these with half and twice as many rounds, and the same step. For each trust and epsilon the best one goes on,
   of the grid and these: at most two finalists for each trust. What is used before this study is a finalist too.
3. final: all finalists at epsilon 1, 2, 4 and 8 with seeds 101, 102 and 103.
4. For each trust the finalist with the largest mean over epsilons and seeds becomes the experiment's, at every
   epsilon: few constants are worth a little accuracy. Only where another finalist is better by a point in the mean of
   the three seeds, and better for each of them, does an option follow epsilon: `features.dims=auto` by the formula of
   `fedpriv/config/feature_dims.py` if dims is what tells the two apart, otherwise the page names both settings.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import fedpriv
from fedpriv.studies.data import held_out

RESULTS = Path(__file__).parent / "results" / "choices.jsonl"
HELD_OUT, EPSILONS, FIRST_SEED, FINAL_SEEDS = 4000, (1, 2, 4, 8), 100, (101, 102, 103)
#: What both have, whoever is trusted.
PICTURES = (
    *("features=processes", "features.map=drawings", "features.mirror=true", "features.normalise=none"),
    *("dataset.auxiliary=0", "engine=inprocess", "operations.report=false", "evaluate.every=0", "checkpoint.every=0"),
)
TRUST = {
    "sum": ("experiment=private_mnist_sum", "dataset=image_folder"),
    "server": ("experiment=private_mnist_trusted", "dataset=image_folder"),
}
#: By name; "as it was" are the options of the earlier figures of docs/public_weights.md.
STEPS: dict[str, dict[str, tuple[str, ...]]] = {
    "sum": {
        **{f"auto, tau {tau}": (f"strategy.server.scale={tau}",) for tau in (48, 100, 200)},
        **{f"step {step}": (f"strategy.server.step={step}",) for step in (5, 10, 15, 25)},
    },
    "server": {
        f"rate {rate}, momentum": (
            *(f"strategy.server.learning_rate={rate}", "strategy.server.optimizer=momentum"),
            "strategy.server.momentum=0.8",
        )
        for rate in (40, 80, 160, 320)
    },
}
ROUNDS = {"sum": 16, "server": 40}
BEFORE = {"sum": (100, 0.25, "auto, tau 48", 16), "server": (100, 0.25, "rate 400", 16)}
OTHER: dict[str, tuple[str, ...]] = {"rate 400": ("strategy.server.learning_rate=400",)}
#: (dims, exponent, name of the step, rounds)
Setting = tuple[int, float, str, int]
GRID: dict[str, tuple[Setting, ...]] = {
    trust: tuple(
        (dims, e, step, ROUNDS[trust]) for dims in (100, 200, 360) for e in (0.25, 0.5) for step in STEPS[trust]
    )
    for trust in TRUST
}


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.open()] if RESULTS.is_file() else []


def found(trust: str, epsilon: float, seeds: Sequence[int], on: str = "held out") -> dict[Setting, list[float]]:
    """Setting -> accuracies in %, of those that have all seeds."""
    values: dict[Setting, dict[int, float]] = {}
    for line in lines():
        if (line["on"], line["trust"], line["epsilon"]) == (on, trust, epsilon) and line["seed"] in seeds:
            values.setdefault(tuple(line["setting"]), {})[line["seed"]] = line["accuracy"]
    return {one: [mine[seed] for seed in seeds] for one, mine in values.items() if len(mine) == len(seeds)}


def best(trust: str, epsilon: float) -> Setting:
    values = found(trust, epsilon, (FIRST_SEED,))
    return max(values, key=lambda one: values[one][0])


def asked(part: str, trust: str) -> Iterator[tuple[Setting, float, int]]:
    """The runs of a part, in their order."""
    if part == "grid":
        yield from ((one, epsilon, FIRST_SEED) for epsilon in (8, 1) for one in GRID[trust])
    elif part == "rounds":
        for epsilon in (8, 1):
            in_grid = {one: value for one, value in found(trust, epsilon, (FIRST_SEED,)).items() if one in GRID[trust]}
            dims, exponent, step, rounds = max(in_grid, key=lambda one: in_grid[one][0])
            yield from (((dims, exponent, step, other), epsilon, FIRST_SEED) for other in (rounds // 2, 2 * rounds))
    else:
        finalists = dict.fromkeys([BEFORE[trust], *(best(trust, epsilon) for epsilon in (8, 1))])
        yield from ((one, epsilon, seed) for seed in FINAL_SEEDS for epsilon in EPSILONS for one in finalists)


def accuracy(options: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = fedpriv.run([*options], folder=Path(folder) / "run", quiet=True)
        return 100 * float(run.summary["accuracy"]["final"])


def study(part: str, trust: str, data: Path) -> None:
    where = ("dataset=image_folder", f"dataset.root={data / 'cifar10'}", "dataset.size=32")
    with tempfile.TemporaryDirectory() as folder:
        split, _ = held_out(where, "cifar10", HELD_OUT, 0, Path(folder))
        for setting, epsilon, seed in asked(part, trust):
            key = {"on": "held out", "trust": trust, "setting": list(setting), "epsilon": epsilon, "seed": seed}
            if any(key.items() <= line.items() for line in lines()):
                continue
            dims, exponent, step, rounds = setting
            own = (f"features.dims={dims}", f"features.exponent={exponent}", f"num_rounds={rounds}", f"seed={seed}")
            more = (*(STEPS[trust] | OTHER)[step], f"privacy.target_epsilon={epsilon}", f"dataset.split={split}")
            write(key, (*TRUST[trust], *where[1:], *PICTURES, *own, *more))


def write(key: dict[str, object], options: Sequence[str]) -> None:
    line = json.dumps(key | {"accuracy": round(accuracy(options), 2)})
    print(line, flush=True)
    with RESULTS.open("a") as out:
        out.write(line + "\n")


def show() -> None:
    for trust in TRUST:
        for seeds in ((FIRST_SEED,), FINAL_SEEDS):
            by_epsilon = {epsilon: found(trust, epsilon, seeds) for epsilon in EPSILONS}
            for one in sorted({one for values in by_epsilon.values() for one in values}):
                cells = [f"{mean(values[one]):6.2f}" if one in values else "     -" for values in by_epsilon.values()]
                print(f"{trust:7s}{len(seeds)} seeds {one!s:40s}" + " ".join(cells))


def main(arguments: Sequence[str]) -> None:
    part, given = arguments[0], dict(one.split("=", 1) for one in arguments[1:])
    if part == "show":
        return show()
    for trust in [given["trust"]] if "trust" in given else TRUST:
        study(part, trust, Path(given["data"]))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
