"""Training-level audits. Here for the unit client, where every client is a canary; for the unit example see
`fedpriv.attacks.gradient_canaries` and, where gradients are not clipped one by one, `example_canaries`.

Each client's update is replaced by a Dirac vector far longer than the clip norm, with a sign from a secret coin, in
every round it takes part in. Everything after the update is the production code: cohorts, messages, clipping, noise
keys, state between participations. The attacker is the server: it sums what each client sent along that client's own
coordinate and guesses the coins (Steinke, Nasr and Jagielski, NeurIPS 2023).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.attacks.example_canaries import run_with_pictures
from fedpriv.attacks.gradient_canaries import planned_guesses, run_with_gradients
from fedpriv.client.build import client_class, make_client
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.client.summing import SummingClient
from fedpriv.common.doing import doing
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import ARRAYS, FloatVector, pack_vector, unpack_array
from fedpriv.config.schema import Config
from fedpriv.config.sum_checks import in_the_open
from fedpriv.engines.grid import client_of
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, adopt, make_apps
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.canaries import CanaryAudit, audit_canaries, coin_flips, dirac_updates
from fedpriv.privacy.events import BLIND_TO_COHORT
from fedpriv.privacy.scaled_noise import family_of
from fedpriv.runs.planning import most_participations
from fedpriv.runs.preparation import make_strategy
from fedpriv.server.round import BudgetsSpent
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.server.summing import SummingServer

#: A canary's update is this many clip norms long, so that skipped clipping shows.
LENGTH = 10.0

#: Limit on the size of all canaries together (4 GiB).
MOST_NUMBERS = 2**30


#: Runs are repeated until there are so many coins, at most so many times.
COINS, MOST_RUNS = 100, 20

#: Shares of the coins that are guessed: all, half, ...
PARTS = (1, 2, 4)


class CanaryWorker(Worker):
    """A worker whose clients are canaries."""

    def __init__(self, config: Config, updates: Tensor) -> None:
        super().__init__(config)
        self.updates = updates

    def train(self, clients: Sequence[int], *others: Any) -> tuple[Tensor, Tensor]:
        return self.updates[torch.tensor(clients)], torch.zeros(len(clients), dtype=torch.float64)

    def test_locally(self, client: int, theta: Tensor) -> dict[str, float]:
        return {}


class ListeningGrid(InProcessGrid):
    """Records, for each client, the sum along its own canary of all that the observer sees: releases, or their sums.

    directions: the coordinates of each client's canary.
    """

    def __init__(
        self, config: Config, client_app: Any, directions: Sequence[slice | int], server: FederatedStrategy
    ) -> None:
        super().__init__(config, client_app)
        self.directions, self.server = directions, server
        self.heard: dict[int, float] = defaultdict(float)

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        read, sent = self.server.decode or _as_it_is, list[Any]()
        summed = isinstance(self.server, SummingServer) and self.server.in_sum
        for message, reply in zip(messages, super().deliver(messages, deadline), strict=False):
            client = client_of(message)
            if reply.has_content() and ARRAYS in reply.content:  # an exchange without a release has none
                sent.append(SimpleNamespace(client=client, release=read(client, unpack_array(reply.content))))
                if not summed:
                    self._hear(client, sent.pop().release)
            yield reply
        if sent:
            mean = self.server.mean(self.server.current.theta.size, sent)
            for one in sent:
                self._hear(one.client, mean)

    def _hear(self, client: int, seen: NDArray[Any]) -> None:
        self.heard[client] += float(seen[self.directions[client]].sum())


def audit_training(config: Config, *, confidence: float, seed: int) -> CanaryAudit:
    """Runs all rounds of ``config`` in this process with canaries of the method's unit of privacy: whole clients
    (the bound is for replace-one) or single examples (add-or-remove-one).

    Few coins show little, however well they are guessed, so runs are repeated, with other keys and coins, until there
    are `COINS`. Their coins are those of one mechanism: each is of one run alone, and the runs are independent.
    """
    # Canaries never touch a run's folder, and planned faults do not concern this audit.
    engine = config.engine.model_copy(update={"name": "inprocess", "device": "auto", "faults": ()})
    config = in_the_open(config.model_copy(update={"engine": engine, "run_dir": None}))
    kind, once = client_class(config), _run_with_clients
    clipped = issubclass(kind, ExampleLevelClient)
    if kind.threat.unit != "client" and issubclass(kind, SummingClient):
        words = "a site's own numbers are parts of a sum, whose observer sees the sum alone; allowed: mechanism"
        raise OptionError("level", "training", words)
    if kind.threat.unit == "example":
        once = run_with_gradients if clipped else run_with_pictures
    runs: list[tuple[NDArray[np.bool_], NDArray[np.float64]]] = []
    while not runs or (sum(len(coins) for coins, _ in runs) < COINS and len(runs) < MOST_RUNS):
        doing("runs with canaries", len(runs), max(1, -(-COINS // len(runs[0][0]))) if runs else 1)
        runs.append(once(config, seed, len(runs)))
    coins, scores = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    guesses, present = sorted({max(1, len(coins) // part) for part in PARTS}), None
    if clipped:
        guesses, present = planned_guesses(config, len(coins), confidence, seed)
    client = make_client(config)
    family = family_of(client.planned_events(client.observed_rounds(most_participations(config))))
    settings: dict[str, Any] = {"delta": config.privacy.delta, "confidence": confidence}
    settings |= {"guesses": guesses, "present": present, "families": [] if family is None else [family]}
    return replace(audit_canaries(coins, scores, **settings), runs=len(runs))


def _run_with_clients(config: Config, seed: int, run: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """(coins, scores). Clients that were never in a cohort get the score 0.

    Raises `OptionError` where the server is trusted: in this audit the server is the observer.
    """
    client = make_client(config)
    if client.threat.observer in BLIND_TO_COHORT:
        words = f"the server observes its canaries, this run's observer is {client.threat.observer}: mechanism"
        raise OptionError("level", "training", words)
    layout = Worker(config).model.layout
    up = client.layers(layout, 1).up
    size = up.stop - up.start
    if config.num_clients * layout.num_parameters > MOST_NUMBERS:
        words = f"a canary for each of {config.num_clients:,} clients does not fit into memory; audit fewer of them"
        raise OptionError("level", "training", words)
    clip_norm = float(getattr(config.strategy.options, "clip_norm", 1.0))
    coins = coin_flips(config.num_clients, SeededNoise(seed, "canary coins", run))
    signs = torch.where(coins, 1.0, -1.0).unsqueeze(1)
    strategy = make_strategy(config, Worker(config), run)
    if not client.traits.canary_everywhere:
        coordinates = torch.arange(config.num_clients) % size
        directions: list[slice | int] = coordinates.tolist()
        canaries = dirac_updates(up.start + coordinates, layout.num_parameters, LENGTH * clip_norm)
    else:
        directions = [slice(None)] * config.num_clients
        canaries = torch.full((config.num_clients, layout.num_parameters), LENGTH)

    worker = CanaryWorker(config, client.as_update(canaries * signs, config.local.lr))
    adopt(config, worker)
    grid = ListeningGrid(config, make_apps(config)[1], directions, strategy)
    with suppress(BudgetsSpent):  # the releases until then count
        strategy.run_rounds(grid, pack_vector(worker.initial_parameters()), config.num_rounds)
    return coins.numpy(), np.array([grid.heard[client] for client in range(config.num_clients)])


def _as_it_is(client: int, vector: FloatVector) -> FloatVector:
    return vector
