"""Training-level audit of methods that clip the gradient of each example: a real run in which some training examples
are canaries, whose gradients are Diracs. Where persons are the unit, a canary is a person.

A secret coin decides for each canary whether it is in its client's data at all. Wherever it is drawn, its gradient is
ten clip bounds long and lies along one coordinate, and the production code's own factor clips it (Nasr et al., USENIX
Security 2023). So canaries do not disturb each other, and they stay as loud as they were, while the gradients of wrong
labels resemble each other and shrink as the model learns them. The coordinates are those that training moves least.
Everything else is the production code: cohorts, messages, Poisson batches, sums, noise, optimizer
state. (That examples' own gradients are clipped is what the audit of the client's own fit looks at.)

The attacker is the server and knows everything but the coins. Of a release it takes the value x along a canary's
coordinate, in units of the release's own noise, s = median |release| / 0.6745. Of k steps at rate q and noise sigma the
canary was in j ~ Binomial(k, q), and then x ~ N(j m, 1), m = 1 / (sigma sqrt(k)). Its score is the sum over the
rounds of the log of the likelihood ratio, log sum_j Pr[j] exp(j m x - j^2 m^2 / 2), which is exact for plain SGD; for
any other optimizer it is a score like another, and the bound holds whatever the scores are (Steinke et al. 2023).

Shapes: k canaries of a client, d parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.attacks.example_canaries import run_with
from fedpriv.client.build import example_counts, make_client
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import unpack_vector
from fedpriv.config.schema import Config
from fedpriv.engines.grid import client_of
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms import per_example
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.auditor import log_ratio
from fedpriv.privacy.canaries import audit_canaries, coin_flips
from fedpriv.runs.planning import most_participations
from fedpriv.training.sequential import Clipping, LocalData, SequentialTrainer

#: Length of a canary's gradient in clip bounds, so that skipped clipping shows.
LENGTH = 10.0

#: Most canaries of a client; at most half of its examples and half of the coordinates.
MOST_PER_CLIENT = 500

#: Shares of the coins that may be guessed, and of these guesses that say "it was there"; runs that are simulated.
PARTS, PRESENT, SIMULATED = (1, 2, 4, 8, 16, 32), (0.5, 1.0), 5

#: Examples on which the attacker looks for coordinates that training moves little.
LOOKED_AT = 64


@dataclass(frozen=True)
class WithCanaries(LocalData):
    """A batch of ordinary examples and of canaries, given by their coordinates (int64 [k])."""

    coordinates: Tensor = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.targets) + len(self.coordinates)


@dataclass(frozen=True)
class Canaries:
    """One client's canaries: positions among its examples (int64 [k], ascending), coordinates [k], coins (bool [k])."""

    positions: NDArray[np.int64]
    coordinates: NDArray[np.int64]
    present: NDArray[np.bool_]


