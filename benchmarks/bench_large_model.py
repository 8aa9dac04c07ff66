"""The cost of a large model's round besides local training: messages, clients' memories, aggregation.

Run: python -m benchmarks.bench_large_model dataset=image_folder dataset.root=PICTURES dataset.size=32 [more options].
ADP-FL with ResNet-18 (11 million parameters), 10 clients, one round of one epoch, everything in one process; any option
can be given. Prints the round's time by part and the peak memory.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpriv.config.compose import compose
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.start import start_run
from fedpriv.training.distillation import Distiller
from fedpriv.training.sequential import SequentialTrainer

JOB = (
    "strategy=adpfl",
    "model=resnet18",
    "partition=dirichlet",
    "partition.alpha=1.0",
    "num_clients=10",
    "clients_per_round=10",
    "num_rounds=1",
    "local.epochs=1",
    "local.batch_size=128",
    "evaluate.every=0",
    "engine=inprocess",
)
#: What counts as work of the method itself: part of the round -> the function that does it.
PARTS: dict[str, tuple[type[Any], str]] = {
    "local training": (SequentialTrainer, "train"),
    "clients' tests": (SequentialTrainer, "accuracy"),
    "distillation": (Distiller, "__call__"),
}


def timed(seconds: Counter[str], part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds[part] += time.perf_counter() - began  # type: ignore[assignment]

    return call


def main(overrides: list[str]) -> None:
    seconds: Counter[str] = Counter()
    for part, (kind, name) in PARTS.items():
        setattr(kind, name, timed(seconds, part, getattr(kind, name)))
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        summary = start_run(compose([*JOB, *overrides]), folder.path)
        whole = sum(row["seconds"] for row in folder.metrics.read())
    rest = whole - sum(seconds.values())
    print(f"{summary['num_parameters']:,} parameters, {summary['num_shared']:,} of them shared")
    for part, value in [("round", whole), *seconds.items(), ("all else", rest)]:
        print(f"{part:<16}{value:9.2f} s")
    print(f"all else / local training {rest / seconds['local training']:.1%}; peak {summary['peak_memory_mib']} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
