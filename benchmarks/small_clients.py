"""Many small clients: private methods beside a bare loop, and both trainers in whole rounds.

1,000 clients of 60 pictures, 100 a round, one epoch: one batch of 60 beside the bare loops, batches of 10 for the
trainers. A round is all that a run does in it but its evaluation: messages, training, noise, memories, ledger entries.
All of it in processor seconds of one thread, which other work on the machine moves least.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.contenders import BareLoop, OwnEngine
from benchmarks.job import Job
from benchmarks.speed import alternate, ratio
from benchmarks.statistics import Figure
from fedpriv.mechanisms.noise import SeededNoise

JOB = Job("linear", 1_000, 100, 60)
#: Method -> options that leave it one epoch of one batch.
METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedldp": (),
    "fedcad": (),
    "coqfl": (),
    "fedags": ("local.steps=null",),
    "dpsgd": ("strategy.client.local_steps=1",),
    "privunit": (),
    "ddgauss": (),
    "skellam": (),
    "cpsgd": ("local.steps=null",),
    "corrquant": (),
}
BARE, TUNED, NOISE = "bare loop, 1 process", "tuned bare loop, 1 process", "its noise alone"


class Noise:
    """What a round of a method needs of noise at least: each client's own draws, one source after the other."""

    def __init__(self, job: Job, draws: Sequence[tuple[str, Any]]) -> None:
        self.job, self.draws, self.number = job, draws, 0

    def round(self) -> float:
        began, self.number = time.process_time(), self.number + 1
        for client in range(self.job.clients_per_round):
            source = SeededNoise("benchmark", self.number, client)
            for name, arguments in self.draws:
                getattr(source, name)(*arguments)
        return time.process_time() - began

    def close(self) -> None:
        """Nothing was started."""


def draws_of(strategy: str, engine: OwnEngine) -> list[tuple[str, Any]]:
    """(the draw, its arguments) of one client's release; none for methods without noise or with several kinds of it."""
    size, method = engine.worker.initial_model.numel(), engine.worker.method
    if strategy == "cpsgd":
        grid = method.grid  # type: ignore[attr-defined]
        return [("uniform", (grid.padded,)), ("binomial", (grid.trials, grid.padded))]
    if strategy in ("ddgauss", "skellam"):
        padded = method.grid.padded  # type: ignore[attr-defined]
        return [("uniform", (padded,)), ("words", (padded,))]
    normals = {"fedldp": 1, "fedcad": 1, "dpsgd": 2, "privunit": 3}
    return [("uniform", (size,))] if strategy == "coqfl" else [("normal", (size,))] * normals.get(strategy, 0)


def _engine(job: Job, strategy: str, trainer: str, *options: str) -> OwnEngine:
    extra = (f"engine.trainer={trainer}", f"strategy={strategy}", *options)
    return OwnEngine(job, "inprocess", extra=extra, clock=time.process_time)


def beside_a_bare_loop(rounds: int, small: bool = False) -> dict[str, Figure]:
    """Each method's seconds per round, as ratios to those of loops that know nothing of privacy, and to a loop that
    draws as much noise. One method after the other, so that no third one empties the caches between two rounds.
    """
    job, found = Job("linear", 20, 8, 60) if small else JOB, dict[str, Figure]()
    for strategy, options in list(METHODS.items())[: 2 if small else None]:
        engine = _engine(job, strategy, "vectorised", *options)
        contenders: dict[str, Any] = {
            BARE: BareLoop(job, 1, processor=True),
            TUNED: BareLoop(job, 1, True, processor=True),
            strategy: engine,
        }
        if draws := draws_of(strategy, engine):
            contenders[NOISE] = Noise(job, draws)
        try:
            seconds = alternate(contenders, rounds)
        finally:
            for contender in contenders.values():
                contender.close()
        found |= {f"{strategy} / {bare}": ratio(seconds, strategy, bare) for bare in (BARE, TUNED)}
        if draws:
            alike = [bare + drawn for bare, drawn in zip(seconds[TUNED], seconds[NOISE], strict=True)]
            found[f"{strategy} / {TUNED}, and its noise"] = ratio(seconds | {TUNED: alike}, strategy, TUNED)
    return found


def both_trainers(rounds: int, small: bool = False) -> dict[str, Figure]:
    """Sequential over vectorised, in whole rounds of one epoch in batches of 10."""
    found = {}
    for model in ("linear", "mlp"):
        job = Job(model, 20, 8, 60) if small else Job(model, 1_000, 100, 60)
        contenders = {
            trainer: _engine(job, "fedavg", trainer, "local.batch_size=10") for trainer in ("sequential", "vectorised")
        }
        seconds = alternate(contenders, rounds)
        found[f"sequential / vectorised, {model}, batches of 10"] = ratio(seconds, "sequential", "vectorised")
    return found
