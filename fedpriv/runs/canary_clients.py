"""Canary clients: twins of a run's client, whose messages the server hears and does not add (`audit.in_run`).

Whenever the real client that takes part most often is asked, its twins get the same message, and answer it by the code
that answers for real clients: budget, batches, clipping, noise with keys of their own, state, ledger, in this order.
Only their data are made up. Where a method can release in rows, only the first twin goes this whole way, once: others'
releases are one computation by the method's own `releasing`, with one source of noise (`CanaryClients.together`).

- unit client: each twin is one coin: its update is `LENGTH` clip norms long, along one coordinate or its opposite
  (replace-one). Score: the sum over the rounds of what is sent along it.
  An update canary needs no training, as those of CANIFE need none (Maddock, Sablayrolles and Stock, "CANIFE: Crafting
  canaries for empirical privacy measurement in federated learning", ICLR 2023).
- unit example or person: each unit of a twin is a coin: whether it is in the data at all (add-or-remove-one). Its
  gradient is `LENGTH` clip bounds long, along a coordinate of its own (Nasr et al., USENIX Security 2023), and the
  production code's own factor clips it. Score: the likelihood ratio (`fedpriv.privacy.sampled_score`).

**Short releases.** Where the ledger has Gaussians alone and the method treats all coordinates alike
(`Traits.alike_at_any_dimension`), all but the first `wide` twins release `WIDTH` numbers instead of d: the method's
release code on a model of so many parameters. The noise of other coordinates would tell nothing of a canary. The first
ones release d numbers, at the first request; a fault that depends on d is seen in them alone.

Shapes: m coins, d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.client.contract import Trained
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.client.memories import collect_entries
from fedpriv.client.memory import ContextStore
from fedpriv.client.one_path import Asked, Participation
from fedpriv.common.messages import FIRST_NODE, TRAIN, Request, read_request
from fedpriv.engines.contexts import empty_context
from fedpriv.engines.grid import RUN_ID
from fedpriv.engines.worker import Worker, parameters_of
from fedpriv.mechanisms import per_example
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.canaries import coin_flips
from fedpriv.privacy.events import Event
from fedpriv.privacy.gaussian_dp import total_mu
from fedpriv.privacy.sampled_score import log_ratio
from fedpriv.privacy.scaled_noise import family_of
from fedpriv.privacy.trade_offs import GAUSSIAN
from fedpriv.runs.canary_plan import affordable
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.training.sequential import Clipping, LocalData

#: Length of a canary in clip bounds, so that skipped clipping shows.
LENGTH = 10.0
#: Numbers of a short release.
WIDTH = 1
#: Numbers of releases from which the size of their noise is taken.
LOOKED_AT = 2000


@dataclass(frozen=True, kw_only=True)
class CanaryBatch(LocalData):
    """A batch of canaries alone, by their coordinates (int64 [k])."""

    coordinates: Tensor

    def __len__(self) -> int:
        return len(self.coordinates)


class CanaryClients(Worker):
    """Twins of client ``twin``, whose numbers follow those of the real clients; data and model are the run's.

    Attributes: coins (bool [m]) and scores (float64 [m]), client by client.
    """

    def __init__(self, worker: Worker, twin: int, participations: int) -> None:
        super().__init__(worker.config)
        self.__dict__.update({"data": worker.data, "model": worker.model, "_initial": worker.initial_model})
        self.twin, self.first = twin, worker.config.num_clients
        up = self.method.layers(self.model.layout, 1).up
        self.start, self.size = up.start, up.stop - up.start
        self.by_examples = isinstance(self.method, ExampleLevelClient)
        self.each = min(self.num_examples(twin), self.size // 2) if self.by_examples else 1
        self.asked = participations
        plan = affordable(self, participations)
        self.many, self.requests, self.wide = plan.clients, plan.requests, plan.wide
        many, rng = self.many, np.random.default_rng([self.config.seed, 7])
        #: The coordinate of each coin, in what goes up, different within a client: [many, each].
        self.coordinates = rng.integers(0, self.size, (many, 1))
        if self.by_examples:
            self.coordinates = np.stack([rng.permutation(self.size)[: self.each] for _ in range(many)])
        self.coins = coin_flips(many * self.each, SeededNoise(self.config.seed, "canaries in the run")).numpy()
        self.scores = np.zeros(many * self.each)
        self.stores: list[ContextStore] = []  # as far as they have been needed
        #: Of all of them together, where their releases are one computation: of the wide ones, of the short ones.
        self.states: dict[bool, Any] = {}
        self.first_answered = False
        self.clip_norm = float(getattr(self.config.strategy.options, "clip_norm", 1.0))  # of the newest request

    def num_examples(self, client: int) -> int:
        return super().num_examples(self.twin if client >= self.first else client)

    @cached_property
    def participation(self) -> Participation:
        """As the run's, on canaries in the place of examples."""
        apart, alike = self.why_apart is not None, False
        return Participation(self.method, self.half, self.num_examples, self.train, self._clipped, apart, alike)

    # --- what they hold ----------------------------------------------------------------------------------------

    def _coins_of(self, client: int) -> NDArray[np.bool_]:
        place = (client - self.first) * self.each
        return self.coins[place : place + self.each]

    def local_data(self, client: int, chosen: np.ndarray | None = None) -> LocalData:
        """The drawn units that are canaries and in the data; all others of a canary client are empty."""
        drawn = np.arange(self.each) if chosen is None else chosen[chosen < self.each]
        there = drawn[self._coins_of(client)[drawn]]
        nothing = torch.zeros(0)
        along = torch.from_numpy(self.start + self.coordinates[client - self.first][there])
        return CanaryBatch(nothing, nothing, coordinates=along)

    def _clipped(self, requests: Sequence[Clipping]) -> list[ClippedSum]:
        """Sums of canary gradients, clipped by the production code's factor."""
        found = []
        for asked in requests:
            assert isinstance(asked.data, CanaryBatch)
            norms = torch.full((len(asked.data),), LENGTH * asked.bound, dtype=torch.float64)
            clipped = per_example.clip_factors(norms, asked.bound) * norms
            total = torch.zeros(len(asked.theta), dtype=torch.float64).index_add_(0, asked.data.coordinates, clipped)
            found.append(ClippedSum(total, norms, 0.0))
        return found

    def train(self, clients: Sequence[int], *others: Any) -> tuple[Tensor, Tensor]:
        """The updates of canary clients."""
        numbers = np.array(clients) - self.first
        updates = torch.zeros(len(clients), self.model.layout.num_parameters)
        if self.method.traits.canary_everywhere:
            updates[:] = LENGTH * torch.from_numpy(np.where(self.coins[numbers], 1.0, -1.0)).float().unsqueeze(1)
        else:
            along = torch.from_numpy(self.start + self.coordinates[numbers, 0])
            updates[torch.arange(len(clients)), along] = self._lengths(numbers)
        return self.method.as_update(updates, self.config.local.lr), torch.zeros(len(clients), dtype=torch.float64)

    # --- what is heard of them ---------------------------------------------------------------------------------

    def ask(self, message: Message, strategy: FederatedStrategy) -> None:
        """All of them answer a message to their twin, and their releases are scored."""
        request = read_request(message.content)
        together = self.together and self.many > 1 and strategy.decode is None
        if together and self.first_answered and self.short:
            self._hear_rows(request, torch.zeros(WIDTH), first=False)  # short releases start from no parameters
            return
        received = parameters_of(self, message, request)
        for number in range(len(self.stores), 2 if together else self.many):
            self.stores.append(ContextStore(_context(self.first + number)))
        if together and self.first_answered:
            assert received is not None
            self._hear_rows(request, torch.from_numpy(received.copy()), first=False)
            return
        asked = [
            Asked(self.first + number, store, request)
            for number, store in enumerate(self.stores[: 1 if together else None])
        ]
        found = self.participation.answer(asked, received)
        collect_entries(self.stores[: len(asked)])
        if request.exchange != TRAIN or not found.replies:
            return
        heard: list[Any] = [
            reply.release if strategy.decode is None else strategy.decode(client, reply.release)
            for client, reply in found.replies.items()
        ]
        self._score(np.array(list(found.replies)) - self.first, np.stack(heard))
        if together:
            self.first_answered = True
            assert received is not None
            self._hear_rows(request, torch.from_numpy(received.copy()), first=True)

    def draws(self, participations: int) -> float:
        """How often one canary example is drawn in the run, on average."""
        assert isinstance(self.method, ExampleLevelClient)
        rate = min(1.0, self.config.local.batch_size / self.num_examples(self.twin))
        return rate * participations * self.method.local_steps

    @property
    def together(self) -> bool:
        """Whether all canary clients after the first, which answers as any client does, release in one computation on
        rows, with one source of noise: without it, their generators would take longer than their noise.
        """
        traits = self.method.traits
        plain = traits.exchanges == (TRAIN,) and not traits.keeps_layers
        return not self.by_examples and plain and self.why_apart is None

    @cached_property
    def events(self) -> list[Event]:
        """Those of the twin in the run, fixed before it."""
        method = self.method_of(self.num_examples(self.twin))
        return method.planned_events(method.observed_rounds(self.asked))

    @cached_property
    def mu(self) -> float:
        """Of the requests that they hear, by the ledger; of Gaussians alone."""
        multipliers = [(event.gaussian_multiplier or 0.0, event.count) for event in self.events]
        return total_mu(multipliers) * math.sqrt(self.requests / max(1, self.asked))

    @cached_property
    def independent(self) -> bool:
        """Whether each coin has a transcript and a score of its own, whose noise is Gaussian: then bounds of
        `fedpriv.privacy.independent_coins` hold.
        """
        weighted = getattr(self.config.strategy.options, "clip_norm", None) is not None
        whole = self.method.traits.canary_everywhere
        return self.together and weighted and not whole and family_of(self.events) is GAUSSIAN

    @cached_property
    def short(self) -> bool:
        """Whether most of them release `WIDTH` numbers."""
        traits = self.method.traits
        return self.independent and traits.alike_at_any_dimension and traits.vectors_down == 1

    def _hear_rows(self, request: Request, theta: Tensor, first: bool) -> None:
        """Those after the first client: the wide ones, which hear the first request alone where others are short, and
        the short ones.
        """
        for begin, end, short in ((1, self.wide, False), (self.wide, self.many, True)):
            if begin < end and (short or first or not self.short):
                numbers = np.arange(begin, end)
                self._score(numbers, self._release_together(request, theta, numbers, short), short)

    def _release_together(
        self, request: Request, theta: Tensor, numbers: NDArray[np.int64], short: bool
    ) -> NDArray[np.float32]:
        """[clients, d], or [clients, `WIDTH`] of short ones."""
        method = self.half([Asked(self.first + int(numbers[0]), self.stores[1], request)])
        method.begin(request, (theta,))
        if short:
            updates = torch.zeros(len(numbers), WIDTH)
            updates[:, 0] = self._lengths(numbers)
            updates, losses = self.method.as_update(updates, self.config.local.lr), torch.zeros(len(numbers))
            theta = theta[:WIDTH]
        else:
            updates, losses = self.train([self.first + int(number) for number in numbers])
        noise = method.noise(request, method.purpose if not short else f"{method.purpose} of few numbers")
        release = method.releasing(theta, Trained(updates, None, {"train_loss": losses}), self.states.get(short), noise)
        self.states[short] = release.state
        heard: NDArray[np.float32] = release.value.numpy()
        self.clip_norm = float(getattr(method, "clip_norm", 1.0))
        return heard

    def _lengths(self, numbers: NDArray[np.int64]) -> Tensor:
        """Of canary updates along their coordinates, signed [clients]."""
        signs = torch.from_numpy(np.where(self.coins[numbers], 1.0, -1.0)).float()
        return LENGTH * float(getattr(self.config.strategy.options, "clip_norm", 1.0)) * signs

    def _score(self, numbers: NDArray[np.int64], releases: NDArray[Any], short: bool = False) -> None:
        """releases: [clients, d], of these canary clients, in whose noise they are measured; independent ones in the
        round's clip norm, which is public: so no score depends on another's release.
        """
        if self.independent:
            along = releases[:, :1] if short else np.take_along_axis(releases, self.coordinates[numbers], 1)
            self.scores[numbers] += along[:, 0].astype(np.float64) / self.clip_norm
            return
        some = np.abs(releases.ravel()[:: max(1, releases.size // LOOKED_AT)]).astype(np.float64)
        noise = max(float(np.median(some)) / 0.6745, 1e-9 * float(some.max()), 1e-300)
        if not isinstance(self.method, ExampleLevelClient):
            everywhere = self.method.traits.canary_everywhere
            seen = releases if everywhere else np.take_along_axis(releases, self.coordinates[numbers], 1)
            self.scores[numbers] += seen.sum(1, dtype=np.float64) / noise
            return
        seen = -np.take_along_axis(releases, self.coordinates[numbers], 1).astype(np.float64) / noise
        sigma, steps = max(self.method.noise_multiplier, 1e-3), self.method.local_steps
        rate = min(1.0, self.config.local.batch_size / self.num_examples(self.twin))
        self.scores.reshape(self.many, self.each)[numbers] += log_ratio(seen, sigma, rate, steps)


def _context(client: int) -> Context:
    return empty_context(RUN_ID, client + FIRST_NODE, client, client + 1)
