"""Figures of one GPU, in parts that are written when they end and not measured again: `make bench ARGS=parts=gpu_all`.

    python -m benchmarks parts=gpu_all [out=FOLDER] [seconds=20] [device=cuda] [size=test]

gpu_cohort_cnn, gpu_cohort_resnet18: rounds of a cohort by both trainers (float32 and bfloat16) beside a bare PyTorch
loop; gpu_steps: DP-SGD steps beside a plain step and Opacus; gpu_pfl: pfl's published CIFAR-10 job beside pfl itself
(`benchmarks.pfl_peer` says how it is installed); gpu_dpsgd: rounds of DP-SGD clients; gpu_fedldp: private rounds with
1,000 and 100,000 clients; gpu_profile: where a cohort's training and a private step spend their time, as text.

All compute in float32 without TF32, as our runs do, but for contenders that say otherwise and for pfl, which keeps
torch's defaults (TF32 in convolutions). Contenders alternate, each round between two waits for the device; the first
two turns are warm-up, and the second says how much of the device's memory was used at most. Measuring a part's
contenders ends after ``seconds`` or `MOST` turns.

Each part writes NAME.json into ``out`` (benchmarks/results): a part that is there already is left alone, so that an
interrupted call goes on where it stopped. A part in which a contender failed, or the product went on in a slower way
with a warning, writes NAME.incomplete.json with the errors: the exit code is 1, and the next call measures it again.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import pfl_peer
from benchmarks.contenders import OwnEngine
from benchmarks.gpu_jobs import (
    Work,
    bare_loop,
    clipped_sum,
    coloured_pictures,
    engine,
    evaluation,
    network,
    noise_alone,
    opacus_step,
    our_step,
    plain_step,
    tf32,
    training_alone,
)
from benchmarks.job import Job
from benchmarks.statistics import Figure, machine, median_interval, shown

#: Turns of a part at most.
MOST = 31
#: Turns at the start that do not count.
WARM = 2

COLOURED = ("dataset.path=benchmarks.gpu_jobs.coloured_pictures", "partition=resampled")


class Meter:
    """Alternates the contenders of a part on one device, and keeps what they took."""

    def __init__(self, device: torch.device, seconds: float, small: bool) -> None:
        self.device, self.seconds, self.small = device, seconds, small
        self.failed: dict[str, str] = {}
        self.peaks: dict[str, float] = {}

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def once(self, name: str, work: Work) -> float | None:
        """Seconds of one turn; None where it failed."""
        try:
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            return time.perf_counter() - began
        except Exception as error:
            self.note(name, error)
            return None

    def note(self, name: str, error: Exception) -> None:
        self.failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
        print(f"  {name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()

    def built(self, makers: dict[str, Callable[[], Work]]) -> dict[str, Work]:
        """The contenders that can be made at all."""
        found = {}
        for name, make in makers.items():
            try:
                found[name] = make()
            except Exception as error:
                self.note(name, error)
        return found

    def warmed(self, works: dict[str, Work]) -> dict[str, Work]:
        """Those that survive the warm-up, whose peaks of memory are noted."""
        for turn in range(WARM):
            for name, work in list(works.items()):
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                if self.once(name, work) is None:
                    del works[name]
                elif turn and self.device.type == "cuda":
                    self.peaks[name] = torch.cuda.max_memory_allocated() / 2**20
        return works

    def alternate(self, works: dict[str, Work]) -> dict[str, list[float]]:
        """Seconds of each turn of each contender; one that fails is left out."""
        works = self.warmed(dict(works))
        taken: dict[str, list[float]] = {name: [] for name in works}
        began = time.perf_counter()
        for turn in range(2 if self.small else MOST):
            late = time.perf_counter() - began
            if (turn >= 3 and late > self.seconds) or (turn and late > 2 * self.seconds):
                break
            for name in list(taken):
                seconds = self.once(name, works[name])
                if seconds is None:
                    del taken[name]
                else:
                    taken[name].append(seconds)
        return taken


Found = dict[str, Any]


def told(taken: dict[str, list[float]], pairs: Sequence[tuple[str, str]]) -> Found:
    """Medians with intervals in seconds, and of pairs (slow, fast) the ratio of alternating turns."""
    seconds = {name: median_interval(values) for name, values in taken.items() if values}
    ratios: dict[str, Figure] = {
        f"{slow} / {fast}": median_interval([a / b for a, b in zip(taken[slow], taken[fast], strict=True)])
        for slow, fast in pairs
        if slow in seconds and fast in seconds
    }
    for name, figure in seconds.items():
        print(f"  {name}: {shown(figure)} s", flush=True)
    for name, figure in ratios.items():
        print(f"  {name}: {shown(figure)}", flush=True)
    return {"seconds": seconds, "ratios": ratios, "turns": {name: len(values) for name, values in taken.items()}}


# --- the parts ----------------------------------------------------------------------------------------------------


def cohort(meter: Meter, job: Job, extra: Sequence[str], batch: int) -> Found:
    """Rounds of one epoch."""
    device, options = str(meter.device), [*extra, f"local.batch_size={batch}", "local.lr=0.01"]
    kinds = {
        "sequential": ("sequential", ()),
        "vectorised": ("vectorised", ()),
        "sequential bfloat16": ("sequential", ("engine.precision=bfloat16",)),
        "vectorised bfloat16": ("vectorised", ("engine.precision=bfloat16",)),
    }
    works: dict[str, Work] = {}
    engines: dict[str, OwnEngine] = {}
    for name, (trainer, more) in kinds.items():
        try:
            engines[name] = engine(job, device, trainer, [*options, *more])
            works[name] = engines[name].round
        except Exception as error:
            meter.note(name, error)
    for name in ("sequential", "vectorised"):
        if name in engines:
            works[f"{name}, training alone"] = training_alone(engines[name])
    if "sequential" in engines:
        own = engines["sequential"]
        loops = {"bare loop": False, "bare loop, TF32": True}
        works |= meter.built({name: partial(bare_loop, own, batch, 0.01, tf32) for name, tf32 in loops.items()})
        if not meter.small:
            works |= meter.built({"evaluation of 2,000 pictures": lambda: evaluation(own)})
    pairs = [("sequential", "vectorised"), ("sequential, training alone", "vectorised, training alone")]
    pairs += [("bare loop", name) for name in ("sequential", "vectorised", "vectorised, training alone")]
    pairs += [("bare loop, TF32", name) for name in ("vectorised", "vectorised bfloat16")]
    pairs += [(name, f"{name} bfloat16") for name in ("sequential", "vectorised")]
    found = told(meter.alternate(works), pairs)
    return {"job": f"{job}, batches of {batch}", **found}


def cohort_cnn(meter: Meter) -> Found:
    return cohort(meter, Job("cnn", 4, 2, 60) if meter.small else Job("cnn", 100, 50, 600), (), 60)


def cohort_resnet18(meter: Meter) -> Found:
    job = Job("resnet18", 4, 2, 4) if meter.small else Job("resnet18", 100, 20, 64)
    extra = [*COLOURED, f"partition.examples_per_client={job.examples}"]
    return cohort(meter, job, extra, 4 if meter.small else 32)


def steps(meter: Meter) -> Found:
    """Plain and private steps on one batch."""
    jobs = {
        "cnn, 60 pictures": ("cnn", 60, (1, 28, 28)),
        "cnn, 256 pictures": ("cnn", 256, (1, 28, 28)),
        "resnet18, 64 pictures": ("resnet18", 64, (3, 32, 32)),
    }
    if meter.small:
        jobs = {"cnn, 4 pictures": ("cnn", 4, (1, 28, 28))}
    found: Found = {"seconds": {}, "ratios": {}, "turns": {}}
    for words, (name, batch, shape) in jobs.items():
        random = torch.Generator().manual_seed(0)
        images = torch.randn(batch, *shape, generator=random).to(meter.device)
        labels = (torch.arange(batch) % 10).to(meter.device)
        size = sum(parameter.numel() for parameter in network(name, shape).parameters())
        makers: dict[str, Callable[[], Work]] = {
            "plain": partial(plain_step, name, images, labels),
            "ours": partial(our_step, name, images, labels),
            "ours, sum alone": partial(clipped_sum, name, images, labels),
            "ours, noise alone": partial(noise_alone, size, meter.device),
            **{f"Opacus {mode}": partial(opacus_step, name, images, labels, mode) for mode in ("hooks", "ghost")},
        }
        works = {f"{kind} ({words})": work for kind, work in meter.built(makers).items()}
        pairs = [(f"{kind} ({words})", f"plain ({words})") for kind in makers if kind != "plain"]
        pairs += [(f"Opacus {mode} ({words})", f"ours ({words})") for mode in ("hooks", "ghost")]
        meter_of_part = meter.seconds
        meter.seconds = meter_of_part / len(jobs)
        for heading, rows in told(meter.alternate(works), pairs).items():
            found[heading] |= rows
        meter.seconds = meter_of_part
    return found


def beside_pfl(meter: Meter) -> Found:
    """pfl drives; a round of each of ours follows each of its own."""
    cohort_size = 4 if meter.small else pfl_peer.COHORT
    users = 8 if meter.small else 1_000
    job = Job("custom", users, cohort_size, pfl_peer.PICTURES)
    extra = [*COLOURED, f"partition.examples_per_client={pfl_peer.PICTURES}"]
    extra += ["model.path=benchmarks.gpu_jobs.pfl_cnn", f"local.batch_size={pfl_peer.BATCH}"]
    extra += [f"local.lr={pfl_peer.LR}", "evaluate.every=0"]
    device = str(meter.device)
    names = {"ours, vectorised": "vectorised", "ours, sequential": "sequential"}
    engines = {name: engine(job, device, trainer, extra) for name, trainer in names.items()}
    works: dict[str, Work] = {name: own.round for name, own in engines.items()}
    works |= {f"{name}, training alone": training_alone(own) for name, own in engines.items()}
    worker = engines["ours, sequential"].worker
    taken: dict[str, list[float]] = {}
    if not pfl_peer.installed():
        meter.failed["pfl"] = "not installed: pip install --no-deps pfl==0.6.0 prv-accountant==0.2.0"
        return told(meter.alternate(works), [("ours, sequential", "ours, vectorised")])
    dataset = worker.data.dataset
    data = pfl_peer.users_of(coloured_pictures("train"), dataset.mean, dataset.std, users, meter.device)
    for words, dropout in (("pfl", False), ("pfl with its dropout", True)):
        own = {} if dropout else meter.warmed(dict(works))
        beside = _BesidePfl(meter, words, own)
        if meter.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            with tf32(True):
                pfl_peer.rounds(meter.device, data, dropout, cohort_size, beside.ended)
            taken |= beside.taken
        except Exception as error:
            meter.note(words, error)
    pairs = [("pfl", "ours, vectorised"), ("pfl", "ours, sequential"), ("ours, sequential", "ours, vectorised")]
    found = told(taken, pairs)
    whole = {name: 1_500 * figure[0] for name, figure in found["seconds"].items()}
    return {**found, "its 1,500 rounds at this rate, seconds": whole}


class _BesidePfl:
    """What happens between two rounds of pfl: one round of each of ours."""

    def __init__(self, meter: Meter, name: str, own: dict[str, Work]) -> None:
        self.meter, self.name, self.own = meter, name, own
        self.taken: dict[str, list[float]] = {key: [] for key in (name, *own)}
        self.began, self.turn = time.perf_counter(), 0

    def ended(self, seconds: float) -> bool:
        """Takes the seconds of a round of pfl; whether it was the last."""
        self.turn += 1
        if self.turn <= WARM:
            return False
        self.taken[self.name].append(seconds)
        with tf32(False):
            for key, work in self.own.items():
                once = self.meter.once(key, work)
                self.taken[key].append(float("nan") if once is None else once)
        done = len(self.taken[self.name])
        late = done >= 3 and time.perf_counter() - self.began > self.meter.seconds / 2
        return late or done >= (2 if self.meter.small else MOST)


def dpsgd(meter: Meter) -> Found:
    """Whole rounds of clients that take noisy steps (Poisson batches of 60, of ResNet-18 of 32)."""
    device, small = str(meter.device), meter.small
    # All pictures are divided, since clients that share some are refused: 600 each, in the test 60.
    many, clients = (1_000, 2) if small else (100, 10)
    steps, grey, coloured = (
        2 if small else 5,
        "local.batch_size=60",
        "dataset.path=benchmarks.gpu_jobs.coloured_pictures",
    )
    jobs: dict[str, tuple[Job, list[str]]] = {
        f"{name}, {clients} clients, {steps} steps": (Job(name, many, clients, 60_000 // many), [grey])
        for name in ("cnn", "mlp")
    }
    if not small:
        jobs[f"resnet18, 1 client, {steps} steps"] = (Job("resnet18", 100, 1, 600), [COLOURED[0], coloured])
    makers: dict[str, Callable[[], Work]] = {
        f"{words}, {trainer}": partial(_dpsgd_rounds, job, device, trainer, steps, more)
        for words, (job, more) in jobs.items()
        for trainer in ("sequential", "vectorised")
        if trainer == "sequential" or job.name == "mlp"  # others are clipped client by client
    }
    pairs = [(f"{words}, sequential", f"{words}, vectorised") for words in jobs]
    return told(meter.alternate(meter.built(makers)), pairs)


def _dpsgd_rounds(job: Job, device: str, trainer: str, steps: int, more: Sequence[str]) -> Work:
    return engine(job, device, trainer, ["strategy=dpsgd", f"strategy.client.local_steps={steps}", *more]).round


def fedldp(meter: Meter) -> Found:
    """Rounds in which every client adds its own noise; linear model of 650 parameters, 60 pictures each."""
    few, many = (4, 8) if meter.small else (1_000, 100_000)
    device = str(meter.device)
    extra = ["strategy=fedldp", "dataset.path=benchmarks.job.small_pictures", "partition=resampled"]
    extra += ["partition.examples_per_client=60"]
    works: dict[str, Work] = {
        f"{few:,} clients, {trainer} on {where}": engine(Job("linear", few, few, 60), where, trainer, extra).round
        for trainer, where in dict.fromkeys((("vectorised", device), ("sequential", device), ("vectorised", "cpu")))
    }
    first = f"{few:,} clients, vectorised on {device}"
    pairs = [(f"{few:,} clients, sequential on {device}", first), (f"{few:,} clients, vectorised on cpu", first)]
    found = told(meter.alternate(works), [pair for pair in pairs if pair[0] != first])
    big = engine(Job("linear", many, many, 60), device, "vectorised", extra, warm=False)
    name = f"{many:,} clients, vectorised on {device}"
    if meter.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = meter.once(name, big.round)
    if seconds is not None:
        found["seconds"][name] = (seconds,) * 3
        found["turns"][name] = 1
        print(f"  {name}: {seconds:.1f} s (one round)", flush=True)
        if meter.device.type == "cuda":
            meter.peaks[name] = torch.cuda.max_memory_allocated() / 2**20
    return found


def profile(meter: Meter) -> Found:
    """Tables of torch's profiler: of operations by their time on the device, and on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    device = str(meter.device)
    small, on_device = meter.small, meter.device.type == "cuda"
    shape = (1, 28, 28) if small else (3, 32, 32)
    batch, name = (4, "cnn") if small else (64, "resnet18")
    images = torch.randn(batch, *shape).to(meter.device)
    labels = (torch.arange(batch) % 10).to(meter.device)
    job = Job("cnn", 4, 2, 60) if small else Job("cnn", 100, 50, 600)
    grey, few = torch.randn(4 if small else 60, 1, 28, 28).to(meter.device), 4 if small else 60
    works = meter.built(
        {
            "cnn cohort, vectorised training": lambda: training_alone(engine(job, device, "vectorised")),
            "private step, cnn": lambda: our_step("cnn", grey, (torch.arange(few) % 10).to(meter.device)),
            "plain step, cnn": lambda: plain_step("cnn", grey, (torch.arange(few) % 10).to(meter.device)),
            f"private step, {name}": lambda: our_step(name, images, labels),
            f"plain step, {name}": lambda: plain_step(name, images, labels),
        }
    )
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    tables: dict[str, str] = {}
    for words, work in works.items():
        if meter.once(words, work) is None or meter.once(words, work) is None:
            continue
        meter.wait()
        began = time.perf_counter()
        with profile(activities=activities) as seen:
            work()
            meter.wait()
        seconds = time.perf_counter() - began
        keys = seen.key_averages()
        tables[words] = f"=== {words}: {seconds:.4f} s under the profiler\n"
        for order in (["self_device_time_total"] if on_device else []) + ["self_cpu_time_total"]:
            tables[words] += keys.table(sort_by=order, row_limit=8 if small else 22, max_name_column_width=60) + "\n"
    return {"tables": tables}


