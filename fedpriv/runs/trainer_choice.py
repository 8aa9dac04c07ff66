"""`engine.trainer=auto`: sequential or vectorised, by a rule.

The rule follows measurements of cohorts of 32 clients (docs/engines.md has the table): clients side by side share the
fixed cost of a step, which is most of a small one. A run's config.yaml holds what was chosen.
"""

from __future__ import annotations

from typing import NamedTuple

from fedpriv.client.build import client_class
from fedpriv.common.errors import OptionError
from fedpriv.config.schema import Config
from fedpriv.data import ResampledPartition
from fedpriv.engines.worker import Worker

#: Cohorts below this have nothing to share.
FEWEST_CLIENTS = 8
#: Largest batch of a client on a CPU, and most parameters on a GPU, with which the vectorised trainer was faster.
MOST_EXAMPLES, MOST_PARAMETERS = 100, 10**6
#: How many times faster it is, for a plan's seconds: about the middle of that table.
GAIN = 2.0


class Choice(NamedTuple):
    trainer: str
    reason: str


def choose_trainer(config: Config, worker: Worker) -> Choice:
    """What `engine.trainer` means here. Raises `OptionError` where ``vectorised`` is asked for and impossible, naming
    the layer.
    """
    from fedpriv.training.vectorisable import obstacle

    asked = config.engine.trainer
    if asked == "sequential":
        return Choice(asked, "as asked")
    reason = _why_not(config, worker) or (_why_not_faster(config, worker) if asked == "auto" else None)
    reason = reason or obstacle(worker.model, worker.data.dataset.shape)
    if asked == "auto":
        return Choice("sequential", reason) if reason else Choice("vectorised", "small steps, which clients share")
    if reason is not None:
        raise OptionError("engine.trainer", asked, f"{reason}; allowed: auto, sequential")
    return Choice(asked, "as asked")


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


def _why_not_faster(config: Config, worker: Worker) -> str | None:
    """Why the sequential trainer is taken to be as fast, in words."""
    if config.clients_per_round < FEWEST_CLIENTS:
        return f"fewer than {FEWEST_CLIENTS} clients a round"
    if worker.model.theta.device.type != "cpu":
        large = len(worker.model.theta) > MOST_PARAMETERS
        return f"more than {MOST_PARAMETERS:,} parameters" if large else None
    if not _by_hand(config, worker):
        return f"model={config.model.name} is no chain of linear layers in float32"
    partition = worker.data.partition
    share = len(worker.data.dataset.train) // config.num_clients  # the same whichever seed divides them
    if isinstance(partition, ResampledPartition):
        share = int(partition.num_train[0])
    return f"batches of more than {MOST_EXAMPLES}" if min(share, config.local.batch_size) > MOST_EXAMPLES else None
