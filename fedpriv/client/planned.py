"""What a method is, and what follows from that and from its price: plans, accounts, budgets, leaks. Nobody asks for it
on an update's way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import Tensor

from fedpriv.client.contract import LATER, Charge, PublicFacts
from fedpriv.common.messages import KEYS, STATISTICS, TRAIN
from fedpriv.privacy.events import NO_NOISE, Event, NoBound, Threat


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
    (`Method._each`).
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


class Planned:
    """Base of `fedpriv.client.method.Method`: everything here is final, since no method says it twice."""

    if TYPE_CHECKING:  # what it rests on, which `Method` has
        traits: Traits
        threat: Threat
        round: int

        @property
        def facts(self) -> PublicFacts: ...

        @property
        def books_itself(self) -> bool: ...

        def all_charges(self, state: Any = None) -> tuple[Charge, ...]: ...

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