class GradientCanaryWorker(Worker):
    """A worker whose clients hold canaries; the declared counts, and so the sampling rates, are unchanged."""

    def __init__(self, config: Config, seed: int, run: int) -> None:
        super().__init__(config)
        up = make_client(config).layers(self.model.layout, 1).up
        size = up.stop - up.start
        each = min(MOST_PER_CLIENT, int(example_counts(config).min()) // 2, size // 2)
        if each < 1:
            raise OptionError("level", "training", "a client needs at least 2 examples to hold a canary")
        noise, rng = SeededNoise(seed, "canary examples", run), np.random.default_rng([seed, 1, run])
        self.canaries: list[Canaries] = []
        self.quiet = up.start + self._moved_least(rng)[up.start : up.stop].argsort(kind="stable")[:each]
        for client in range(config.num_clients):
            positions = np.sort(rng.choice(self.data.num_examples(client), each, replace=False))
            coins = coin_flips(each, noise).numpy()
            self.canaries.append(Canaries(positions, rng.permutation(self.quiet), coins))

    def _moved_least(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Sums of squares of some examples' gradients at the first model [d]; ties are broken by lot."""
        trainer, total = SequentialTrainer(self.model, self.config.local), torch.zeros(self.model.theta.numel())
        for client in rng.integers(0, self.config.num_clients, LOOKED_AT):
            row = rng.integers(0, self.data.num_examples(int(client)), 1)
            one = super().local_data(int(client), row)
            total = total + trainer.clipped_sum(self.initial_model, one, 1.0).total.square()
        moved: NDArray[np.float64] = total.double().numpy() + 1e-12 * rng.random(len(total))
        return moved

    def local_data(self, client: int, chosen: np.ndarray | None = None) -> LocalData:
        """The drawn examples: absent canaries are left out, the others are given by their coordinates."""
        canaries = self.canaries[client]
        drawn = np.arange(self.data.num_examples(client)) if chosen is None else chosen
        found = super().local_data(client, drawn[~np.isin(drawn, canaries.positions)])
        there = np.isin(canaries.positions, drawn) & canaries.present
        return WithCanaries(
            found.inputs, found.targets, found.unit, coordinates=torch.from_numpy(canaries.coordinates[there])
        )

    @cached_property
    def trainer(self) -> SequentialTrainer:
        """The run's own, which also adds the gradients of canaries, clipped by the production code's factor."""
        found = super().trainer
        real = found.clipped_sums

        def clipped_sums(requests: Sequence[Clipping]) -> list[ClippedSum]:
            data = [LocalData(one.data.inputs, one.data.targets, one.data.unit) for one in requests]
            plain = [replace(one, data=own, stays=False) for one, own in zip(requests, data, strict=True)]
            return [with_canaries(*both) for both in zip(requests, real(plain), strict=True)]

        found.clipped_sums = clipped_sums  # type: ignore[method-assign]
        return found


def with_canaries(asked: Clipping, ordinary: ClippedSum) -> ClippedSum:
    """The sum of ordinary examples and of the canaries that were drawn with them."""
    if not isinstance(asked.data, WithCanaries):
        return ordinary
    norms = torch.full((len(asked.data.coordinates),), LENGTH * asked.bound, dtype=torch.float64)
    clipped = per_example.clip_factors(norms, asked.bound) * norms
    total = ordinary.total.index_add(0, asked.data.coordinates, clipped)
    return replace(ordinary, total=total, norms=torch.cat([ordinary.norms, norms]))


class DiracGrid(InProcessGrid):
    """Scores every canary by its coordinate in each release of its client."""

    def __init__(self, config: Config, client_app: Any, worker: GradientCanaryWorker) -> None:
        super().__init__(config, client_app)
        self.worker, client = worker, make_client(config)
        assert isinstance(client, ExampleLevelClient)
        self.sigma, self.steps = max(client.noise_multiplier, 1e-3), client.local_steps
        self.start = client.layers(worker.model.layout, 1).up.start
        self.rates = np.minimum(1.0, config.local.batch_size / example_counts(config))
        self.scores = np.zeros((config.num_clients, len(worker.canaries[0].positions)))

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        for message, reply in zip(messages, super().deliver(messages, deadline), strict=False):
            if reply.has_content():
                client = client_of(message)
                release = np.asarray(unpack_vector(reply.content), np.float64)
                noise = max(float(np.median(np.abs(release))) / 0.6745, 1e-9 * float(np.abs(release).max()), 1e-300)
                seen = -release[self.worker.canaries[client].coordinates - self.start] / noise
                self.scores[client] += log_ratio(seen, self.sigma, float(self.rates[client]), self.steps)
            yield reply


def run_with_gradients(config: Config, seed: int, run: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """`run_with` canary gradients."""
    return run_with(config, seed, run, GradientCanaryWorker, DiracGrid)


def planned_guesses(config: Config, coins: int, confidence: float, seed: int) -> tuple[list[int], list[float]]:
    """How many coins to guess, and the shares of these guesses that are "it was there": what does best in simulations
    of plain SGD with this noise, and a quarter of the coins, in case the noise is another one. Both are fixed before
    the run, and the fewer tries, the more each may show.
    """
    client, rng = make_client(config), np.random.default_rng([seed, 2])
    assert isinstance(client, ExampleLevelClient)
    sigma, steps, delta = max(client.noise_multiplier, 1e-3), client.local_steps, config.privacy.delta
    rate = float(min(1.0, config.local.batch_size / np.median(example_counts(config))))
    gains = dict.fromkeys([(max(1, coins // part), share) for part in PARTS for share in PRESENT], 0.0)
    for _ in range(SIMULATED):
        there, scores = rng.random(coins) < 0.5, np.zeros(coins)
        for _ in range(most_participations(config)):
            mean = rng.binomial(steps, rate, coins) * there / (sigma * np.sqrt(steps))
            scores += log_ratio(mean + rng.standard_normal(coins), sigma, rate, steps)
        for number, share in gains:
            options = {"delta": delta, "confidence": confidence, "guesses": [number], "present": [share]}
            found = audit_canaries(there, scores, **options)  # type: ignore[arg-type]
            gains[number, share] += found.epsilon_lower + 1e-6 * (found.correct - number / 2) / np.sqrt(number)
    best = max(gains, key=lambda one: gains[one])
    tries = list(dict.fromkeys([best, (max(1, coins // 4), 0.5)]))
    return [number for number, _ in tries], [share for _, share in tries]
