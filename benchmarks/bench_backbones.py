"""Accuracy against epsilon by who is trusted and what is known beforehand, on CIFAR-10; and FedOnce on other sets.

    python -m benchmarks.bench_backbones cifar data=PICTURES [seeds=0,1,2]
    python -m benchmarks.bench_backbones elsewhere data=PICTURES [seeds=0,1,2]
    python -m benchmarks.bench_backbones show

PICTURES has a folder cifar10 and a folder cifar100 (dataset=image_folder). Lines of JSON in
benchmarks/results/backbones.jsonl; what is there already is not run again.

cifar: 20,000 pictures for training, 4,000 for testing; clients are 1,000 with 20 pictures each. No option was chosen
for these rows: those of the experiments that they name, with the dimensions of `features` below for all epsilons. Only
those of `CHOSEN`, with our network, have options that were chosen on training pictures (`benchmarks.choose_pictures`).
A real public network has its own table (`benchmarks.choose_public`).

elsewhere: every client speaks once, nobody is trusted; the options are those of FedOnce or of `private_cifar`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import fedpriv
from fedpriv.report.compare import spread
from fedpriv.report.words import plus_minus

RESULTS = Path(__file__).parent / "results" / "backbones.jsonl"
EPSILONS = (1, 2, 4, 8)

TRUST: dict[str, tuple[str, ...]] = {
    "nobody": ("experiment=private_cifar",),
    "a secure sum": (
        *("experiment=private_cifar", "strategy.client.mechanism=gaussian", "strategy.server.spread=2"),
        *("strategy.server.participation=balanced", "strategy.server.min_replies=1000", "clients_per_round=1000"),
        *("num_rounds=16", "privacy.target_observer=secure-sum"),
    ),
    "the server": (
        *("experiment=private_mnist_trusted", "dataset.train_examples=20000", "dataset.auxiliary=0"),
        *("features.normalise=none", "features.mirror=true"),
    ),
    "one picture": ("experiment=example_cifar",),
}
#: dims: of clients; of single pictures. The results also have rows of `formulas` (local cosine
#: transforms) and of a stand-in network, both now gone.
FEATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "our network": (
        ("features=processes", "features.map=drawings", "features.dims=100", "features.exponent=0.25"),
        ("features=processes", "features.map=drawings", "features.dims=360", "features.exponent=0.5"),
    ),
}
#: Trust -> an experiment, in rows of their own.
CHOSEN = {"a secure sum": "experiment=private_cifar_sum", "the server": "experiment=private_cifar_trusted"}
CHOSEN_NAME = "our network, options chosen"
SMALL = ("num_clients=1000", "clients_per_round=125", "num_rounds=8")
ONCE = ("strategy=fedonce", "features=none", "model=linear", "strategy.server.participation=once")
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "CIFAR-100's part, our network": ("experiment=private_cifar", "dataset.train_examples=8000"),
    "digits": ("experiment=private_digits",),
    "breast_cancer": (*ONCE, "dataset=breast_cancer", "num_clients=100", "clients_per_round=25", "num_rounds=4"),
    "practices": (*ONCE, "dataset=practices", *SMALL),
    "docstrings": (*ONCE, "dataset=docstrings", *SMALL),
}


def accuracy(options: Sequence[str]) -> float:
    quick = ("checkpoint.every=0", "evaluate.every=0", "operations.report=false", "engine=inprocess")
    with tempfile.TemporaryDirectory() as folder:
        run = fedpriv.run([*options, *quick], folder=Path(folder) / "run", quiet=True)
        return 100 * float(run.summary["accuracy"]["final"])


def pictures(data: Path, name: str) -> tuple[str, ...]:
    return ("dataset=image_folder", f"dataset.root={data / name}", "dataset.size=32")


def cifar_rows(data: Path, seeds: Sequence[int]) -> list[tuple[dict[str, object], tuple[str, ...]]]:
    rows: list[tuple[dict[str, object], tuple[str, ...]]] = []
    for seed in seeds:
        for epsilon in EPSILONS[::-1]:
            for trust, experiment in CHOSEN.items():
                row = {"part": "cifar", "trust": trust, "known": CHOSEN_NAME, "epsilon": epsilon, "seed": seed}
                own = (f"privacy.target_epsilon={epsilon}", f"seed={seed}")
                rows.append((row, (experiment, *pictures(data, "cifar10"), *own)))
        for trust, options in TRUST.items():
            for known, (of_clients, of_pictures) in FEATURES.items():
                features = of_pictures if trust == "one picture" else of_clients
                more = (*features, "features.mirror=true")
                for epsilon in EPSILONS:
                    row = {"part": "cifar", "trust": trust, "known": known, "epsilon": epsilon, "seed": seed}
                    own = (f"privacy.target_epsilon={epsilon}", f"seed={seed}")
                    rows.append((row, (*options, *pictures(data, "cifar10"), *more, *own)))
    return rows


def other_rows(data: Path, seeds: Sequence[int]) -> list[tuple[dict[str, object], tuple[str, ...]]]:
    rows = []
    for seed in seeds:
        for name, options in ELSEWHERE.items():
            source = pictures(data, "cifar100") if name.startswith("CIFAR-100") else ()
            for epsilon in EPSILONS:
                row = {"part": "elsewhere", "set": name, "epsilon": epsilon, "seed": seed}
                rows.append((row, (*options, *source, f"privacy.target_epsilon={epsilon}", f"seed={seed}")))
    return rows


def show() -> None:
    found: dict[tuple[str, ...], list[float]] = {}
    for row in map(json.loads, RESULTS.read_text().splitlines()):
        key = (row["part"], row.get("set") or f"{row['trust']}, {row['known']}", str(row["epsilon"]))
        found.setdefault(key, []).append(row["accuracy"])
    for part, name in dict.fromkeys(key[:2] for key in found):
        cells = []
        for epsilon in EPSILONS:
            values = found.get((part, name, str(epsilon)), [])
            cells.append(plus_minus(mean(values), spread(values).half_width) + f" ({len(values)})" if values else "")
        print(f"| {name} | " + " | ".join(cells) + " |")


def main(arguments: Sequence[str]) -> None:
    part, given = arguments[0], dict(one.split("=", 1) for one in arguments[1:])
    if part == "show":
        return show()
    data, seeds = Path(given["data"]), [int(one) for one in given.get("seeds", "0,1,2").split(",")]
    done = []
    if RESULTS.is_file():
        done = [{k: v for k, v in json.loads(line).items() if k != "accuracy"} for line in RESULTS.open()]
    for row, options in {"cifar": cifar_rows, "elsewhere": other_rows}[part](data, seeds):
        if row not in done:
            line = json.dumps(row | {"accuracy": round(accuracy(options), 2)})
            print(line, flush=True)
            with RESULTS.open("a") as lines:
                lines.write(line + "\n")
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
