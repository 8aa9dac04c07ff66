"""The cost of a larger population: the same cohort of 100 out of 1,000, 50,000 and 100,000 clients.

    python -m benchmarks.population [rounds=21] [strategy=fedcad]

Every client draws its own 60 pictures (partition=resampled). Seconds per round from alternating rounds in one process;
peak memory of a whole run of as many rounds, including its report, in a separate process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders import OwnEngine, own_options
from benchmarks.job import Job
from benchmarks.speed import RESULTS, alternate, ratio
from benchmarks.statistics import machine, median_interval

POPULATIONS = (1_000, 50_000, 100_000)
EXTRA = ("partition=resampled", "partition.examples_per_client=60", "engine.trainer=vectorised")


def job(clients: int) -> Job:
    return Job("linear", clients, 100, 60)


def main(arguments: Sequence[str]) -> int:
    options = dict(argument.split("=", 1) for argument in arguments)
    rounds = int(options.get("rounds", 21))
    extra = [*EXTRA, f"strategy={options.get('strategy', 'fedavg')}"]
    if "peak_of" in options:
        print(_peak_memory(int(options["peak_of"]), rounds, extra))
        return 0
    engines = {f"{clients:,} clients": OwnEngine(job(clients), "inprocess", extra=extra) for clients in POPULATIONS}
    seconds = alternate(engines, rounds)
    peaks = {name: _in_a_process(clients, arguments) for name, clients in zip(engines, POPULATIONS, strict=True)}
    first = next(iter(engines))
    results: dict[str, Any] = {
        "machine": machine(rounds=rounds, threads=1),
        "seconds per round": {name: median_interval(values) for name, values in seconds.items()},
        f"round / round of {first}": {name: ratio(seconds, name, first) for name in engines},
        "peak memory, MiB": peaks,
        f"peak memory / that of {first}": {name: peak / peaks[first] for name, peak in peaks.items()},
    }
    print(json.dumps(results, indent=1))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"population-{options.get('strategy', 'fedavg')}.json").write_text(json.dumps(results, indent=1))
    return 0


def _in_a_process(clients: int, arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "benchmarks.population", *arguments, f"peak_of={clients}"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def _peak_memory(clients: int, rounds: int, extra: Sequence[str]) -> int:
    """MiB of this process after a whole run."""
    from fedpriv.config.compose import compose
    from fedpriv.runs.start import start_run

    options = [*own_options(job(clients), "inprocess", 1, extra), f"num_rounds={rounds}", "evaluate.every=0"]
    with tempfile.TemporaryDirectory() as folder:
        start_run(compose(options), Path(folder) / "run")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
