"""What a method says of itself without a site: its release, what that costs, what is claimed of it, how it is audited.

Planning, auditing and policies ask nothing else. A participation is `fedpriv.client.base.Client`.

An algorithm says how clients train: `Method.local` (a proximal term, a drift), `Method.layers` (what travels),
`Method.prepare` (what the server tells). A mechanism says what leaves: `Method.release`, `Method.charges`,
`Method.statistics`. Everything marked final follows from these: no method says it twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from fedpriv.client.contract import LATER, Charge, LocalRule, Neighbours, PublicFacts, Release, RunFacts, Statistics
from fedpriv.common.messages import KEYS, STATISTICS, TRAIN, Request
from fedpriv.config.options import MethodOptions
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.privacy.claimed import Claim
from fedpriv.privacy.events import CLIENT_TO_SERVER, Event, NoBound, Threat
from fedpriv.privacy.events.event import NO_NOISE
from fedpriv.training.flat_model import NOTHING, Layers, Layout

#: Of a release without noise.
SENT_AS_IT_IS = "updates are sent without noise"


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
    account against whoever sees only a round's sum, where a reader may expect one.
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

    @property
    def measures_first(self) -> bool:
        """Whether a round asks twice: for statistics of an update, then for its release."""
        return STATISTICS in self.exchanges

    @property
    def trains_in(self) -> str:
        """The exchange that brings the parameters."""
        return STATISTICS if self.measures_first else TRAIN

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

    def __init__(self, options: Any, run: RunFacts) -> None:
        self.options, self.run, self.variant = options, run, run.variant
        #: Of this participation, or in a plan.
        self.round = 1
        #: Of the audited updates: `Neighbours.axes`.
        self.audit_axes: int | None = None

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

    # --- what follows ---------------------------------------------------------------------------------------

    @property
    @final
    def books_itself(self) -> bool:
        """Whether the client's own ledger holds its releases; not where a trusted server books the sum for all."""
        return self.threat.observer != "trusted-server"

    @final
    def all_charges(self, state: Any = None) -> tuple[Charge, ...]:
        """What a participation costs: its release, and the statistics beside it."""
        return (*self.charges(state), *self.statistics.charges)

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
        that is correlated over rounds): if the whole costs at most `privacy.max_epsilon`, it is kept to exactly;
        otherwise, or where it is empty, a filter decides.
        """
        fixed = self.traits.clips_examples or not self.books_itself
        return self.planned_events(self.facts.num_rounds) if fixed else []

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
    def keeps_answer(self, charges: Sequence[Charge]) -> bool:
        """Whether the last reply is kept for a repeated request: wherever a noise key must not meet a second update.
        charges: of that reply.
        """
        if self.traits.measures_first or not self.books_itself:
            return True
        return any(charge.event.why_unbounded() not in (NO_NOISE, SENT_AS_IT_IS) for charge in charges)

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
