"""An audit within a run, by canary clients (`audit.in_run`): twins of a run's client, whose messages the server hears
and does not add.

Their messages are scored and dropped, so the model, the cohorts, the real clients' messages and ledger are those of the
same run without canaries, bit for bit.

**The guarantee is unchanged**: no real example is looked at, and nothing that a real client or the server sends
depends on a canary. A canary client's messages are about its own coins alone, and cost what its ledger entries say.

**What the coins bound.** Given the requests that the server sends (which depend on no coin), a twin's messages of the
run are the method's mechanism on the twin's data, and twins are independent. So they are private for one coin as a real
client's are for one unit, and bounds from right guesses hold for it, whatever the scores are: those of independent
coins (`fedpriv.privacy.independent_coins`) where each client is one coin with Gaussian noise of its own, else those of
coins in one release (`fedpriv.privacy.canaries`).

**Who attacks.** The server, which sees every message of a client and sends what an honest one sends, and knows all of a
client's data but one unit (unit client: chooses between two of its data sets). It is the ledger's own observer; where
that sees less (sums, models), there are no canary clients.

**What a twin does.** Whenever the real client that takes part most often is asked, its twins get the same message, and
answer it by the code that answers for real clients: budget, batches, clipping, noise with keys of their own, state,
ledger, in this order. Only their data are made up. Where a method can release in rows, only the first twin goes this
whole way, once: others' releases are one computation by the method's own `releasing`, with one source of noise
(`CanaryClients.together`).

- unit client: each twin is one coin: its update is `LENGTH` clip norms long, along one coordinate or its opposite
  (replace-one). Score: the sum over the rounds of what is sent along it.
  An update canary needs no training, as those of CANIFE need none (Maddock, Sablayrolles and Stock, "CANIFE: Crafting
  canaries for empirical privacy measurement in federated learning", ICLR 2023).
- unit example or person: each unit of a twin is a coin: whether it is in the data at all (add-or-remove-one). Its
  gradient is `LENGTH` clip bounds long, along a coordinate of its own (Nasr et al., USENIX Security 2023), and the
  production code's own factor clips it. Score: the likelihood ratio (`fedpriv.privacy.auditor`).

**Short releases.** Where the ledger has Gaussians alone and the method treats all coordinates alike
(`Traits.alike_at_any_dimension`), all but the first `wide` twins release `WIDTH` numbers instead of d: the method's
release code on a model of so many parameters. The noise of other coordinates would tell nothing of a canary. The first
ones release d numbers, at the first request; a fault that depends on d is seen in them alone.

**How many a run can afford** follows from its options and data alone, by a cost model in seconds of CPU time. A
client's place in the run: P participations, n canary clients of c coins each, d parameters. The run's rounds take at
least rounds x clients x (a participation, its batches and gradients, d numbers of noise). Canaries take a start, and
for each request that they hear either one computation on rows (n d numbers) or one whole participation for each client.
Where few coins are affordable for all requests, the least number of coins hears a part of the requests. Where releases
may be short, `LEAST_COINS` clients at most release d numbers, once, and as many as can be afforded release one number
for each request.

**No default**, although they cost little. Of an exactly Gaussian mechanism a bound with 95 %
confidence lies above the truth once in twenty runs, so sound runs would be reported as refuted, without anybody having
asked; a run that was interrupted and resumed would no longer have the summary of one that was not, since its canaries
start anew; and every run would take longer. So a report says what one option more would give.

Shapes: m coins, d parameters.
"""

from __future__ import annotations

import logging
import math
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
from fedpriv.engines.grid import RUN_ID, empty_context
from fedpriv.engines.worker import Worker, parameters_of
from fedpriv.mechanisms import per_example
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.auditor import BROKEN, ROUNDING, UNDECIDED, log_ratio
from fedpriv.privacy.canaries import CanaryAudit, audit_canaries, coin_flips, one_run_epsilon
from fedpriv.privacy.events import BLIND_TO_COHORT, Event
from fedpriv.privacy.gaussian_dp import total_mu
from fedpriv.privacy.independent_coins import audit_independent, expected_independent, planned_guesses
from fedpriv.privacy.one_shot import ASSUMES, SOURCE, estimated_epsilon
from fedpriv.privacy.scaled_noise import family_of
from fedpriv.privacy.trade_offs import GAUSSIAN, Family
from fedpriv.runs.planning import schedule
from fedpriv.server.nodes import ClientGrid, Nodes
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.training.sequential import Clipping, LocalData

log = logging.getLogger("fedpriv")

