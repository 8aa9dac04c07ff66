"""Training-level audit of example units where gradients are not clipped one by one: a real run in which some training
examples are canaries.

Each canary is one of a client's own examples with a wrong label; a secret coin decides whether it is in the client's
data at all. Everything else is the production code: cohorts, messages, Poisson batches, clipping, noise, optimizer
state. The attacker is the server, which knows everything but the coins: from every message of a client it solves for
the weights of the canaries' gradients in it, sums them over the rounds, and guesses (Steinke, Nasr and
Jagielski, NeurIPS 2023; gradients as in Nasr et al., USENIX Security 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray

from fedpriv.client.build import example_counts
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import pack_vector, unpack_vector
from fedpriv.config.schema import Config
from fedpriv.engines.grid import client_of
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, adopt, make_apps
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.tasks import Classification
from fedpriv.privacy.canaries import coin_flips, mislabel
from fedpriv.runs.preparation import make_strategy
from fedpriv.server.round import BudgetsSpent
from fedpriv.training.sequential import LocalData

#: A tenth of the smallest client's examples, and at most this many: canaries interfere with each other.
MOST_PER_CLIENT = 50


@dataclass(frozen=True)
class Canaries:
    """One client's canaries: positions among its examples (int64 [k], ascending), wrong labels, coins (bool [k])."""

    positions: np.ndarray
    targets: torch.Tensor
    present: np.ndarray


class ExampleCanaryWorker(Worker):
    """A worker whose clients hold canaries; the declared counts, and so the sampling rates, are unchanged."""

    def __init__(self, config: Config, seed: int, run: int) -> None:
        super().__init__(config)
        if self.by_person:
            words = "canaries of this method are single rows, and persons are the unit: mechanism"
            raise OptionError("level", "training", words)
        if not isinstance(self.data.dataset.task, Classification):
            words = f"its canaries have wrong classes, and this run's task is {self.data.dataset.task.name}: mechanism"
            raise OptionError("level", "training", words)
        each = min(MOST_PER_CLIENT, int(example_counts(config).min()) // 10)
        if each < 1:
            raise OptionError("level", "training", "a client needs at least 10 examples to hold a canary")
        noise, rng = SeededNoise(seed, "canary examples", run), np.random.default_rng([seed, 1, run])
        classes = len(self.data.dataset.classes)
        self.canaries: list[Canaries] = []
        for client in range(config.num_clients):
            positions = np.sort(rng.choice(self.data.num_examples(client), each, replace=False))
            true = super().local_data(client, positions).targets.cpu()  # the coins are drawn there
            coins = coin_flips(each, noise).numpy()
            self.canaries.append(Canaries(positions, mislabel(true, classes, noise), coins))

    def local_data(self, client: int, chosen: np.ndarray | None = None) -> LocalData:
        """The drawn examples: canaries have their wrong labels, absent canaries are left out."""
        canaries = self.canaries[client]
        drawn = np.arange(self.data.num_examples(client)) if chosen is None else chosen
        kept = drawn[~np.isin(drawn, canaries.positions[~canaries.present])]
        found = super().local_data(client, kept)
        labels = found.targets.clone()
        place = np.searchsorted(canaries.positions, kept).clip(max=len(canaries.positions) - 1)
        hit = canaries.positions[place] == kept
        labels[torch.from_numpy(hit).to(labels.device)] = canaries.targets[torch.from_numpy(place[hit])].to(
            labels.device
        )
        return replace(found, targets=labels)

    def canary_examples(self, client: int) -> LocalData:
        """The client's canaries themselves, present or not, as the attacker knows them."""
        canaries = self.canaries[client]
        return replace(super().local_data(client, canaries.positions), targets=canaries.targets)

    def other_examples(self, client: int) -> LocalData:
        """All examples of the client that are not canaries."""
        return super().local_data(
            client, np.setdiff1d(np.arange(self.data.num_examples(client)), self.canaries[client].positions)
        )


class GradientGrid(InProcessGrid):
    """Scores every canary by its weight in each release of its client, summed over the rounds."""

    def __init__(self, config: Config, client_app: Any, worker: ExampleCanaryWorker) -> None:
        super().__init__(config, client_app)
        self.worker = worker
        self.scores = np.zeros((config.num_clients, len(worker.canaries[0].positions)))

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        for message, reply in zip(messages, super().deliver(messages, deadline), strict=False):
            if reply.has_content():
                theta, release = (torch.from_numpy(unpack_vector(one.content)) for one in (message, reply))
                self.scores[client_of(message)] += self._shares(client_of(message), theta, release)
            yield reply

    def _shares(self, client: int, theta: torch.Tensor, release: torch.Tensor) -> np.ndarray:
        """Weights [k] of the canaries' clipped gradients in the negated release, by least squares; the gradient of the
        client's other examples, which the attacker knows, gets a separate weight.
        """
        canaries, others = self.worker.canary_examples(client), self.worker.other_examples(client)
        parts = [LocalData(canaries.inputs[[index]], canaries.targets[[index]]) for index in range(len(canaries))]
        gradients = [self.worker.trainer.clipped_sum(theta, part, 1.0).total for part in (*parts, others)]
        found = torch.linalg.lstsq(torch.stack(gradients, dim=1).double(), -release.double().unsqueeze(1))
        weights: np.ndarray = found.solution[:-1, 0].numpy()
        return weights


def run_with(
    config: Config, seed: int, run: int, worker_of: Callable[..., Any], grid_of: Callable[..., Any]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """(coins, scores) of one run of all rounds with canaries; a coin adds or removes one example. worker_of: of
    (config, seed, run), with ``canaries`` by client; grid_of: of (config, client app, worker), with ``scores``.
    """
    worker = worker_of(config, seed, run)
    adopt(config, worker)
    grid = grid_of(config, make_apps(config)[1], worker)
    strategy = make_strategy(config, worker, run)
    with suppress(BudgetsSpent):  # the releases until then count
        strategy.run_rounds(grid, pack_vector(worker.initial_parameters()), config.num_rounds)
    return np.concatenate([canaries.present for canaries in worker.canaries]), grid.scores.ravel()


def run_with_pictures(config: Config, seed: int, run: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """`run_with` canary examples."""
    return run_with(config, seed, run, ExampleCanaryWorker, GradientGrid)
