"""Many small clients: private methods beside a bare loop, and both trainers in whole rounds.

1,000 clients of 60 pictures, 100 a round, one epoch: one batch of 60 beside the bare loops, batches of 10 for the
trainers. A round is all that a run does in it but its evaluation: messages, training, noise, memories, ledger entries.
All of it in processor seconds of one thread, which other work on the machine moves least.
"""

from __future__ import annotations

import time
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
BARE, TUNED = "bare loop, 1 process", "tuned bare loop, 1 process"
PARAMETERS = 7_850


class Noise:
    """What a round of a method needs of noise at least: each client's own draws, in one process."""

    def __init__(self, job: Job, draws: dict[str, int]) -> None:
        self.job, self.draws, self.number = job, draws, 0

    def round(self) -> float:
        began, self.number = time.process_time(), self.number + 1
        for client in range(self.job.clients_per_round):
            source = SeededNoise("benchmark", self.number, client)
            for name, times in self.draws.items():
                for _ in range(times):
                    getattr(source, name)(PARAMETERS)
        return time.process_time() - began

    def close(self) -> None:
        pass


#: What is drawn of a coordinate.
DRAWS: dict[str, dict[str, int]] = {
    "fedldp": {"normal": 1},
    "fedcad": {"normal": 1},
    "coqfl": {"uniform": 1},
    "dpsgd": {"normal": 2},
    "privunit": {"normal": 3},
    "ddgauss": {"uniform": 1, "words": 1},
    "skellam": {"uniform": 1, "words": 1},
}


def _engine(job: Job, strategy: str, trainer: str, *options: str) -> OwnEngine:
    extra = (f"engine.trainer={trainer}", f"strategy={strategy}", *options)
    return OwnEngine(job, "inprocess", extra=extra, clock=time.process_time)


def beside_a_bare_loop(rounds: int, small: bool = False) -> dict[str, Figure]:
    """Each method's seconds per round, as ratios to those of loops that know nothing of privacy, and to a loop that
    draws as much noise.
    """
    job = Job("linear", 20, 8, 60) if small else JOB
    methods = dict(list(METHODS.items())[: 2 if small else None])
    contenders: dict[str, Any] = {
        BARE: BareLoop(job, 1, processor=True),
        TUNED: BareLoop(job, 1, True, processor=True),
    }
    contenders |= {strategy: _engine(job, strategy, "vectorised", *options) for strategy, options in methods.items()}
    contenders |= {f"noise of {strategy}": Noise(job, DRAWS[strategy]) for strategy in methods if strategy in DRAWS}
    try:
        seconds = alternate(contenders, rounds)
    finally:
        for contender in contenders.values():
            contender.close()
    found = {f"{strategy} / {bare}": ratio(seconds, strategy, bare) for strategy in methods for bare in (BARE, TUNED)}
    for strategy in methods:
        if strategy in DRAWS:
            alike = [bare + drawn for bare, drawn in zip(seconds[TUNED], seconds[f"noise of {strategy}"], strict=True)]
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