#: Length of a canary in clip bounds, so that skipped clipping shows.
LENGTH = 10.0
#: Numbers of a short release.
WIDTH = 1
#: Numbers of releases from which the size of their noise is taken.
LOOKED_AT = 2000
#: Share of the rounds' CPU time that canaries may take, as planned.
SHARE = 0.04
#: Seconds of a participation, a batch, an example's gradient for each parameter, and a number of a release: rather
#: too few.
PARTICIPATION, BATCH, GRADIENT, NUMBER = 5.5e-4, 2e-5, 1.2e-9, 1.5e-8
#: Of canaries, rather too many: start and bounds, what the first computation on rows takes longer than later ones, a
#: computation on rows, a client that goes the whole way, each of its steps.
FIXED, FIRST, ROWS, WHOLE, STEP = 0.01, 0.005, 4e-4, 1e-3, 2e-4
#: Of a sharper bound whose curves are composed numerically.
CURVES = 0.5
#: Coins beyond which a bound grows slowly; and below which too little is shown: then fewer requests are heard instead.
MOST_COINS, LEAST_COINS = 4000, 24
#: A short release, of one number; how many there are at most, and below which number fewer requests are heard instead.
SHORT, MOST_SHORT, LEAST_SHORT = 2.5e-8, 100_000, 1000
#: Which part of the coins is guessed, and how many at least, fixed for all runs; and who is drawn less often in the
#: run can be seen to be in, hardly to be out: then all guesses are "in".
PART, LEAST_GUESSES, SELDOM = 8, LEAST_COINS * 5 // 6, 4.0
#: What the audited epsilon of such a run is of.
CANARIES = "canaries within the run"
#: As in_run=true takes at most, beyond which nothing is said to be cheap.
CHEAP = 0.05


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
        foreign = self.trainer.foreign
        return Participation(
            self.method, self.half, self.num_examples, self.train, self._clipped, apart, alike, foreign
        )

    # --- what they hold ----------------------------------------------------------------------------------------

    def local_data(self, client: int, chosen: np.ndarray | None = None) -> LocalData:
        """The drawn units that are canaries and in the data; all others of a canary client are empty."""
        drawn = np.arange(self.each) if chosen is None else chosen[chosen < self.each]
        there = drawn[self.coins[(client - self.first) * self.each :][drawn]]
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
            Asked((self.first + number,), store, request)
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
    def noisy_steps(self) -> int | None:
        """Steps of a round with noise in each; None where there is none in them."""
        return self.method.local_steps if isinstance(self.method, ExampleLevelClient) else None

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
        method = self.half([Asked((self.first + int(numbers[0]),), self.stores[1], request)])
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


# --- how many a run can afford ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """So many canary clients hear so many of their twin's requests; the first ``wide`` of them release d numbers."""

    clients: int
    requests: int
    wide: int


