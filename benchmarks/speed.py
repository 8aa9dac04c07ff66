"""`make bench`: seconds per round as ratios, from rounds that alternate in one run on one machine.

    python -m benchmarks.speed [rounds=21] [jobs=cnn,linear]

Every ratio is the median over pairs of neighbouring rounds, with the 95% interval of the median (order statistics).
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.contenders import BareLoop, OwnEngine
from benchmarks.flower_peer import FlowerRuntime
from benchmarks.job import JOBS, Job

RESULTS = Path(__file__).parent / "results"


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its distribution-free 95% interval."""
    ordered = np.sort(values)
    low = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    return (
        float(np.median(ordered)),
        float(ordered[max(0, low - 1)]),
        float(ordered[min(len(ordered) - 1, len(ordered) - low)]),
    )


def alternate(contenders: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender's rounds, one round of each in turn; the first turn warms up and is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            taken = contender.round()
            if turn:
                seconds[name].append(taken)
    for name, values in seconds.items():
        print(f"  {name}: {_shown(median_interval(values))} s per round", flush=True)
    return seconds


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> tuple[float, float, float]:
    return median_interval([a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)])


def measure(job: Job, rounds: int) -> dict[str, Any]:
    """One process against one, two against two; then Ray against Flower's own runtime."""
    result: dict[str, Any] = {}
    one = {"bare loop, 1 process": BareLoop(job, 1), "inprocess": OwnEngine(job, "inprocess")}
    seconds = alternate(one, rounds)
    result["inprocess / bare loop, 1 process"] = ratio(seconds, "inprocess", "bare loop, 1 process")
    two: dict[str, Any] = {"bare loop, 2 processes": BareLoop(job, 2), "ray": OwnEngine(job, "ray", 2)}
    ray_first = two["ray"].first_round_after
    seconds |= alternate(two, rounds)
    result["ray, 2 workers / bare loop, 2 processes"] = ratio(seconds, "ray", "bare loop, 2 processes")
    ray_seconds = seconds["ray"]
    for contender in (*one.values(), *two.values()):
        contender.close()
    # Flower's runtime and our Ray engine each want a Ray of their own, so both start afresh, one after the other.
    flower = FlowerRuntime(job, 2)
    bare = BareLoop(job, 2)
    with_flower = alternate({"bare loop beside Flower": bare, "flower": flower}, rounds)
    bare.close()
    seconds |= with_flower
    result["Flower's runtime / bare loop, 2 processes"] = ratio(seconds, "flower", "bare loop beside Flower")
    ours = np.array(ray_seconds) / np.array(seconds["bare loop, 2 processes"])
    theirs = np.array(seconds["flower"]) / np.array(seconds["bare loop beside Flower"])
    result["Flower's runtime / ray (both over the bare loop)"] = median_interval(list(theirs / ours))
    result["first round ends after, s"] = {"ray": ray_first, "flower": flower.first_round_after}
    result["seconds per round"] = {name: median_interval(values) for name, values in seconds.items()}
    return result


def machine(**facts: Any) -> dict[str, Any]:
    """Where and when figures were measured; ``load``: processes that wanted a core in the minute before."""
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "load": os.getloadavg()[0],
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        **facts,
    }


def main(arguments: Sequence[str]) -> int:
    options = dict(argument.split("=", 1) for argument in arguments)
    rounds = int(options.get("rounds", 21))
    results: dict[str, Any] = {"machine": machine(rounds=rounds)}
    for name in options.get("jobs", "cnn,linear").split(","):
        print(f"--- {name}: {JOBS[name]}", flush=True)
        results[name] = measure(JOBS[name], rounds)
        for key, value in results[name].items():
            if isinstance(value, dict):
                for part, figure in value.items():
                    print(f"{key}: {part}: {figure if not isinstance(figure, tuple) else _shown(figure)}", flush=True)
            else:
                print(f"{key}: {_shown(value)}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "speed.json").write_text(json.dumps(results, indent=1))
    return 0


def _shown(figure: tuple[float, float, float]) -> str:
    return f"{figure[0]:.3f} [{figure[1]:.3f}, {figure[2]:.3f}]"


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # Flower's runtime waits at its gate in a thread of its own
