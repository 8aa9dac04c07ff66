"""The cost of a larger population: the same cohort of 100 out of 1,000, 50,000 and 1,000,000 clients.

    python -m benchmarks.population [rounds=21] [strategy=fedavg] [rounds_of=2000]

Every client draws its own 60 pictures (partition=resampled). Seconds per round from alternating rounds in one process.
Of a whole run with its ledger, metrics and report, in a process of its own: peak memory, processor seconds of a round
to the last line that it writes, and seconds from the start of the process to the end of the first round. rounds_of:
one more run, of so many rounds with 10 clients: what its last 5% cost, divided by what as many rounds from 5% on cost.
`make bench ARGS="parts=population"` puts the ratios into its table. And of a run in which as many as all clients take
part, a tenth in each round, which is killed after the tenth round and resumed from its checkpoint of the ninth.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.contenders import OwnEngine, own_options
from benchmarks.job import Job
from benchmarks.speed import EXTRA, RESULTS, alternate, closing, first_round_of, ratio
from benchmarks.statistics import Figure, machine, median_interval
from fedpriv.common.systems import peak_memory_mib

POPULATIONS = (1_000, 50_000, 1_000_000)
#: Clients of runs that are killed: all take part.
KILLED = (10_000, 100_000, 1_000_000)
ALLOWED = ("rounds", "strategy", "rounds_of", "whole_run_of", "size")


def job(clients: int) -> Job:
    return Job("linear", clients, min(100, clients // 2), 60)


def population(
    rounds: int, strategy: str = "fedavg", rounds_of: int = 0, small: bool = False
) -> Iterator[tuple[str, dict[str, Figure]]]:
    """Heading and rows of each table; ratios are to the smallest population."""
    populations, extra = ((20, 40) if small else POPULATIONS), [*EXTRA, f"strategy={strategy}"]
    names = {f"{clients:,} clients": clients for clients in populations}
    first = next(iter(names))
    with closing({name: OwnEngine(job(size), "inprocess", extra=extra) for name, size in names.items()}) as engines:
        seconds = alternate(engines, rounds)
    yield (
        f"seconds per round by population, {strategy}",
        {f"{name} / {first}": ratio(seconds, name, first) for name in names if name != first},
    )
    runs = {name: _in_a_process(size, rounds, strategy) for name, size in names.items()}
    taken = {name: run["seconds"] for name, run in runs.items()}
    known = runs[first]["peak"]
    yield (
        f"a run's processor seconds per round by population, {strategy}",
        {f"{name} / {first}": _of_medians(taken[name], taken[first]) for name in names if name != first},
    )
    yield (
        f"a run's peak memory by population, {strategy}",
        {f"{name} / {first}": (run["peak"] / known,) * 3 for name, run in runs.items() if name != first},
    )
    yield f"a run's peak memory in MiB, {strategy}", {name: (run["peak"],) * 3 for name, run in runs.items()}
    times = 1 if small else 3
    yield (
        f"from a process's start to the end of its first round in s, {strategy}",
        {
            name: median_interval([first_round_of(job(size), "inprocess", 1, extra) for _ in range(times)])
            for name, size in names.items()
        },
    )
    for clients in (20,) if small else KILLED:
        yield f"{clients:,} clients took part when a run was killed, {strategy}", killed(clients, strategy)
    if rounds_of:
        yield f"late rounds / early rounds of a run of {rounds_of:,}, {strategy}", late_rounds(rounds_of, strategy)


def late_rounds(rounds: int, strategy: str) -> dict[str, Figure]:
    """Processor seconds of the last 5% of a run's rounds, divided by those of as many rounds from 5% on: of all of a
    round, and of what the server writes and works out when a round has ended.
    """
    few = rounds // 20
    if few < 2:
        raise ValueError(f"rounds_of={rounds}: must be at least 40, so that 5% of them are two")
    options = ["dataset=digits", "model=linear", "num_clients=10", "clients_per_round=10", "engine=inprocess"]
    options += ["dataset.train_examples=100", "local.batch_size=10", "engine.trainer=sequential"]
    with _timed() as (ended, at_the_end):
        _run([*options, f"strategy={strategy}", "evaluate.every=0", "operations.report=false", f"num_rounds={rounds}"])
    whole = [after - before for before, after in pairwise(ended)]  # from the second round on
    early, late = slice(few, 2 * few), slice(-1 - few, -1)  # the last round has a verdict and a test besides
    return {
        "a whole round": _of_medians(whole[late], whole[early]),
        "its end": _of_medians(at_the_end[late], at_the_end[early]),
    }


def killed(clients: int, strategy: str) -> dict[str, Figure]:
    """Seconds of ten rounds, and of the resumed run until it repeats the tenth and until its first line of it, start
    of the process included; what the folder takes on disk; peak memory of both.
    """
    told: tuple[str, ...] = (
        "partition=resampled",
        "partition.examples_per_client=1",
        "local.batch_size=1",
        "checkpoint.every=9",
    )
    told += (f"num_clients={clients}", f"clients_per_round={clients // 10}", "num_rounds=17", "privacy.delta=1e-7")
    told += ("dataset=digits", "model=linear", "engine=inprocess", "evaluate.every=0", "operations.report=false")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "fedpriv"]
        first = _Watched([*command, f"strategy={strategy}", *told, f"hydra.run.dir={folder}"], folder)
        ten = first.until(10)
        taken, peak = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()), first.kill()
        again = _Watched([*command, f"resume={folder}"], folder)
        back, repeated = again.until(9, at_most=True), again.until(10)
        found = {"s of ten rounds": ten, "s until the tenth begins again": back, "s until it has ended": repeated}
        found |= {"MB of the folder": taken / 1e6, "MiB at most": peak, "MiB at most, resumed": again.kill()}
    return {name: (value,) * 3 for name, value in found.items()}


class _Watched:
    """A run in a process of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.lines, self.began = folder / "metrics.jsonl", time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def until(self, rounds: int, at_most: bool = False) -> float:
        """Seconds since its start when metrics.jsonl has so many lines."""
        while True:
            number = self.lines.read_bytes().count(b"\n") if self.lines.exists() else 0
            if number <= rounds if at_most else number >= rounds:
                return time.perf_counter() - self.began
            if self.process.poll() is not None:
                raise RuntimeError(f"the run ended at line {number} of {rounds}")
            time.sleep(0.002)

    def kill(self) -> float:
        """As the kernel does; returns its peak memory in MiB."""
        words = Path(f"/proc/{self.process.pid}/status").read_text().split()
        self.process.kill()
        self.process.wait()
        return int(words[words.index("VmHWM:") + 1]) / 1024


