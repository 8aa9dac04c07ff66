"""Seconds per round as ratios, from alternating rounds in one run on one machine.

Every ratio is the median over pairs of neighbouring rounds, with the 95% interval of the median (order statistics).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contenders import BareLoop, OwnEngine, OwnEngineApart, own_options
from benchmarks.flower_peer import FlowerRuntime
from benchmarks.job import Job
from benchmarks.statistics import Figure, median_interval, shown

RESULTS = Path(__file__).parent / "results"


def alternate(contenders: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender's rounds, one round of each in turn; the first turn is a warm-up and is dropped."""
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
    """One process against one; then two against two, in separate processes. processes=1: only the former.

    A tuned bare loop has our settings of process and network: it keeps freed memory and uses channels-last.
    """
    result: dict[str, Figure] = {}
    one: dict[str, Any] = {
        "bare loop, 1 process": BareLoop(job, 1),
        "tuned bare loop, 1 process": BareLoop(job, 1, True),
    }
    for trainer in ("sequential", "vectorised") if job.name == "linear" else ("sequential",):
        one[f"inprocess, {trainer}"] = OwnEngine(job, "inprocess", extra=[f"engine.trainer={trainer}"])
    seconds = alternate(one, rounds)
    for name in list(one)[2:]:
        for bare in list(one)[:2]:
            result[f"{name} / {bare}"] = ratio(seconds, name, bare)
    if processes == 1:
        return result
    for contender in one.values():
        contender.close()
    trainer = "vectorised" if job.name == "linear" else "sequential"
    two: dict[str, Any] = {
        "bare loop, 2 processes": BareLoop(job, 2),
        "tuned bare loop, 2 processes": BareLoop(job, 2, True),
    }
    two["ray, 2 workers"] = OwnEngineApart(job, "ray", 2, [f"engine.trainer={trainer}"])
    two[f"inprocess, {trainer}"] = OwnEngineApart(job, "inprocess", 1, [f"engine.trainer={trainer}"])
    with closing(two | {"Flower's runtime": FlowerRuntime(job, 2)}) as contenders:
        seconds = alternate(contenders, rounds)
    for bare in list(two)[:2]:
        result[f"ray, 2 workers / {bare}"] = ratio(seconds, "ray, 2 workers", bare)
    for other in ("bare loop, 2 processes", "ray, 2 workers", f"inprocess, {trainer}"):
        result[f"Flower's runtime / {other}"] = ratio(seconds, "Flower's runtime", other)
    return result


FLOWER_FIRST = "from benchmarks.flower_peer import FlowerRuntime; FlowerRuntime({job}, 2); print('done', flush=True)"


def _first_round_of_flower(job: Job) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-c", f"from benchmarks.job import Job; {FLOWER_FIRST.format(job=job)}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        if not any("done" in line for line in iter(process.stdout.readline, "")):
            raise RuntimeError("Flower's runtime ended before its first round did")
        taken = time.perf_counter() - began
        process.kill()
    return taken


def first_round_of(job: Job, engine: str, workers: int, extra: Collection[str] = ()) -> float:
    """Seconds in which the command line writes the first line of its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        options = [*own_options(job, engine, workers, extra), "num_rounds=1", "evaluate.every=0"]
        options.append("operations.report=false")  # it follows the first line
        began, metrics = time.perf_counter(), Path(folder, "run", "metrics.jsonl")
        # A library has a package of this name too, which Python would find before the one in the working directory.
        start = "import sys, benchmarks.job; from fedpriv.__main__ import command; sys.exit(command())"
        command = [sys.executable, "-c", start, *options, f"hydra.run.dir={metrics.parent}"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not (metrics.exists() and metrics.stat().st_size):
                if process.poll() is not None:
                    raise RuntimeError(f"engine={engine} ended before its first round did")
                time.sleep(0.02)
            taken = time.perf_counter() - began
            process.wait()
    return taken


def first_rounds(job: Job, times: int) -> dict[str, Figure]:
    """Seconds from the start of a process to the end of its first round, divided by Flower's."""
    contenders: dict[str, Callable[[], float]] = {
        "inprocess": lambda: first_round_of(job, "inprocess", 1),
        "ray, 2 workers": lambda: first_round_of(job, "ray", 2),
        "flower": lambda: _first_round_of_flower(job),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(times):
        for name, contender in contenders.items():
            seconds[name].append(contender())
    for name, values in seconds.items():
        print(f"  {name}: {shown(median_interval(values))} s to the end of the first round", flush=True)
    return {f"{name} / Flower's runtime": ratio(seconds, name, "flower") for name in list(contenders)[:-1]}


#: Command lines whose start is measured; the last is the default job, up to the end of its first round.
STARTS = {
    "--help": ["--help"],
    "a wrong choice": ["strategy=nonsense"],
    "a wrong value": ["num_rounds=-1"],
    "the default job, one round": ["num_rounds=1", "operations.report=false"],
}


def _processor_seconds(command: list[str]) -> float:
    """User and system time of a process and of those that it waited for; other load on the machine adds little."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"hydra.run.dir={folder}/run"] if "num_rounds=1" in command else []
        process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 2):
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def starts(times: int) -> dict[str, Figure]:
    """Processor seconds of whole commands, divided by those of ``import torch`` alone."""
    commands = {name: [sys.executable, "-m", "fedpriv", *options] for name, options in STARTS.items()}
    commands["import torch"] = [sys.executable, "-c", "import torch"]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(times + 1):
        for name, command in commands.items():
            taken = _processor_seconds(command)
            if turn:  # the first turn writes bytecode
                seconds[name].append(taken)
    for name, values in seconds.items():
        print(f"  {name}: {shown(median_interval(values))} processor seconds", flush=True)
    return {f"{name} / import torch": ratio(seconds, name, "import torch") for name in STARTS}


EXTRA = ("partition=resampled", "partition.examples_per_client=60", "engine.trainer=vectorised")


def scaling(rounds: int, small: bool = False) -> dict[str, dict[str, Figure]]:
    """Seconds per round, divided by those of the first of each table: cohorts, populations, models (vectorised trainer,
    60 pictures per client, linear model and 100 of 1,000 clients unless varied).
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
