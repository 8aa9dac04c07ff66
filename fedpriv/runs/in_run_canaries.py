"""Canaries within a run: extra clients, whose messages the server hears and does not add (`audit.in_run`).

A canary client is a twin of the real client that takes part most often: whenever that one is asked, its twins get the
same message, and answer it by the code that answers for real clients: budget, batches, clipping, noise with keys of
their own, state, ledger, in this order. Only their data are made up. Where a method can release in rows, only the first
twin goes this whole way: the others' releases are one computation by the method's own `releasing`, with one source of
noise (`CanaryClients.together`), so budget and keys are looked at in the first alone. Their messages are
scored and dropped, so the model, the cohorts, the real clients' messages and ledger are those of the same run without
canaries, bit for bit.

**The guarantee is unchanged**: no real example is looked at, and nothing that a real client or the server sends
depends on a canary. A canary client's messages are about its own coins alone, and cost what its ledger entries say.

**What the coins bound.** Given the requests that the server sends (which depend on no coin), a twin's messages of the
run are the method's mechanism on the twin's data, and twins are independent. So they are private for one coin as a real
client's are for one unit, and bounds from right guesses hold for it (`fedpriv.privacy.canaries`,
`fedpriv.privacy.one_run`), whatever the scores are.

- unit client: each twin is one coin: its update is `LENGTH` clip norms long, along one coordinate or its opposite
  (replace-one, or zero-out, at twice whose distance this is). Score: the sum over the rounds of what is sent along it.
- unit example or person: each unit of a twin is a coin: whether it is in the data at all (add-or-remove-one). Its
  gradient is `LENGTH` clip bounds long, along a coordinate of its own (Nasr et al., USENIX Security 2023), and the
  production code's own factor clips it. Score: the likelihood ratio (`fedpriv.privacy.sampled_score`).

Shapes: m coins, d parameters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.client.build import example_counts
from fedpriv.client.contract import Trained
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.client.memories import collect_entries
from fedpriv.client.memory import ContextStore
from fedpriv.client.one_path import Asked, Participation
from fedpriv.common.cohort_messages import cohort_of_message
from fedpriv.common.files import json_number
from fedpriv.common.messages import FIRST_NODE, TRAIN, Request, read_request
from fedpriv.engines.adapter import parameters_of
from fedpriv.engines.contexts import empty_context
from fedpriv.engines.grid import RUN_ID
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms import per_example
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.auditor import BROKEN, ROUNDING, UNDECIDED
from fedpriv.privacy.canaries import CanaryAudit, audit_canaries, coin_flips
from fedpriv.privacy.events import BLIND_TO_COHORT, Event
from fedpriv.privacy.sampled_score import log_ratio
from fedpriv.privacy.scaled_noise import family_of
from fedpriv.privacy.trade_offs import GAUSSIAN, Family
from fedpriv.runs.canary_plan import CURVES, LEAST_COINS, SHARE, affordable, planned_seconds
from fedpriv.runs.planning import schedule
from fedpriv.server.nodes import ClientGrid, Nodes
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.training.sequential import Clipping, LocalData

log = logging.getLogger("fedpriv")

#: Length of a canary in clip bounds, so that skipped clipping shows.
LENGTH = 10.0
#: Which part of the coins is guessed, and how many at least, fixed for all runs; and who is drawn less often in the
#: run can be seen to be in, hardly to be out: then all guesses are "in".
PART, LEAST_GUESSES, SELDOM = 8, LEAST_COINS * 5 // 6, 4.0
#: What the audited epsilon of such a run is of.
CANARIES = "canaries within the run"


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
        self.many, self.requests = affordable(self, participations)
        many, rng = self.many, np.random.default_rng([self.config.seed, 7])
        #: The coordinate of each coin, in what goes up, different within a client: [many, each].
        self.coordinates = rng.integers(0, self.size, (many, 1))
        if self.by_examples:
            self.coordinates = np.stack([rng.permutation(self.size)[: self.each] for _ in range(many)])
        self.coins = coin_flips(many * self.each, SeededNoise(self.config.seed, "canaries in the run")).numpy()
        self.scores = np.zeros(many * self.each)
        self.stores: list[ContextStore] = []  # as far as they have been needed
        self.state: Any = None  # of all of them together, where their releases are one computation
        self.first_answered = False

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
        signs = torch.from_numpy(np.where(self.coins[numbers], 1.0, -1.0)).float()
        length = LENGTH * float(getattr(self.config.strategy.options, "clip_norm", 1.0))
        updates = torch.zeros(len(clients), self.model.layout.num_parameters)
        if self.method.traits.canary_everywhere:
            updates[:] = LENGTH * signs.unsqueeze(1)
        else:
            along = torch.from_numpy(self.start + self.coordinates[numbers, 0])
            updates[torch.arange(len(clients)), along] = length * signs
        return self.method.as_update(updates, self.config.local.lr), torch.zeros(len(clients), dtype=torch.float64)

    # --- what is heard of them ---------------------------------------------------------------------------------

    def ask(self, message: Message, strategy: FederatedStrategy) -> None:
        """All of them answer a message to their twin, and their releases are scored."""
        request = read_request(message.content)
        received = parameters_of(self, message, request)
        together = self.together and self.many > 1 and strategy.decode is None
        for number in range(len(self.stores), 2 if together else self.many):
            self.stores.append(ContextStore(_context(self.first + number)))
        if together and self.first_answered:
            assert received is not None
            self._score(np.arange(1, self.many), self._release_together(request, torch.from_numpy(received.copy())))
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
            self._score(np.arange(1, self.many), self._release_together(request, torch.from_numpy(received.copy())))

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

    def _release_together(self, request: Request, theta: Tensor) -> NDArray[np.float32]:
        """[many - 1, d]."""
        clients = range(self.first + 1, self.first + self.many)
        method = self.half([Asked(clients[0], self.stores[1], request)])
        method.begin(request, (theta,))
        updates, losses = self.train(clients)
        noise = method.noise(request, method.purpose)
        release = method.releasing(theta, Trained(updates, None, {"train_loss": losses}), self.state, noise)
        self.state = release.state
        heard: NDArray[np.float32] = release.value.numpy()
        return heard

    def _score(self, numbers: NDArray[np.int64], releases: NDArray[Any]) -> None:
        """releases: [clients, d], of these canary clients, in whose noise they are measured."""
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


LOOKED_AT = 2000  # numbers of releases from which the size of their noise is taken


def _context(client: int) -> Context:
    return empty_context(RUN_ID, client + FIRST_NODE, client, client + 1)


class InRunAudit:
    """The canaries of one run, its time, and what is found; ``reason``: in words, why there is no audit."""

    def __init__(self, worker: Worker) -> None:
        config = worker.config
        self.config, self.seconds, self.requests, self.heard = config, 0.0, 0, 0
        self.reason = why_none(worker)
        if self.reason:
            return
        began = time.perf_counter()
        counts = schedule(config)
        sizes = example_counts(config) if worker.method.traits.needs_facts else np.ones(config.num_clients)
        self.twin = int(np.lexsort((sizes, -counts))[0])  # asked most often, of these the one with the fewest examples
        self.participations = int(counts[self.twin])
        self.canaries = CanaryClients(worker, self.twin, self.participations)
        self.seconds = time.perf_counter() - began

    def listening(self, grid: ClientGrid, strategy: FederatedStrategy) -> ClientGrid:
        """The grid, on which messages to the twin are heard."""
        return grid if self.reason else _Listening(grid, self, strategy)

    def hear(self, message: Message, strategy: FederatedStrategy) -> None:
        """A failure of the audit never ends the run."""
        if self.reason:
            return
        number, every = self.requests, max(1, self.participations)
        self.requests += 1
        if number * self.canaries.requests % every >= self.canaries.requests:  # evenly spread, the first one among them
            return
        began = time.perf_counter()
        try:
            self.canaries.ask(message, strategy)
            self.heard += 1
        except Exception as error:
            self._end(error)
        self.seconds += time.perf_counter() - began

    def found(self) -> tuple[CanaryAudit, CanaryAudit] | None:
        """The bounds, each with the stated confidence by itself, and with that confidence for all together, as a
        verdict on all of them needs (Bonferroni). None where there is no audit.
        """
        if self.reason or not self.heard:
            return None
        began, config, canaries = time.perf_counter(), self.config, self.canaries
        coins, family = len(canaries.coins), self._family()
        families = [] if family is None else [family]
        try:
            alone, together = (
                audit_canaries(
                    canaries.coins,
                    canaries.scores,
                    delta=config.privacy.delta,
                    confidence=1 - (1 - config.audit.confidence) / bounds,
                    guesses=[max(coins // PART, min(coins, LEAST_GUESSES))],
                    present=[1.0 if canaries.by_examples and canaries.draws(canaries.requests) < SELDOM else 0.5],
                    families=families,
                )
                for bounds in (1, 1 + len(families))
            )
        except Exception as error:
            self._end(error)
            return None
        self.seconds += time.perf_counter() - began
        return alone, together

    def _end(self, error: Exception) -> None:
        log.warning("the audit in the run ends: %s", error)
        self.reason = f"it ended with {type(error).__name__}: {error}"

    def figures(self, privacy: Mapping[str, Any], rounds_seconds: float) -> dict[str, Any]:
        """Entries of the summary's privacy: of the audit, and the audited epsilon, which holds for any mechanism."""
        both, verified = self.found(), float(privacy["verified_epsilon"])
        record: dict[str, Any] = {"seconds": self.seconds, "share_of_rounds": self.seconds / max(rounds_seconds, 1e-9)}
        if both is None:
            return {"in_run_audit": record | {"reason": self.reason or "nobody asked the canaries' twin"}}
        found, joint = both
        shown = max([joint.epsilon_lower, *(bound.epsilon_lower for bound in joint.sharper)])
        verdict = BROKEN if shown > verified * (1 + ROUNDING) else UNDECIDED
        if verdict == UNDECIDED and found.attainable >= verified:
            verdict = "consistent with the verified epsilon"
        audited = {
            "audited_epsilon": json_number(found.epsilon_lower),
            "audited_confidence": found.confidence,
            "audited_at_most": json_number(found.attainable),
        }
        record |= audited | {
            "verified_epsilon": privacy["verified_epsilon"],
            "canaries": found.canaries,
            "clients": self.canaries.many,
            "twin_of": self.twin,
            "requests": self.heard,
            "guesses": found.guesses,
            "correct": found.correct,
            "sharper": [bound.to_json() for bound in found.sharper],
            "verdict": verdict,
        }
        return audited | {"audited_on": CANARIES, "audit_verdict": verdict, "in_run_audit": record}

    def _family(self) -> Family | None:
        """Of the ledger; None as well where its bound would take longer than the run can afford."""
        family = family_of(self._events())
        costly = family is not None and family is not GAUSSIAN and self.config.audit.canaries is None
        return None if costly and SHARE * planned_seconds(self.canaries) < 2 * CURVES else family

    def _events(self) -> list[Event]:
        """The guarantee's, of the twin."""
        method = self.canaries.method_of(self.canaries.num_examples(self.twin))
        return method.planned_events(method.observed_rounds(self.participations))