def _of_medians(some: Sequence[float], others: Sequence[float]) -> Figure:
    """A ratio of medians; its ends are those of the numerator's interval."""
    below = median(others)
    middle, low, high = median_interval(some)
    return middle / below, low / below, high / below


@contextmanager
def _timed() -> Iterator[tuple[list[float], list[float]]]:
    """Processor seconds at the end of every round that a session has ended, and those of every such end."""
    from fedpriv.runs.session import Session

    ended, at_the_end, real = list[float](), list[float](), Session._end_round

    def end_round(session: Any, current: Any) -> None:
        began = time.process_time()
        real(session, current)
        ended.append(time.process_time())
        at_the_end.append(ended[-1] - began)

    with patch.object(Session, "_end_round", end_round):
        yield ended, at_the_end


def _run(options: Sequence[str]) -> None:
    from fedpriv.config.compose import compose
    from fedpriv.runs.start import start_run

    with tempfile.TemporaryDirectory() as folder:
        start_run(compose(list(options)), Path(folder) / "run")


def _in_a_process(clients: int, rounds: int, strategy: str) -> dict[str, Any]:
    asked = (f"whole_run_of={clients}", f"rounds={rounds}", f"strategy={strategy}")
    command = [sys.executable, "-m", "benchmarks.population", *asked]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    return found


def _whole_run(clients: int, rounds: int, strategy: str) -> dict[str, Any]:
    """peak: MiB of this process after a whole run; seconds: of the processor, by round from the third on."""
    extra = [*EXTRA, f"strategy={strategy}", "evaluate.every=0", f"num_rounds={rounds + 3}"]
    with _timed() as (ended, _):
        _run(own_options(job(clients), "inprocess", 1, extra))
    seconds = [after - before for before, after in pairwise(ended[1:-1])]
    return {"peak": peak_memory_mib(), "seconds": seconds}


def main(arguments: Sequence[str]) -> int:
    options = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := sorted(set(options) - set(ALLOWED)):
        print(f"{unknown[0]}: no such option; allowed: {', '.join(ALLOWED)}", file=sys.stderr)
        return 2
    rounds, strategy = int(options.get("rounds", 21)), options.get("strategy", "fedavg")
    if "whole_run_of" in options:
        print(json.dumps(_whole_run(int(options["whole_run_of"]), rounds, strategy)))
        return 0
    small = options.get("size") == "test"
    before = machine(rounds=rounds, threads=1)
    tables = dict(population(rounds, strategy, int(options.get("rounds_of", 0)), small))
    results: dict[str, Any] = {"machine": before, **tables}
    print(json.dumps(results, indent=1))
    if not small:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"population-{strategy}.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
