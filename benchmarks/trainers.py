"""The vectorised trainer against the sequential one: seconds per whole round as ratios, from alternating rounds.

    python -m benchmarks.trainers [rounds=21] [jobs=linear,mlp,cnn]

1,000 clients x 60 pictures, 100 of them a round, one process, one thread, FedAvg without evaluation. Besides whole
rounds (messages, client halves, ledger), the training alone: 100 clients' batches and steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.contenders import OwnEngine
from benchmarks.job import Job
from benchmarks.speed import RESULTS, alternate, ratio
from benchmarks.statistics import machine, median_interval
from fedpriv.training.sequential import SequentialTrainer, Training

PICTURES = {"28x28": "benchmarks.job.random_pictures", "8x8": "benchmarks.job.small_pictures"}
LOCAL = {"5 epochs, batch 10": (5, 10), "1 epoch, batch 12": (1, 12), "1 epoch, batch 60": (1, 60)}
COHORT = 100


def contender(model: str, pictures: str, epochs: int, batch: int, trainer: str) -> OwnEngine:
    extra = {
        "dataset.path": PICTURES[pictures],
        "local.epochs": epochs,
        "local.batch_size": batch,
        "engine.trainer": trainer,
    }
    job = Job(model, 1000, COHORT, 60)
    return OwnEngine(job, "inprocess", extra=[f"{key}={value}" for key, value in extra.items()])


class Alone:
    """The cohort's training without messages, memories and releases."""

    def __init__(self, engine: OwnEngine) -> None:
        self.trainer: SequentialTrainer = engine.worker.trainer
        self.theta = engine.worker.initial_model
        self.data = [engine.worker.local_data(client) for client in range(COHORT)]

    def round(self) -> float:
        began = time.perf_counter()
        self.trainer.train_all(
            [Training(self.theta, data, np.random.default_rng(client)) for client, data in enumerate(self.data)]
        )
        return time.perf_counter() - began


def main(arguments: Sequence[str]) -> int:
    options = dict(argument.split("=", 1) for argument in arguments)
    rounds = int(options.get("rounds", 21))
    results: dict[str, Any] = {"machine": machine(rounds=rounds, threads=1)}
    for model in options.get("jobs", "linear,mlp,cnn").split(","):
        for pictures in ("28x28",) if model == "cnn" else PICTURES:
            for words, (epochs, batch) in LOCAL.items():
                if model == "cnn" and words != "1 epoch, batch 12":  # a minute per round, without further information
                    continue
                name = f"{model}, {pictures}, {words}"
                print(f"--- {name}", flush=True)
                turns = 5 if model == "cnn" else rounds
                both = {kind: contender(model, pictures, epochs, batch, kind) for kind in ("sequential", "vectorised")}
                whole = alternate(both, turns)
                alone = alternate({kind: Alone(engine) for kind, engine in both.items()}, turns)
                results[name] = {
                    "sequential / vectorised, whole rounds": ratio(whole, "sequential", "vectorised"),
                    "sequential / vectorised, training alone": ratio(alone, "sequential", "vectorised"),
                    "seconds per round": {kind: median_interval(values) for kind, values in whole.items()},
                    "load after": machine()["load"],
                }
                for key in ("sequential / vectorised, whole rounds", "sequential / vectorised, training alone"):
                    print("  {}: {:.2f} [{:.2f}, {:.2f}]".format(key, *results[name][key]), flush=True)
                for engine in both.values():
                    engine.close()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "trainers.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
