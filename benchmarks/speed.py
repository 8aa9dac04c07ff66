"""Seconds per round as ratios, from rounds that alternate in one run on one machine.

Every ratio is the median over pairs of neighbouring rounds, with the 95% interval of the median (order statistics).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import BareLoop, OwnEngine, OwnEngineApart
from benchmarks.flower_peer import FlowerRuntime
from benchmarks.job import Job
from benchmarks.statistics import Figure, median_interval, shown

RESULTS = Path(__file__).parent / "results"


def alternate(contenders: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender's rounds, one round of each in turn; the first turn warms up and is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            taken = contender.round()
            if turn:
                seconds[name].append(taken)
    for name, values in seconds.items():
        print(f"  {name}: {shown(median_interval(values))} s per round", flush=True)
    return seconds


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> tuple[float, float, float]:
    return median_interval([a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)])


@contextmanager
def closing(contenders: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        yield contenders
    finally:
        for contender in contenders.values():
            contender.close()


def engines(job: Job, rounds: int, processes: int = 2) -> dict[str, Figure]:
    """One process against one, two against two; then Ray against Flower's own runtime. processes=1: the first alone."""
    result: dict[str, Figure] = {}
    one: dict[str, Any] = {"bare loop, 1 process": BareLoop(job, 1)}
    for trainer in ("sequential", "vectorised") if job.name == "linear" else ("sequential",):
        one[f"inprocess, {trainer}"] = OwnEngine(job, "inprocess", extra=[f"engine.trainer={trainer}"])
    seconds = alternate(one, rounds)
    for name in list(one)[1:]:
        result[f"{name} / bare loop, 1 process"] = ratio(seconds, name, "bare loop, 1 process")
    if processes == 1:
        return result
    two: dict[str, Any] = {"bare loop, 2 processes": BareLoop(job, 2), "ray": OwnEngine(job, "ray", 2)}
    seconds |= alternate(two, rounds)
    result["ray, 2 workers / bare loop, 2 processes"] = ratio(seconds, "ray", "bare loop, 2 processes")
    ray_seconds = seconds["ray"]
    for contender in (*one.values(), *two.values()):
        contender.close()
    # Flower's runtime and our Ray engine each want a Ray of their own, so both start afresh, one after the other.
    trainer = "vectorised" if job.name == "linear" else "sequential"
    own = OwnEngineApart(job, [f"engine.trainer={trainer}"])
    beside = {"bare loop beside Flower": BareLoop(job, 2), "inprocess beside Flower": own}
    with closing(beside | {"flower": FlowerRuntime(job, 2)}) as contenders:
        seconds |= alternate(contenders, rounds)
    result["Flower's runtime / bare loop, 2 processes"] = ratio(seconds, "flower", "bare loop beside Flower")
    ours = np.array(ray_seconds) / np.array(seconds["bare loop, 2 processes"])
    theirs = np.array(seconds["flower"]) / np.array(seconds["bare loop beside Flower"])
    result["Flower's runtime / ray (both over the bare loop)"] = median_interval(list(theirs / ours))
    result[f"Flower's runtime / inprocess, {trainer}, 1 process"] = ratio(seconds, "flower", "inprocess beside Flower")
    return result


#: What a fresh process runs: everything from its start to the end of its first round.
FIRST = {
    "inprocess": "from benchmarks.contenders import OwnEngine; OwnEngine(job, 'inprocess')",
    "ray, 2 workers": "from benchmarks.contenders import OwnEngine; OwnEngine(job, 'ray', 2)",
    "Flower's runtime": "from benchmarks.flower_peer import FlowerRuntime; FlowerRuntime(job, 2)",
}


def first_rounds(job: Job, times: int) -> dict[str, Figure]:
    """Seconds from the start of a fresh process to the end of its first round, over Flower's."""
    seconds: dict[str, list[float]] = {name: [] for name in FIRST}
    for _ in range(times):
        for name, words in FIRST.items():
            code = f"from benchmarks.job import Job; job = {job}; {words}; print('done', flush=True)"
            began = time.perf_counter()
            with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                if not any("done" in line for line in iter(process.stdout.readline, "")):
                    raise RuntimeError(f"{name}: a fresh process ended before its first round did")
                seconds[name].append(time.perf_counter() - began)
                process.kill()
    for name, values in seconds.items():
        print(f"  {name}: {shown(median_interval(values))} s to the end of the first round", flush=True)
    return {
        f"{name} / Flower's runtime": ratio(seconds, name, "Flower's runtime")
        for name in FIRST
        if name != "Flower's runtime"
    }


EXTRA = ("engine.trainer=vectorised",)


def scaling(rounds: int, small: bool = False) -> dict[str, dict[str, Figure]]:
    """Seconds per round, over those of the first of each table: cohorts, populations, models (vectorised trainer,
    60 pictures a client, linear model and 100 of 1,000 clients where nothing else is said).
    """
    cohorts, populations = ((2, 4), (20, 40)) if small else ((10, 30, 100, 300), (1_000, 10_000, 100_000))
    few, many = (4, 20) if small else (100, 1_000)
    tables = {
        "cohort": {f"{size} clients a round": Job("linear", many, size, 60) for size in cohorts},
        "population": {f"{size:,} clients": Job("linear", size, few, 60) for size in populations},
        "model": {name: Job(name, many, min(few, 20), 60) for name in ("linear", "mlp", "cnn")},
    }
    found = {}
    for table, jobs in tables.items():
        with closing({name: OwnEngine(job, "inprocess", extra=EXTRA) for name, job in jobs.items()}) as contenders:
            seconds = alternate(contenders, rounds)
        first = next(iter(jobs))
        found[table] = {f"{name} / {first}": ratio(seconds, name, first) for name in jobs if name != first}
    return found
