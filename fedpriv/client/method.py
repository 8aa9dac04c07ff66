"""What a method says of itself, and what one participation asks of it (`fedpriv.client.one_path` has the order).

An algorithm says how clients train: `Method.local` (a proximal term, a drift), `Method.layers` (what travels),
`Method.prepare` (what the server tells). A mechanism says what leaves: `Method.release`, `Method.charges`,
`Method.statistics`. Everything marked final follows from these: no method says it twice. Without a ``site`` a method
can be planned and audited, not trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.contract import (
    LATER,
    BudgetSpent,
    Charge,
    Figure,
    LocalRule,
    Neighbours,
    PublicFacts,
    Release,
    RunFacts,
    Site,
    Statistics,
    Trained,
)
from fedpriv.client.memory import ClientMemory, Waiting, WithNorms, tensors_to_state
from fedpriv.common.messages import KEYS, STATISTICS, TRAIN, Outgoing, Request
from fedpriv.common.seeds import generators
from fedpriv.config.options import MethodOptions
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.noise import NoiseSource, SeededNoise, l2_norm
from fedpriv.privacy.claimed import Claim
from fedpriv.privacy.events import CLIENT_TO_SERVER, NO_NOISE, Account, Entry, Event, NoBound, Threat
from fedpriv.training.flat_model import NOTHING, Layers, Layout
from fedpriv.training.sequential import Clipping

#: Of a release without noise.
SENT_AS_IT_IS = "updates are sent without noise"
NOT_CHARGED = "the method charges nothing for what it sends"


@dataclass(frozen=True)
class Traits:
    """What holds for a method whatever its state and data are; a class's, or an object's where options decide.

    State: a frozen dataclass of what is kept between participations. needs_facts: the guarantee depends on
    `PublicFacts`. keeps_layers: some layers of the model stay with the client; then `Method.layers` says which travel.
    canary_everywhere: a canary must be long in every coordinate, since each has noise of its own; else it is long in
    one. clips_examples: training asks for sums of clipped per-example gradients instead of whole updates.
    shares_secrets: other clients know a part of a release's randomness, so that they could help the server.
    whole_batches: trained on all examples in each step, by `FullBatchTrainer` where it can. exchanges: what a round
    asks of a client, in order. vectors_down: how many vectors of the parameters' size come down, theta first.
    releases_gradient: a release is about the sum of the gradients of the local steps, not about the update.
    alike_at_any_dimension: a release of few coordinates is the same mechanism as one of many, so that an audit of it
    counts. costliest: the rounds that cost most, which a plan counts on; any: all cost alike. bound_to_rounds:
    why a run cannot be extended: what of its releases or noise was fixed by num_rounds. why_no_sum: why there is no
    account against whoever sees only a round's sum, where a reader may expect one. own_requests: a round tells each
    client something of its own, and no state is kept; clients that are rows are then prepared one by one
    (`Method._each`). own_steps: local steps are no SGD's, so that a function which trains in another way is no
    training of the method's. on_device: a release in rows is computed where the update is, of nothing from elsewhere.
    """

    State: type[Any] | None = None
    needs_facts: bool = False
    keeps_layers: bool = False
    canary_everywhere: bool = False
    clips_examples: bool = False
    shares_secrets: bool = False
    whole_batches: bool = False
    exchanges: tuple[str, ...] = (TRAIN,)
    vectors_down: int = 1
    releases_gradient: bool = False
    alike_at_any_dimension: bool = True
    costliest: Literal["any", "first", "last"] = "any"
    bound_to_rounds: str | None = None
    why_no_sum: str = ""
    own_requests: bool = False
    own_steps: bool = False
    on_device: bool = False
    #: Whether a round asks twice: for statistics of an update, then for its release.
    measures_first: bool = field(init=False)
    #: The exchange that brings the parameters.
    trains_in: str = field(init=False)

    def __post_init__(self) -> None:
        first = STATISTICS in self.exchanges
        object.__setattr__(self, "measures_first", first)
        object.__setattr__(self, "trains_in", STATISTICS if first else TRAIN)

    @property
    def needs_identity(self) -> bool:
        """Whether a real machine takes part only with identity keys: a server in the middle would know its secrets."""
        return self.shares_secrets or KEYS in self.exchanges


class Method:
    """Base of what methods say; on its own it is a release of the update as it is (no privacy).

    Tensors may have any number of leading trial dimensions. ``options`` is the frozen schema of the method's options,
    whose class a subclass names by its annotation; `fedpriv.config.halves` makes it from the YAML file's values.
    """

    #: The method's own options: of every method that has any.
    options: MethodOptions
    #: What holds whatever its data are: of every method that is not as `Traits` says by default.
    traits: Traits = Traits()
    #: Who must not learn what: of every method whose guarantee is not one client's, against the server.
    threat: Threat = CLIENT_TO_SERVER
    #: Whether the releases of several clients are one computation: then `release` and all that it calls treat the
    #: leading dimension as clients, each with its own noise, and give each the bits that it would have alone. A class
    #: says so for itself, not for those derived from it; tests/contract holds it to that.
    in_rows: ClassVar[bool] = False
    #: Where each client was told something of its own, of several clients at once: each one's method.
    _each: tuple[Any, ...] = ()

    def __init__(self, options: Any, run: RunFacts) -> None:
        self.options, self.run, self.variant, self.site = options, run, run.variant, run.site
        if run.unit == "person":
            self.threat = replace(self.threat, unit="person")
        #: Of this participation, or in a plan.
        self.round = 1
        #: Whether this exchange is for statistics of an update whose release follows.
        self.measuring = False
        #: What was told in the round's first exchange, where there are two.
        self.reported: Mapping[str, Tensor] = MappingProxyType({})
        #: Of the audited updates: `Neighbours.axes`.
        self.audit_axes: int | None = None
        #: (layout, round, layers) of the newest round, which all copies of a method share.
        self._travels: list[tuple[Layout, int, Layers]] = []

    @property
    @final
    def repaired(self) -> bool:
        return self.variant == "repaired"

    @property
    @final
    def facts(self) -> PublicFacts:
        """What is known of the client and its run before the run; of methods with the trait ``needs_facts``."""
        assert self.run.facts is not None, "Traits.needs_facts says whether a method needs them"
        return self.run.facts

    # --- what an algorithm says: how clients train -------------------------------------------------------

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """Takes what the server tells of this participation. down: the vectors that came, theta first; none in an
        exchange without. Raises where it is not safe, or what no honest server sends: nothing has happened yet.
        """

    def local(self, state: Any) -> LocalRule:
        """What is added to local training, where it is more than SGD."""
        return LocalRule()

    def layers(self, layout: Layout, server_round: int) -> Layers:
        """What travels in a round, where layers stay with the client. Its own rule, which no message can change."""
        whole = slice(0, layout.num_parameters)
        return Layers(whole, whole, NOTHING, whole)

    # --- what a mechanism says: what leaves, and what it costs --------------------------------------------

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """All that leaves in a participation: the vector [..., d], from the update [..., d] and the state, and the
        numbers [...] beside it. Of every method with noise.
        """
        return Release(update, state)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """What the next release costs, of every method with noise; depends on public values and on the client's own
        noisy history only. Charges under further threats than the method's own may be among them.

        state: None before the first participation, `LATER` in a plan. Where a trusted server releases, what a round of
        its costs: the server books it, for every client.
        """
        return (Charge(NoBound(threat=self.threat, reason=SENT_AS_IT_IS), exact=True),)

    @property
    def statistics(self) -> Statistics:
        """What leaves beside every release, where numbers do."""
        return Statistics()

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        """Bytes of a release of so many coordinates on the wire, where these are no float32."""
        return 4 * size

    @classmethod
    def chosen_for(
        cls,
        target: float,
        delta: float,
        participations: int,
        make: Callable[..., Method],
        threat: Threat | None = None,
    ) -> dict[str, float]:
        """The options that meet `privacy.target_epsilon` over so many participations, where these are others than
        ``noise_multiplier``; ``make`` is a method with changed options, ``threat`` one of its `accounts` (None: its
        own). Raises `OptionError` where there are none.
        """
        from fedpriv.privacy.calibration import calibrate  # loads the accountants

        def events(noise_multiplier: float) -> list[Event]:
            return make(noise_multiplier=noise_multiplier).planned_events(participations, threat)

        return {"noise_multiplier": calibrate(events, target, delta).noise_multiplier}

    # --- what a paper claims, and what the auditor tries ----------------------------------------------------

    def claim(self, participations: int, delta: float) -> Claim | None:
        """What the paper says of a client that takes part this often; None where it claims nothing."""
        return None

    def remarks(self) -> tuple[str, ...]:
        """What a reader must know to hold this method's claim against its guarantee, in sentences for the report."""
        return ()

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """What the auditor tries: pairs of neighbours under the method's adjacency that it separates worst, where
        opposite updates are not all.
        """
        return [Neighbours("opposite updates", (1.0,) * participations, (-1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The release code on trials ``shape`` = [trials, d] of one side of a pair of neighbours: here an update of
        ``length`` clip norms. Of a method whose observer sees something else than `release` gives.
        """
        update = on_all_axes(length * getattr(self, "clip_norm", 1.0), shape, self.audit_axes)
        return self.release(update, state, noise)

    # --- what a family may change ----------------------------------------------------------------------------

    def further(self, request: Request) -> Outgoing:
        """An exchange in which nobody trains or releases, such as keys."""
        raise ValueError(f"{type(self).__name__} has no exchange {request.exchange}")

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        """The release that comes of a training from ``theta`` [d], with the figures of both; of one client, or of
        several at once.
        """
        return self.released(trained, self.release(trained.sent, state, noise))

    def steps(self, theta: Tensor, state: Any, request: Request) -> Generator[Clipping, ClippedSum, Release]:
        """Local training from ``theta`` [d] with noise in every step, and the release that comes of it: asks for sums
        of clipped gradients and is sent them. Of methods with the trait ``clips_examples``.
        """
        raise NotImplementedError

    # --- parts of a participation --------------------------------------------------------------------------

    @final
    def figures(self, clipped: Tensor, noise: Tensor, **others: Figure) -> dict[str, Figure]:
        """Diagnostics of a release [..., d] at a site; empty for an auditor's trials, where nobody reads them."""
        if self.site is None and clipped.ndim > 1:
            return {}
        return {"clipped_norm": l2_norm(clipped), "noise_norm": l2_norm(noise), **others}

    @property
    @final
    def books_itself(self) -> bool:
        """Whether the client's own ledger holds its releases; not where a trusted server books the sum for all."""
        return self.threat.observer != "trusted-server"

    @final
    def all_charges(self, state: Any = None) -> tuple[Charge, ...]:
        """What a participation costs: its release, and the statistics beside it."""
        return (*self._release_charges(state), *self.statistics.charges)

    def _release_charges(self, state: Any) -> tuple[Charge, ...]:
        """What the release costs: without a bound, where the method forgot it."""
        found = self.charges(state)
        paid = self.round > 1 and getattr(self.options, "secret_cohorts", False)  # with an earlier round
        if paid or any(map(self._is_own, found)):
            return found
        return (*found, Charge(NoBound(threat=self.threat, reason=NOT_CHARGED), exact=True))

    @final
    def keeps_answer(self, charges: Sequence[Charge]) -> bool:
        """Whether the last reply is kept for a repeated request: wherever a noise key must not meet a second update.
        charges: of that reply.
        """
        if self.traits.measures_first or not self.books_itself:
            return True
        return any(charge.event.why_unbounded() not in (NO_NOISE, SENT_AS_IT_IS) for charge in charges)

    @final
    def begin(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """A new exchange, which is prepared for. down: as of `prepare`."""
        self.round, self.measuring, self.reported = max(1, request.round), request.exchange == STATISTICS, {}
        if self.site is not None:
            self.site.trainer.round = self.round
        self.prepare(request, down)

    @property
    @final
    def purpose(self) -> str:
        """Of this exchange's noise key."""
        return STATISTICS if self.measuring else "release"

    @final
    def recall(self, waiting: Waiting) -> Trained:
        """What was trained in the round's first exchange; takes what was reported there."""
        self.reported = dict(zip(self.statistics.names, waiting.tensors["statistics"], strict=True))
        return Trained(waiting.tensors["update"], None, waiting.figures)

    @final
    def due(self, state: Any) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
        """(what is booked with this exchange, what will follow in the same round and must fit into the budget too:
        statistics whose release could not follow would be spent for nothing).
        """
        own = state.method if isinstance(state, WithNorms) else state
        if not self.books_itself:
            return (), ()
        if self.measuring:
            return self.statistics.charges, self._release_charges(own)
        return (self._release_charges(own) if self.traits.measures_first else self.all_charges(own)), ()

    @final
    def released(self, trained: Trained, release: Release) -> Release:
        """A release with what is kept and told of the training that led to it."""
        return replace(release, local=trained.local, figures={**trained.figures, **release.figures})

    @final
    def load_state(self, tensors: dict[str, Tensor] | None) -> Any:
        """The state of named tensors (`states.state_to_tensors`), or None before the first participation."""
        return tensors_to_state(self.traits.State, tensors)

    @final
    def noise(self, request: Request, purpose: str, client: int | None = None) -> NoiseSource:
        """The one source of noise of this participation for a purpose. client: of whom, where several take part."""
        site = self._site()
        who = site.client if client is None else client
        if site.rng == "seeded":
            return SeededNoise(site.seed, who, request.round, request.attempt, purpose)
        from fedpriv.mechanisms.secure_noise import SecureNoise  # cryptography: only where it is needed

        return SecureNoise()

    @property
    @final
    def why_single(self) -> str | None:
        """Why clients of this method are computed one row after the other, in words; None where they are rows."""
        kind = type(self)
        if vars(kind).get("in_rows") is not True:
            return f"{kind.__name__} is not written for rows (in_rows)"
        if self.traits.clips_examples:
            return f"{kind.__name__} has noise in every step"
        if self.traits.exchanges != (TRAIN,) and not self.traits.own_requests:
            return f"{kind.__name__} has several exchanges in a round"
        return f"{kind.__name__} keeps layers of its own" if self.traits.keeps_layers else None

    @final
    def travelling(self, request: Request) -> Layers | None:
        """Which layers travel in this round; None where all do."""
        if not self.traits.keeps_layers:
            return None
        layout = self._site().layout
        assert layout is not None, "a client that keeps layers needs the model's layout"
        if not self._travels or self._travels[0][0] is not layout or self._travels[0][1] != request.round:
            self._travels[:] = [(layout, request.round, self.layers(layout, request.round))]
        return self._travels[0][2]

    @final
    def start_from(self, theta: Tensor, memory: ClientMemory, request: Request) -> Tensor:
        """The whole model [d] that a participation starts from: what came down, the client's own layers, and theta^0
        where it has trained none yet.
        """
        layers = self.travelling(request)
        if layers is None:
            return theta
        initial = self._site().initial
        assert initial is not None, "a client that keeps layers needs the initial model"
        start = initial.clone()
        if memory.kept is not None:
            start[layers.kept] = memory.kept
        if theta.shape != start[layers.down].shape:
            raise ValueError(f"{theta.numel()} parameters came down, expected {start[layers.down].numel()}")
        start[layers.down] = theta
        return start

    @property
    @final
    def tests_models(self) -> bool:
        """Whether anybody asks for a client's own model after training, other than the client."""
        return self._site().test is not None

    @final
    def tested(self, local: Tensor | None, client: int) -> dict[str, float]:
        """Figures of a client's own model [d] on its own test examples, in simulation."""
        site = self._site()
        return site.test(client, local) if site.test is not None and local is not None else {}

    @final
    def entries(self, account: Account, request: Request, charges: Sequence[Charge], client: int) -> list[Entry]:
        """The ledger's lines for these charges, after those of earlier releases."""
        return [
            Entry(
                request.round, client, sequence, request.attempt, charge.event, charge.realised, bool(charge.adaptive)
            )
            for sequence, charge in enumerate(charges, account.next_sequence)
        ]

    @final
    def check_budget(self, memory: ClientMemory, charges: Sequence[Charge], request: Request) -> None:
        """Raises `BudgetSpent` before anything is computed, or what the node's policy raises."""
        site = self._site()
        if site.guard is not None:
            site.guard(charges)
        again = memory.account.last == (request.round, request.attempt)  # a further exchange of the same participation
        if site.participations is not None and not again and memory.account.participations >= site.participations:
            words = f"client {{client}} has taken part {memory.account.participations} times, and may no more"
            raise BudgetSpent(words)
        if site.max_epsilon is None:
            return
        from fedpriv.privacy.composition import Budget, affordable  # the accountants: only where a budget is kept

        own = [charge for charge in charges if charge.event.threat == self.threat]
        fixed = tuple(self.fixed_events())
        alike = self.facts.num_rounds if fixed and self.traits.costliest == "any" else 1
        plan = affordable(fixed, alike, site.max_epsilon, site.delta)
        if plan:
            budget = Budget(site.max_epsilon, site.delta, plan=plan)
            bounds = [entry.event for entry in memory.account.entries() if entry.event.threat == self.threat]
            admitted = budget.admits(bounds, [charge.event for charge in own])
        else:
            spent = memory.account.spent(self.threat)
            further = [charge.realised or charge.event for charge in own]
            admitted = Budget(site.max_epsilon, site.delta).admits(spent, further)
        if not admitted:
            raise BudgetSpent(f"client {{client}}: the next release would exceed epsilon {site.max_epsilon}")

    @final
    def batches(self, request: Request) -> np.random.Generator:
        """What draws the batches of the client of this site."""
        return self.batches_of(request, [self._site().client])[0]

    @final
    def batches_of(self, request: Request, clients: Sequence[int]) -> list[np.random.Generator]:
        """What draws each client's batches: repeatable in simulation, in secret where noise comes from the operating
        system.
        """
        site = self._site()
        if site.rng == "secure":
            from fedpriv.mechanisms.secure_noise import secure_generator  # cryptography: only where it is needed

            return [secure_generator() for _ in clients]
        return generators((site.seed, client, request.round, request.attempt, "batches") for client in clients)

    def _site(self) -> Site:
        if self.site is None:
            raise RuntimeError("a client without a site can be planned and audited, not trained")
        return self.site

    # --- what plans and budgets rest on ---------------------------------------------------------------------------

    @final
    def accounts(self) -> tuple[Threat, ...]:
        """The method's own threat, and the further ones under which its releases are booked beside it."""
        return tuple(dict.fromkeys([self.threat, *(charge.event.threat for charge in self.all_charges())]))

    @final
    def observed_rounds(self, participations: int) -> int:
        """In how many rounds the observer learns something of a client that takes part this often: of a trusted
        server's releases in all, since it does not know who took part.
        """
        return participations if self.books_itself else self.facts.num_rounds

    @property
    def rounds_at_once(self) -> int:
        """Rounds that one charge pays for."""
        return 1

    @final
    def planned_events(self, participations: int, threat: Threat | None = None) -> list[Event]:
        """The events of a client that takes part this often, fixed before the run, in the `costliest` rounds; threat:
        one of the `accounts` (None: its own).
        """
        counts: dict[Event, int] = {}
        for charge, times in self._planned_charges(participations):
            if charge.event.threat != (threat or self.threat):
                continue
            event = replace(charge.event, count=1)
            if charge.adaptive:
                event = NoBound(threat=charge.event.threat, reason=charge.adaptive)
            counts[event] = counts.get(event, 0) + times * charge.event.count
        return [replace(event, count=count) for event, count in counts.items()]

    def _planned_charges(self, participations: int) -> Iterator[tuple[Charge, int]]:
        """(a charge, how often)."""
        before, alike, first = self.round, self.traits.costliest == "any", 1
        if self.traits.costliest == "last":
            first = max(1, self.facts.num_rounds - participations + 1)
        try:
            for number in range(min(2, participations) if alike else participations):
                self.round = first + number
                times = participations - 1 if alike and number == 1 else 1
                later = LATER if number and self.traits.State is not None else None
                yield from ((charge, times) for charge in self.all_charges(later))
        finally:
            self.round = before

    @final
    def fixed_events(self) -> list[Event]:
        """All that may be released in the run, where rounds compose to less than a filter can tell (sampling, or noise
        that is correlated over rounds): what is `affordable` of it is kept to exactly; where that is nothing, a filter
        decides.
        """
        fixed = self.traits.clips_examples or not self.books_itself
        return self.planned_events(self.facts.num_rounds) if fixed else []

    @final
    def at_other_adjacency(self, event: Event) -> Event | None:
        """`Event.at_other_adjacency`. Under zero-out a statistic beside a contribution may move as far as before."""
        beside = any(replace(charge.event, count=event.count) == event for charge in self.statistics.charges)
        if beside and event.threat.adjacency == "replace-one":
            return replace(event, threat=event.other_threat)
        return event.at_other_adjacency()

    @property
    @final
    def keeps_budget(self) -> bool:
        """Whether every release has a finite price, so that `privacy.max_epsilon` bounds the total."""
        return all(charge.event.why_unbounded() is None for charge in self.all_charges() if self._is_own(charge))

    @final
    def exact_leak(self) -> str | None:
        """Why a release shows a function of the data without any noise; None where every coordinate has noise."""
        for charge in filter(self._is_own, self.all_charges()):
            why = charge.event.why_unbounded()
            if why is not None and (charge.exact or why.startswith(NO_NOISE)):
                return why
        return None

    @final
    def as_update(self, sent: Tensor, lr: float) -> Tensor:
        """The update [d] of local training at this rate whose release, before clipping and noise, is ``sent`` [d]."""
        return sent * -lr if self.traits.releases_gradient else sent

    def _is_own(self, charge: Charge) -> bool:
        return charge.event.threat == self.threat


def on_all_axes(length: float, shape: tuple[int, int], among: int | None = None) -> Tensor:
    """Vectors [trials, d] of this length that have the same part along each of the first ``among`` axes (None: all).

    Against one noise for all coordinates the direction does not matter; a coordinate with less of it shows by itself.
    """
    many = among or shape[1]
    vectors = torch.zeros(shape)
    vectors[:, :many] = length / math.sqrt(many)
    return vectors