def affordable(canaries: CanaryClients, participations: int) -> Plan:
    """How many canary clients answer how many of their twin's requests, so that they take at most about `SHARE` of the
    run's CPU time: numbers of the options and the data alone, so that every machine has the same. At least one client
    and one request. All requests, and as many clients as it takes, where `audit.canaries` asks for so many coins.
    """
    coins, asked, d = canaries.each, canaries.config.audit.canaries, canaries.model.layout.num_parameters
    if asked is not None:
        clients = -(-asked // coins)
        return Plan(clients, participations, min(clients, LEAST_COINS) if canaries.short else clients)
    seconds = SHARE * planned_seconds(canaries) - FIXED
    if canaries.together:
        seconds -= FIRST
        request, client = ROWS, d * NUMBER
    else:
        steps = canaries.noisy_steps or 1
        request, client = 0.0, WHOLE + steps * STEP + d * NUMBER
    if canaries.short:
        wide = min(LEAST_COINS, 1 + int(max(0.0, seconds) / 4 / client))
        left = seconds - wide * client
        heard = min(participations, int(left / (ROWS + LEAST_SHORT * SHORT)))
        if heard >= 1:
            return Plan(min(wide + int((left / heard - ROWS) / SHORT), MOST_SHORT), heard, wide)
    least, most = (-(-number // coins) for number in (LEAST_COINS, MOST_COINS))
    many = int((seconds / max(1, participations) - request) / client)
    if many >= least:
        many = min(many, most)
        return Plan(many, participations, many)
    return Plan(least, max(1, min(participations, int(seconds / (request + least * client)))), least)


def planned_seconds(canaries: CanaryClients) -> float:
    """The least CPU time that the run's rounds are expected to take."""
    config = canaries.config
    d, size, batch = canaries.model.layout.num_parameters, canaries.num_examples(canaries.twin), config.local.batch_size
    steps = canaries.noisy_steps or config.local.steps or -(-size // batch) * config.local.epochs
    one = PARTICIPATION + steps * (BATCH + batch * d * GRADIENT) + d * NUMBER
    return config.num_rounds * config.clients_asked * one


def planned_share(canaries: CanaryClients, plan: Plan) -> float:
    """Of the rounds' CPU time, which the canaries of a plan take about."""
    d = canaries.model.layout.num_parameters
    wide, short = plan.wide * d * NUMBER, plan.clients - plan.wide
    seconds = FIXED + (wide if short else plan.requests * wide)
    if canaries.together:
        seconds += FIRST + plan.requests * (ROWS + short * SHORT)
    else:
        steps = canaries.noisy_steps or 1
        seconds += plan.requests * plan.wide * (WHOLE + steps * STEP)
    return seconds / max(planned_seconds(canaries), 1e-9)


# --- the audit -------------------------------------------------------------------------------------------


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
        began = time.perf_counter()
        try:
            bounds = self._of_independent() if self.canaries.independent else self._of_joint()
        except Exception as error:
            self._end(error)
            return None
        self.seconds += time.perf_counter() - began
        return bounds

    def _of_independent(self) -> tuple[CanaryAudit, CanaryAudit]:
        config, canaries = self.config, self.canaries
        coins, delta, error = len(canaries.coins), config.privacy.delta, 1 - config.audit.confidence
        guesses = planned_guesses(coins, canaries.mu, delta, error)
        return tuple(  # type: ignore[return-value]
            audit_independent(canaries.coins, canaries.scores, delta=delta, confidence=1 - part, guesses=guesses)
            for part in (error, error / 2)
        )

    def _of_joint(self) -> tuple[CanaryAudit, CanaryAudit]:
        config, canaries = self.config, self.canaries
        coins, family = len(canaries.coins), self._family()
        families = [] if family is None else [family]
        return tuple(  # type: ignore[return-value]
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

    def _estimate(self) -> dict[str, Any]:
        """The one-shot estimate, where canaries are clients: no bound, and named as what it is."""
        canaries = self.canaries
        if canaries.by_examples:
            return {}
        outside, inside = (canaries.scores[canaries.coins == side] for side in (False, True))
        value = estimated_epsilon(outside, inside, self.config.privacy.delta)
        if value is None:
            return {}
        return {"estimated": {"epsilon": json_number(value), "source": SOURCE, "assumes": ASSUMES}}

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
            "of_whole_releases": self.canaries.wide,
            "twin_of": self.twin,
            "requests": self.heard,
            "guesses": found.guesses,
            "correct": found.correct,
            "sharper": [bound.to_json() for bound in found.sharper],
            **self._estimate(),
            "verdict": verdict,
        }
        return audited | {"audited_on": CANARIES, "audit_verdict": verdict, "in_run_audit": record}

    def _family(self) -> Family | None:
        """Of the ledger; None as well where its bound would take longer than the run can afford."""
        family = family_of(self.canaries.events)
        costly = family is not None and family is not GAUSSIAN and self.config.audit.canaries is None
        return None if costly and SHARE * planned_seconds(self.canaries) < 2 * CURVES else family


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
        return "this run's clients are real; each machine audits itself where its policy has in_run_audit"
    if method.threat.observer in BLIND_TO_COHORT:
        return f"the observer is {method.threat.observer}, who sees models and no client's messages"
    if method.threat.observer == "secure-sum" or worker.config.strategy.secure_sum != "assumed":
        return "whoever sees a secure sum alone sees no canary client's message"
    if method.threat.unit == "client" and method.threat.adjacency != "replace-one":
        return f"a canary's update is replaced by its opposite, and the guarantee is for {method.threat.adjacency}"
    if method.traits.shares_secrets:
        return "clients share noise in groups, and a canary client has none"
    if method.traits.keeps_layers and not isinstance(method, ExampleLevelClient):
        return "each client keeps layers, and a canary client's releases would change with the round"
    return ""


# --- what it would show of a run without -----------------------------------------------------------------


def audit_offer(worker: Worker, verified: float) -> dict[str, Any]:
    """{"in_run_offer": ...} for a summary's privacy: of an audit within this run its coins, requests and planned share
    of the rounds' CPU time, and what it would show of a mechanism at the ledger's noise, or at most; or the reason why
    there can be none. Empty where there is no finite epsilon to be held against. Never fails.
    """
    if not math.isfinite(verified) or verified <= 0:
        return {}
    try:
        return {"in_run_offer": _offer(worker)}
    except Exception as error:
        log.debug("what an audit within the run would show is not known: %s", error)
        return {}


def _offer(worker: Worker) -> dict[str, Any]:
    audit = InRunAudit(worker)
    if audit.reason:
        return {"reason": audit.reason}
    canaries, config = audit.canaries, worker.config
    plan, coins = affordable(canaries, audit.participations), len(canaries.coins)
    share, confidence = planned_share(canaries, plan), config.audit.confidence
    found: dict[str, Any] = {"coins": coins, "requests": plan.requests, "share": share, "cheap": share <= CHEAP}
    if canaries.independent:
        shown, assuming = expected_independent(coins, canaries.mu, config.privacy.delta, confidence)
        return found | {"would_show": json_number(shown), "would_show_if_gaussian": json_number(assuming)}
    guesses = max(coins // PART, min(coins, LEAST_GUESSES))
    most = one_run_epsilon(coins, guesses, guesses, config.privacy.delta, 1 - confidence)
    return found | {"at_most": json_number(most)}
