"""Many small clients: private methods beside a bare loop, and both trainers in whole rounds.

1,000 clients of 60 pictures, 100 a round, one epoch: one batch of 60 beside the bare loop, batches of 10 for the
trainers. A round is all that a run does in it but its evaluation: messages, training, noise, memories, ledger entries.
"""

from __future__ import annotations

from typing import Any

from benchmarks.contenders import BareLoop, OwnEngine
from benchmarks.job import Job
from benchmarks.speed import alternate, ratio
from benchmarks.statistics import Figure

JOB = Job("linear", 1_000, 100, 60)
#: Method -> options that leave it one epoch of one batch.
METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedldp": (),
    "fedcad": (),
    "coqfl": (),
    "fedags": ("local.steps=null",),
    "dpsgd": ("strategy.client.local_steps=1",),
}
BARE = "bare loop, 1 process"


def _engine(job: Job, strategy: str, trainer: str, *options: str) -> OwnEngine:
    return OwnEngine(job, "inprocess", extra=(f"engine.trainer={trainer}", f"strategy={strategy}", *options))


def beside_a_bare_loop(rounds: int, small: bool = False) -> dict[str, Figure]:
    """Each method's seconds per round, as ratios to those of a loop that knows nothing of privacy."""
    job = Job("linear", 20, 8, 60) if small else JOB
    contenders: dict[str, Any] = {BARE: BareLoop(job, 1)}
    for strategy, options in list(METHODS.items())[: 2 if small else None]:
        contenders[strategy] = _engine(job, strategy, "vectorised", *options)
    try:
        seconds = alternate(contenders, rounds)
    finally:
        for contender in contenders.values():
            contender.close()
    return {f"{strategy} / {BARE}": ratio(seconds, strategy, BARE) for strategy in list(contenders)[1:]}


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
