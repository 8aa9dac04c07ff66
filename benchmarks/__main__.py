"""`make bench`: one table of ratios, each measured on alternating rounds in one run on one machine.

    python -m benchmarks [rounds=21] [jobs=cnn,linear] [out=FOLDER]
        [parts=engines,first,start,scaling,private,shares,server]

engines: a bare PyTorch loop, our engines and Flower's own runtime; first: time from the start
of a process to the end of its first round; start: processor time of --help, of a mistake in the call and of the default
job with one round; scaling: larger cohorts, populations and models; private: five methods of many small clients beside
the bare loop; population (only on request): whole runs with up to a million clients, and with rounds_of=2000 the late
rounds of a long run;
gpu_all or gpu_NAME (only on request, alone): figures of a GPU (`benchmarks.gpu` lists the parts);
shares: how a round's time divides, for several methods; server: what 1,000 replies cost the server; secure_sum (only on
request, alone): seconds and bytes of a secure sum. secure_sum, population and private alone write NAME.json.
device, seconds: of the parts of a GPU. size=test shrinks everything, to check that it works. Writes speed.json and
speed.png into ``out`` (benchmarks/results).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu
from benchmarks.bench_secure_sum import secure_sum
from benchmarks.bench_server import server
from benchmarks.job import JOBS, Job
from benchmarks.population import population
from benchmarks.shares import PARTS, shares
from benchmarks.small_clients import beside_a_bare_loop, both_trainers
from benchmarks.speed import RESULTS, engines, first_rounds, scaling, starts
from benchmarks.statistics import Figure, machine, shown

OPTIONS = {
    "rounds": "21",
    "jobs": "cnn,linear",
    "parts": "engines,first,start,scaling,private,shares,server",
    "out": str(RESULTS),
    "size": "",
    "rounds_of": "0",
    "device": "cuda",
    "seconds": "20",
}
#: Methods whose shares are measured, with their options: no distillation, which would make privacy's share look small.
STRATEGIES: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedcad": (),
    "adpfl": ("strategy.server.distillation_epochs=0",),
    "coqfl": (),
    "fedags": (),
}

#: Heading -> row -> ratio.
Table = dict[str, dict[str, Figure]]


def measure(options: dict[str, str]) -> Iterator[tuple[str, dict[str, Figure]]]:
    """Heading and rows of each table."""
    rounds, small = int(options["rounds"]), options["size"] == "test"
    parts = options["parts"].split(",")
    if "shares" in parts:
        job = Job("linear", 4, 2, 60) if small else JOBS["cnn"]
        for strategy in list(STRATEGIES)[: 2 if small else None]:
            print(f"--- shares of a round: {strategy}", flush=True)
            yield f"share of a round, {strategy}", shares(job, strategy, max(2, rounds), STRATEGIES[strategy])
    if "server" in parts:
        print("--- server", flush=True)
        yield from server(rounds, small)
    if "secure_sum" in parts:
        print("--- secure sum", flush=True)
        yield from secure_sum(small)
    if "scaling" in parts:
        print("--- scaling", flush=True)
        yield from ((f"seconds per round by {name}", rows) for name, rows in scaling(rounds, small).items())
    if "private" in parts:
        print("--- private", flush=True)
        rows = beside_a_bare_loop(rounds, small) | both_trainers(rounds, small)
        yield "seconds per round, 100 of 1,000 clients", rows
    if "population" in parts:
        print("--- population", flush=True)
        yield from population(rounds, rounds_of=int(options["rounds_of"]), small=small)
    if "first" in parts:
        print("--- first round", flush=True)
        yield "seconds per first round, from a fresh process", first_rounds(JOBS["cnn"], 1 if small else 3)
    if "start" in parts:
        print("--- start", flush=True)
        yield "processor seconds per command, from a fresh process", starts(1 if small else 5)
    if "engines" in parts:
        jobs = options["jobs"].split(",")
        for name in jobs:
            print(f"--- engines: {JOBS[name]}", flush=True)
            job = Job(name, 4, 2, 60) if small else JOBS[name]
            if len(jobs) == 1:
                yield f"seconds per round, {name}", engines(job, rounds, 1 if small else 2)
            else:
                yield from _in_a_process_of_its_own(options | {"jobs": name, "parts": "engines"})


def _in_a_process_of_its_own(options: dict[str, str]) -> Iterator[tuple[str, dict[str, Figure]]]:
    """The tables of one more job, in a new process: Flower's runtime keeps Ray in the process that started it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [f"{key}={value}" for key, value in (options | {"out": folder}).items()]
        subprocess.run([sys.executable, "-m", "benchmarks", *command], check=True)
        found = json.loads((Path(folder) / "speed.json").read_text())
    yield from ((heading, rows) for heading, rows in found.items() if heading != "machine")


def draw(table: Table, path: Path) -> None:
    """Ratios as points with their intervals, shares as stacked bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios = {
        f"{row} ({heading.removeprefix('seconds per round')})".replace("(, ", "(").replace("( ", "("): figure
        for heading, rows in table.items()
        if heading.startswith("seconds")
        for row, figure in rows.items()
    }
    stacks = {heading.rpartition(", ")[2]: rows for heading, rows in table.items() if heading.startswith("share")}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(15, 5.5), layout="constrained")
    for place, (median, low, high) in enumerate(ratios.values()):
        left.errorbar(median, place, xerr=[[median - low], [high - median]], fmt="o", color="C0", capsize=3)
    left.set_yticks(range(len(ratios)), list(ratios), fontsize=8)
    left.axvline(1, color="grey", linewidth=0.8)
    left.set(xscale="log", xlabel="ratio of seconds per round (median, 95% interval)")
    left.invert_yaxis()
    starts = [0.0] * len(stacks)
    for part in PARTS:
        values = [rows[part][0] for rows in stacks.values()]
        right.bar(list(stacks), values, bottom=starts, label=part)
        starts = [start + value for start, value in zip(starts, values, strict=True)]
    right.set(ylabel="share of a round without its evaluation")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def main(arguments: Sequence[str]) -> int:
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := sorted(set(given) - set(OPTIONS)):
        print(f"{unknown[0]}: no such option; allowed: {', '.join(OPTIONS)}", file=sys.stderr)
        return 2
    options = OPTIONS | given
    if options["parts"].startswith("gpu"):
        return gpu.main(options)
    name = options["parts"] if options["parts"] in ("secure_sum", "population", "private") else "speed"
    before = machine(rounds=int(options["rounds"]), threads=1)
    out, table = Path(options["out"]), Table()
    out.mkdir(parents=True, exist_ok=True)
    for heading, rows in measure(options):  # written at once, so that an interrupted benchmark keeps its results
        table[heading] = rows
        results: dict[str, Any] = {"machine": {**before, "load after": os.getloadavg()[0]}, **table}
        (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    for heading, rows in table.items():
        print(f"\n{heading}")
        for row, figure in rows.items():
            print(f"  {row:<55}{shown(figure)}")
    if name == "speed":
        draw(table, out / "speed.png")
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # Flower's runtime still waits in another thread
