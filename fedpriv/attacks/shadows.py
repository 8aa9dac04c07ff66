"""Shadow models: trained by our own engine with a run's options on other rows, stored and reused."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from fedpriv.attacks.subject import Trained
from fedpriv.attacks.targets import Rows
from fedpriv.common.errors import RunFailed
from fedpriv.common.files import write_atomic
from fedpriv.common.messages import FloatVector, pack_vector
from fedpriv.common.run_files import tensors_in
from fedpriv.common.systems import cores
from fedpriv.common.versions import code_digest
from fedpriv.config.data_schema import IidPartition
from fedpriv.config.schema import Config
from fedpriv.data.partition import Split, write_split
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, adopt, make_apps
from fedpriv.runs.preparation import make_strategy
from fedpriv.runs.round_updates import RoundUpdates, UpdateRecorder
from fedpriv.server.round import NO_HOOKS, BudgetsSpent, Round

#: Niceness of shadow training, so that other processes on the machine go first.
NICE = 10


@dataclass(frozen=True)
class Job:
    """One model to be trained: its options (without the rows), the rows, and the rounds whose models are kept; seen:
    those whose updates are.
    """

    config: Config
    rows: Rows
    tested: Rows  # required by the engine: results on them are unused, but auxiliary examples come from them
    pool_seed: int
    snapshots: tuple[int, ...]
    seen: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """A key for everything that determines the model."""
        options = self.config.to_dict()
        for place in ("root", "cache", "download"):
            options["dataset"].pop(place)
        options.pop("attack")
        rest = [options, self.pool_seed, self.snapshots, self.seen, code_digest()]
        content = json.dumps(rest, sort_keys=True).encode()
        digest = hashlib.sha256(content + self.rows.tobytes() + b"/" + self.tested.tobytes())
        return digest.hexdigest()[:24]


def like(config: Config, rows: Rows, spare: Rows, trained_on: int, *, seed: int, snapshots: Sequence[int]) -> Job:
    """A model trained like ``config``'s, which was trained on ``trained_on`` rows, but on other rows and from another
    seed. spare: tested on, and source of public examples for a method that needs some.

    With fewer rows there are proportionally fewer clients, each with the same work as before. Where a column or code of
    the user's divides the rows, which may not go with fewer, they are divided by lot.
    """
    share = min(1.0, len(rows) / trained_on)
    clients, divided = max(1, round(config.num_clients * share)), config.partition
    if divided.name in ("column", "partitioner"):
        divided = IidPartition(name="iid", test_fraction=divided.test_fraction)
    changes: dict[str, Any] = {
        "seed": seed,
        "partition": divided,
        "num_clients": clients,
        "clients_per_round": min(clients, max(1, round(config.clients_per_round * share))),
        "local": config.local.model_copy(update={"batch_size": min(config.local.batch_size, len(rows) // clients)}),
        "privacy": config.privacy.model_copy(update={"target_epsilon": None, "target_observer": None, "rng": "seeded"}),
        "strategy": config.with_options(min_replies=1).strategy,
    }
    return _job(config, changes, rows, spare, snapshots)


def overfitted(config: Config, rows: Rows, spare: Rows, *, seed: int) -> Job:
    """The run's model, trained by one client without noise until it is overfitted to these rows."""
    plain, rounds = _plain(), CONTROL_ROUNDS
    epochs = -(-config.attack.control_epochs // rounds)
    local = plain.local.model_copy(
        update={"epochs": epochs, "batch_size": min(20, len(rows)), "lr": CONTROL_LR, "momentum": 0.9}
    )
    changes: dict[str, Any] = {
        "seed": seed,
        "num_clients": 1,
        "clients_per_round": 1,
        "num_rounds": rounds,
        "local": local,
        "privacy": plain.privacy,
        "strategy": plain.strategy,
        "partition": IidPartition(name="iid", test_fraction=0.0),
    }
    return _job(config, changes, rows, spare, range(1, rounds))


def exposed(config: Config, rows: Rows, spare: Rows, *, seed: int) -> Job:
    """The run's model, trained by one client without noise, with one step on all of these rows in every round."""
    plain = _plain()
    local = plain.local.model_copy(update={"epochs": 1, "batch_size": len(rows), "lr": CONTROL_LR})
    changes: dict[str, Any] = {
        "seed": seed,
        "num_clients": 1,
        "clients_per_round": 1,
        "num_rounds": CONTROL_ROUNDS,
        "local": local,
        "privacy": plain.privacy,
        "strategy": plain.strategy,
        "partition": IidPartition(name="iid", test_fraction=0.0),
    }
    return _job(config, changes, rows, spare, ())


def _job(config: Config, changes: dict[str, Any], rows: Rows, spare: Rows, snapshots: Sequence[int]) -> Job:
    """Drops the options that only a user's run needs; always in one process."""
    tested = spare[~np.isin(spare, rows)]
    dataset = {"train_examples": None, "split": None, "auxiliary": min(config.dataset.auxiliary, len(tested) // 2)}
    quiet = {
        "engine": config.engine.model_copy(update={"name": "inprocess", "threads_per_client": 1, "faults": ()}),
        "evaluate": config.evaluate.model_copy(update={"every": 0, "clients": False}),
        "checkpoint": config.checkpoint.model_copy(update={"every": 0}),
        "dataset": config.dataset.model_copy(update=dataset),
        "run_dir": None,
    }
    return Job(config.model_copy(update=quiet | changes), rows, tested, config.seed, tuple(snapshots))


@cache
def _plain() -> Config:
    from fedpriv.config.compose import compose

    return compose(["strategy=fedavg"])


#: Rounds of the positive control.
CONTROL_ROUNDS = 5
#: Learning rate of the positive control (momentum 0.9, batches of 20).
CONTROL_LR = 0.02


# --- training --------------------------------------------------------------------------------------------


def train(job: Job, split: Path) -> Trained:
    """Trains a model in this process. ``split``: where the rows are written for the engine."""
    write_split(split, Split(job.rows, job.tested, job.pool_seed))
    config = job.config.model_copy(
        update={"dataset": job.config.dataset.model_copy(update={"split": str(split.absolute())})}
    )
    worker = Worker(config)
    adopt(config, worker)
    kept: dict[int, FloatVector] = {}
    seen: dict[int, RoundUpdates] = {}
    recorder = UpdateRecorder(lambda number: number in job.seen, seen.__setitem__)
    theta = worker.initial_parameters()

    def note(current: Round) -> None:
        nonlocal theta
        theta = current.theta
        if current.number in job.snapshots:
            kept[current.number] = worker.whole_model(theta)
        recorder.ended(current)

    hooks = replace(NO_HOOKS, on_release=recorder.heard) if job.seen else NO_HOOKS
    strategy = make_strategy(config, worker, hooks=hooks)
    with suppress(BudgetsSpent):  # the model at that point is the method's result
        start = pack_vector(theta)
        strategy.run_rounds(InProcessGrid(config, make_apps(config)[1]), start, config.num_rounds, on_round=note)
    return Trained(worker.whole_model(theta), kept, job.rows, seen)


class Shelf:
    """Trained models under ``folder``; a broken or half-written one is trained again."""

    def __init__(self, folder: Path, workers: int | None = None) -> None:
        self.folder = folder
        self.workers = workers or max(1, cores() // 2)

    def models(self, jobs: Sequence[Job], done: Callable[[int, int], None] = lambda ready, of: None) -> list[Trained]:
        """The models of these jobs, in their order; missing ones are trained, several at a time.

        done(number of new models that are ready, how many there will be) is called before and after each.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = list({job.key: job for job in jobs if self._load(job) is None}.values())
        if missing:
            done(0, len(missing))
        if min(self.workers, len(missing)) <= 1:
            for number, job in enumerate(missing, 1):
                _make(job, self.folder)
                done(number, len(missing))
        else:
            with ProcessPoolExecutor(
                min(self.workers, len(missing)), multiprocessing.get_context("spawn"), initializer=_give_way
            ) as pool:
                for number, _ in enumerate(pool.map(_make, missing, [self.folder] * len(missing)), 1):
                    done(number, len(missing))
        found = [self._load(job) for job in jobs]
        if any(model is None for model in found):
            raise OSError(f"{self.folder}: a shadow model that was just written cannot be read")
        return [model for model in found if model is not None]

    def _load(self, job: Job) -> Trained | None:
        try:
            tensors = tensors_in(self.folder, f"{job.key}.safetensors")
            theta = tensors.pop("theta").numpy()
            seen = read_updates({name: tensors.pop(name) for name in list(tensors) if "/" in name})
            kept = {int(name): value.numpy() for name, value in tensors.items()}
        except (OSError, KeyError, ValueError):
            return None
        return Trained(theta, kept, job.rows, seen)


def read_updates(tensors: Mapping[str, torch.Tensor]) -> dict[int, RoundUpdates]:
    """What was kept as "round/before" and "round/client"."""
    rounds: dict[int, dict[str, FloatVector]] = {}
    for name, value in tensors.items():
        number, _, what = name.partition("/")
        rounds.setdefault(int(number), {})[what] = value.numpy()
    return {
        number: RoundUpdates(found.pop("before"), {int(client): update for client, update in sorted(found.items())})
        for number, found in sorted(rounds.items())
    }


def _give_way() -> None:
    os.nice(NICE)


def _make(job: Job, folder: Path) -> None:
    split = folder / f"{job.key}.npz"
    trained = train(job, split)
    if not np.isfinite(trained.theta).all():
        raise RunFailed(f"a model trained for the attack diverged (local.lr={job.config.local.lr})")
    tensors = {"theta": trained.theta} | {str(number): theta for number, theta in trained.snapshots.items()}
    for number, seen in trained.seen.items():
        tensors[f"{number}/before"] = seen.before
        tensors |= {f"{number}/{client}": update for client, update in seen.updates.items()}
    content = save({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in tensors.items()})
    write_atomic(folder / f"{job.key}.safetensors", content)
    split.unlink(missing_ok=True)
