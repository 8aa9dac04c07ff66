"""`engine.trainer=auto`: sequential or vectorised, by a quick measurement on random examples.

The measurement is kept in the cache beside the decoded examples, keyed by all that it depends on but the seed: the
seeds of a sweep, in whatever process, and every later run on this machine choose alike. A run's config.yaml holds what
was chosen, so a resumed or repeated run measures nothing.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedpriv.client.build import client_class
from fedpriv.common.errors import OptionError
from fedpriv.common.systems import cores
from fedpriv.common.versions import code_digest
from fedpriv.config.schema import Config
from fedpriv.data import ResampledPartition
from fedpriv.data.cache import cache_folder, entry
from fedpriv.engines.worker import Worker
from fedpriv.runs.planning import estimate_seconds, timed
from fedpriv.training.sequential import Clipping, LocalData, SequentialTrainer, Training

#: Cohorts below this have nothing to share.
FEWEST_CLIENTS = 8
#: So much faster the vectorised trainer must be: it holds a cohort's examples in memory.
WORTHWHILE = 1.25
#: A model that is no chain of Linear and ReLU needs torch.func, whose import takes seconds: training below this many
#: seconds is not worth it.
WORTH_IMPORTING = 60.0
#: What the measurement takes: clients side by side, batches of each, repetitions.
CLIENTS, BATCHES, REPEATS = 32, 4, 3


@dataclass(frozen=True)
class Choice:
    """The trainer, why, and how many times faster it is than the sequential one (1 where nothing was measured)."""

    trainer: str
    reason: str
    gain: float = 1.0


def choose_trainer(config: Config, worker: Worker) -> Choice:
    """What `engine.trainer` means here. Raises `OptionError` where ``vectorised`` is asked for and impossible, naming
    the layer.
    """
    asked = config.engine.trainer
    if asked == "sequential":
        return Choice(asked, "as asked")
    reason = _why_not(config, worker)
    if asked == "vectorised":
        reason = reason or _model_obstacle(config, worker)
        if reason is not None:
            raise OptionError("engine.trainer", asked, f"{reason}; allowed: auto, sequential")
        return Choice(asked, "as asked")
    if reason is not None:
        return Choice("sequential", reason)
    if config.clients_per_round < FEWEST_CLIENTS:
        return Choice("sequential", f"fewer than {FEWEST_CLIENTS} clients a round")
    by_vmap = worker.model.theta.device.type == "cpu" and not _by_hand(config, worker)
    if by_vmap and estimate_seconds(config, worker) < WORTH_IMPORTING:
        return Choice("sequential", f"less than {WORTH_IMPORTING:.0f} s of training")
    # A user's own model may have changed since it was measured, so it is tried each time.
    reason = _model_obstacle(config, worker) if config.model.name == "custom" else None
    reason, gain = (reason, 0.0) if reason is not None else _measured(config, worker)
    if reason is not None:
        return Choice("sequential", reason)
    trainer = "vectorised" if gain >= WORTHWHILE else "sequential"
    return Choice(trainer, f"vectorised is {gain:.1f} x as fast where it was measured", max(gain, 1.0))


def _by_hand(config: Config, worker: Worker) -> bool:
    from fedpriv.training.stacked_gradients import Chain

    return config.engine.precision == "float32" and Chain.of(worker.model.module) is not None


def _why_not(config: Config, worker: Worker) -> str | None:
    """What besides the model forbids vectorised training, in words."""
    if config.engine.name == "flower":
        return "engine=flower gives every client a message of its own, one at a time"
    if config.local.clipping == "opacus":
        return "local.clipping=opacus clips client by client: its formulas know one set of parameters"
    if client_class(config).traits.clips_examples and not _by_hand(config, worker):
        return f"per-example gradients of model={config.model.name} are clipped client by client"
    return None


def _model_obstacle(config: Config, worker: Worker) -> str | None:
    from fedpriv.training.vectorisable import obstacle

    return obstacle(worker.model, worker.data.dataset.shape)


# --- the measurement -------------------------------------------------------------------------------------


def _measured(config: Config, worker: Worker) -> tuple[str | None, float]:
    """What forbids vectorised training of this model, or seconds of a client's sequential training over its share of
    the vectorised one; found once.
    """
    examples = _usual_examples(config, worker)
    device = worker.model.theta.device
    identity = {
        "code": code_digest(),
        "machine": [platform.node(), platform.machine(), cores(), str(torch.__version__)],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": config.engine.threads_per_client,
        "model": config.model.model_dump(),
        "shape": worker.data.dataset.shape,
        "classes": len(worker.data.dataset.classes),
        "task": worker.model.task.name,
        "vocabulary": worker.model.vocabulary,
        "local": config.local.model_dump(),
        "precision": config.engine.precision,
        "examples": examples,
        "clients": min(CLIENTS, config.clients_per_round),
        "clips_examples": client_class(config).traits.clips_examples,
    }

    def write(folder: Path) -> None:
        obstacle = _model_obstacle(config, worker)
        gain = 0.0 if obstacle is not None else measure(config, worker, examples)
        (folder / "trainers.json").write_text(json.dumps({"obstacle": obstacle, "gain": gain}))

    found = entry(cache_folder(config.dataset) / "trainers", identity, write)
    known = json.loads((found / "trainers.json").read_text())
    return known["obstacle"], float(known["gain"])


def _usual_examples(config: Config, worker: Worker) -> int:
    """Examples of a client in the measurement: an even share, which no seed changes, and a few batches at most."""
    partition = worker.data.partition
    if isinstance(partition, ResampledPartition):
        share = int(partition.num_train[0])
    else:
        share = int(len(worker.data.dataset.train) * (1 - config.partition.test_fraction)) // config.num_clients
    return max(1, min(share, BATCHES * config.local.batch_size))


def _made_up_targets(worker: Worker, examples: int, random: torch.Generator) -> torch.Tensor:
    """Random classes, also of tokens; blank ones of tasks without classes."""
    blank = worker.model.task.blank(examples)
    if blank.is_floating_point():
        return blank
    return torch.randint(0, len(worker.data.dataset.classes), blank.shape, generator=random)


def measure(config: Config, worker: Worker, examples: int) -> float:
    """How many times faster a client's share of the vectorised training is. The model is left as it was."""
    from fedpriv.training.vectorised import VectorisedTrainer

    model, before = worker.model, worker.model.theta.clone()
    together = min(CLIENTS, config.clients_per_round)
    theta = before.cpu()
    random = torch.Generator().manual_seed(0)
    inputs = model.made_up(examples, *worker.data.dataset.shape, random=random)
    data = LocalData(inputs, _made_up_targets(worker, examples, random))
    local = config.local.model_copy(update={"epochs": 1})
    precision = config.engine.precision
    vectorised, sequential = VectorisedTrainer(model, local, precision), SequentialTrainer(model, local, precision)
    clips = client_class(config).traits.clips_examples

    def ask(trainer: SequentialTrainer, clients: int) -> object:
        if clips:
            return trainer.clipped_sums([Clipping(theta, data, 1.0)] * clients)
        return trainer.train_all([Training(theta, data, np.random.default_rng(client)) for client in range(clients)])

    def one_after_the_other(clients: int) -> None:
        ask(sequential, clients)

    def side_by_side() -> None:
        ask(vectorised, together)

    first = timed(lambda: one_after_the_other(1), model.theta.device)
    alone = max(1, min(together, int(0.1 / first)))
    seconds = []
    for _ in range(REPEATS + 1):
        slow = timed(lambda: one_after_the_other(alone), model.theta.device) / alone
        fast = timed(side_by_side, model.theta.device) / together
        seconds.append((slow, fast))
    model.load(before)
    seconds = seconds[1:]  # the first turn warms up
    return min(slow for slow, _ in seconds) / min(fast for _, fast in seconds)