class _Listening:
    """A grid that shows the audit every message to the twin, and changes none."""

    def __init__(self, grid: ClientGrid, audit: InRunAudit, strategy: FederatedStrategy) -> None:
        self._grid, self._audit, self._strategy = grid, audit, strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    @property
    def carries_cohorts(self) -> bool:
        return self._grid.carries_cohorts

    def nodes(self) -> Nodes:
        return self._grid.nodes()

    def client_of(self, node: int) -> int:
        return self._grid.client_of(node)

    def receive(self, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
        return self._grid.receive(self._watched(messages), timeout)

    def _watched(self, messages: Iterable[Message]) -> Iterator[Message]:
        for message in messages:
            clients = cohort_of_message(message)
            if clients is None:
                clients = [self._grid.client_of(message.metadata.dst_node_id)]
            if self._audit.twin in clients:
                self._audit.hear(message, self._strategy)
            yield message


def why_none(worker: Worker) -> str:
    """Why this run cannot have canary clients, in words; empty where it can."""
    method = worker.method
    if worker.config.dataset.name == "on_nodes":
        return "canary clients are simulated, and this run's clients are real"
    if method.threat.observer in BLIND_TO_COHORT:
        return f"the observer is {method.threat.observer}, who sees models and no client's messages"
    if method.threat.observer == "secure-sum" or worker.config.strategy.secure_sum != "assumed":
        return "whoever sees a secure sum alone sees no canary client's message"
    if method.traits.shares_secrets:
        return "clients share noise in groups, and a canary client has none"
    if method.traits.keeps_layers and not isinstance(method, ExampleLevelClient):
        return "each client keeps layers, and a canary client's releases would change with the round"
    return ""