PARTS: dict[str, Callable[[Meter], Found]] = {
    "gpu_cohort_cnn": cohort_cnn,
    "gpu_steps": steps,
    "gpu_profile": profile,
    "gpu_pfl": beside_pfl,
    "gpu_cohort_resnet18": cohort_resnet18,
    "gpu_dpsgd": dpsgd,
    "gpu_fedldp": fedldp,
}


@contextmanager
def warnings_of_the_product() -> Iterator[list[str]]:
    """What it warns of meanwhile: a slower way that is taken in place of the measured one must not go unseen."""
    found: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage()[:300])

    handler = Keeps(logging.WARNING)
    logging.getLogger("fedpriv").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("fedpriv").removeHandler(handler)


def where(device: torch.device) -> Found:
    """The device, and the versions of what computes on it."""
    if device.type != "cuda":
        return {"device": device.type}
    facts = torch.cuda.get_device_properties(device)
    return {
        "device": facts.name,
        "device memory, MiB": facts.total_memory // 2**20,
        "compute capability": f"{facts.major}.{facts.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def main(options: dict[str, str]) -> int:
    """Measures the parts asked for that ``out`` has not yet; 1 where something failed or fell back."""
    asked = options["parts"].split(",")
    names = list(PARTS) if asked == ["gpu_all"] else asked
    if unknown := [name for name in names if name not in PARTS]:
        print(f"parts={unknown[0]}: of a GPU there are gpu_all, {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if options["device"] == "cuda" and not torch.cuda.is_available():
        print(f"parts={options['parts']}: this machine has no GPU that torch can use", file=sys.stderr)
        return 2
    device, out, status = torch.device(options["device"]), Path(options["out"]), 0
    out.mkdir(parents=True, exist_ok=True)
    small = options["size"] == "test"
    for name in names:
        path = out / f"{name}.json"
        if path.exists():
            print(f"--- {name}: {path} is there already", flush=True)
            continue
        print(f"--- {name}", flush=True)
        meter, began = Meter(device, float(options["seconds"]), small), time.perf_counter()
        with warnings_of_the_product() as warned, tf32(False):
            try:
                found = PARTS[name](meter)
            except Exception as error:
                meter.note(name, error)
                found = {}
        tables = found.pop("tables", None)
        if tables is not None:
            (out / f"{name}.txt").write_text("\n".join(tables.values()))
        whole = time.perf_counter() - began
        result = {
            "machine": machine(**where(device), seconds=round(whole, 1)),
            **found,
            "most memory of the device, MiB": {key: round(value, 1) for key, value in meter.peaks.items()},
            "failed": meter.failed,
            "warned": warned,
        }
        status = max(status, int(bool(meter.failed or warned)))
        # A part with failures keeps what it has under another name, so that the next call tries it again.
        target = path if not (meter.failed or warned) else out / f"{name}.incomplete.json"
        (out / f"{name}.incomplete.json").unlink(missing_ok=True)
        target.write_text(json.dumps(result, indent=1) + "\n")
        print(f"  {name}: {whole:.0f} s", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return status
