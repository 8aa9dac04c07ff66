"""What a method says of itself without a site: its release, what that costs, what is claimed of it, how it is audited.

Planning, auditing and policies ask nothing else. A participation is `fedpriv.client.base.Client`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Neighbours, PublicFacts, Release, RunFacts
from fedpriv.common.messages import STATISTICS, TRAIN, Request
from fedpriv.config.options import MethodOptions
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.privacy.claimed import Claim
from fedpriv.privacy.events import CLIENT_TO_SERVER, Event, NoBound, Threat
from fedpriv.training.flat_model import Exchange, Layout


@dataclass(frozen=True)
class Traits:
    """What holds for a method whatever its options are.

    needs_facts: the guarantee depends on `PublicFacts`. keeps_layers: some layers of the model stay with the client;
    then `Method.exchange` and `Method.shared` say which travel. canary_everywhere: a canary must be long in every
    coordinate, since each has noise of its own; else it is long in one. clips_examples: training asks for sums of
    clipped per-example gradients instead of whole updates. shares_secrets: other clients know a part of a release's
    randomness, so that they could help the server. whole_batches: trained on all pictures in each step, by
    `FullBatchTrainer` where it can. exchanges: what a round asks of a client, in order.
    """

    needs_facts: bool = False
    keeps_layers: bool = False
    canary_everywhere: bool = False
    clips_examples: bool = False
    shares_secrets: bool = False
    whole_batches: bool = False
    exchanges: tuple[str, ...] = (TRAIN,)

    @property
    def trains_in(self) -> str:
        """The exchange that brings the parameters."""
        return STATISTICS if STATISTICS in self.exchanges else TRAIN


class Method:
    """Base of what methods say; on its own it is a release of the update as it is (no privacy).

    Tensors may have any number of leading trial dimensions. ``options`` is the frozen schema of the method's options,
    whose class a subclass names by its annotation; `fedpriv.config.halves` makes it from the YAML file's values.
    """

    #: The method's own options.
    options: MethodOptions
    #: What holds whatever the options are.
    traits: ClassVar[Traits] = Traits()
    #: Who must not learn what.
    threat: ClassVar[Threat] = CLIENT_TO_SERVER
    #: Dataclass of what the method keeps between participations.
    State: ClassVar[type[Any] | None] = None
    #: Whether the releases of several clients are one computation: then `release` and all that it calls treat the
    #: leading dimension as clients, each with its own noise, and give each the bits that it would have alone. A class
    #: says so for itself, not for those derived from it; tests/contract holds it to that.
    in_rows: ClassVar[bool] = False
    #: Whether a release of few coordinates is the same mechanism as one of many, so that an audit of it counts.
    alike_at_any_dimension: ClassVar[bool] = True
    #: Of the audited updates: `Neighbours.axes`.
    audit_axes: int | None = None

    def __init__(self, options: Any, run: RunFacts) -> None:
        self.options, self.run, self.variant = options, run, run.variant

    @property
    def facts(self) -> PublicFacts:
        """What is known of the client and its run before the run; of methods with the trait ``needs_facts``."""
        assert self.run.facts is not None, "Traits.needs_facts says whether a method needs them"
        return self.run.facts

    # --- the release -------------------------------------------------------------------------------------

    @property
    def exchanges(self) -> tuple[str, ...]:
        """What a round asks of a client, in order."""
        return self.traits.exchanges

    @property
    def needs_identity(self) -> bool:
        """Whether a real machine takes part only with identity keys: a server in the middle would know its secrets."""
        return self.traits.shares_secrets

    @property
    def proximal_mu(self) -> float:
        """Weight mu of the proximal term in local training."""
        return 0.0

    def numbers_down(self, size: int) -> int:
        """How many numbers come down in a round that is about ``size`` parameters."""
        return size

    def opened(self, received: Tensor) -> Tensor:
        """The parameters [d_down] among the `numbers_down` that came; a method that is sent more takes it here. Raises
        `MalformedMessage` for what no honest server sends: nothing has happened yet.
        """
        return received

    def drift(self, state: Any) -> Tensor | None:
        """What local training adds to every gradient: [..., d], or [d] for all clients; None: nothing."""
        return None

    @property
    def statistic_names(self) -> tuple[str, ...]:
        """Names of the numbers that leave beside every release, in their order."""
        return ()

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """All that leaves in a participation: the vector [..., d], from the update [..., d] and the state, and the
        numbers [...] beside it.
        """
        return Release(update, state)

    def prepare(self, request: Request) -> None:
        """Takes from a request what this participation is to be done with. Raises where that is not safe."""

    def keeps_answer(self) -> bool:
        """Whether the last reply is kept for a repeated request: wherever a noise key must not meet a second update."""
        return self.exact_leak() is None

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        """Bytes of a release of so many coordinates on the wire."""
        return 4 * size

    # --- what it costs -----------------------------------------------------------------------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """What the next release costs; depends on public values and on the client's own noisy history only."""
        return (Charge(NoBound(threat=self.threat, reason="updates are sent without noise")),)

    def price(self, state: Any, request: Request) -> tuple[Charge, ...]:
        """What answering this request costs. Charges under further threats than the method's own may be among them.

        Raises `UnsafeNoise`.
        """
        return self.charges(state)

    def due(self, state: Any, request: Request) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
        """(what is booked with this exchange, what will follow in the same round and must fit into the budget too)."""
        return self.price(state, request), ()

    def planned_events(self, participations: int) -> list[Event]:
        """The guarantee's events of a client that takes part this often, fixed before the run: those of its first
        participation, so often. A method whose later participations cost something else says so here.
        """
        return self._each_alike(self.threat, participations)

    @final
    def _each_alike(self, threat: Threat, participations: int) -> list[Event]:
        events = [charge.event for charge in self.price(None, Request(1, 0)) if charge.event.threat == threat]
        return [replace(event, count=participations * event.count) for event in events] if participations else []

    def observed_rounds(self, participations: int) -> int:
        """In how many rounds the observer learns something of a client that takes part this often."""
        return participations

    def budget_plan(self) -> list[Event]:
        """All that may be released in the run, where that is fixed before it: if the whole plan costs at most
        `privacy.max_epsilon`, it is kept to exactly; otherwise, or where it is empty, a filter decides.
        """
        return []

    def bound_to_rounds(self) -> str | None:
        """Why a run of this method cannot be extended: what of its releases, noise or price was fixed by num_rounds.
        None: round t is the same in a run of any length, so more rounds may follow.
        """
        return None

    @property
    def single_row(self) -> str | None:
        """Why clients with these options are computed one row after the other, although their class has `in_rows`."""
        return None

    @property
    def priced_alike(self) -> bool:
        """Whether a release costs the same whatever the values of the client's state are, as long as it has one."""
        return self.State is None

    @property
    def keeps_budget(self) -> bool:
        """Whether every release has a finite price, so that `privacy.max_epsilon` bounds the total."""
        return all(event.why_unbounded() is None for event in self.planned_events(1))

    @property
    def measures_first(self) -> bool:
        """Whether a round asks twice: for statistics of an update, then for its release."""
        return STATISTICS in self.exchanges

    @final
    @property
    def books_itself(self) -> bool:
        """Whether the client's own ledger holds its releases; not where a trusted server books the sum for all."""
        return bool(self.price(None, Request(1, 0)))

    @final
    def accounts(self) -> tuple[Threat, ...]:
        """The method's own threat, and the further ones under which its releases are booked beside it."""
        charges = self.price(None, Request(1, 0))
        return tuple(dict.fromkeys([self.threat, *(charge.event.threat for charge in charges)]))

    def why_no_account(self, observer: str) -> str:
        """In words, where a reader may expect an account against this observer."""
        return ""

    @final
    def planned_against(self, threat: Threat, participations: int) -> list[Event]:
        """As `planned_events`, under any of the `accounts`; under a further one every participation is booked alike."""
        if threat == self.threat:
            return self.planned_events(participations)
        return self._each_alike(threat, participations)

    @classmethod
    def chosen_for(
        cls,
        target: float,
        delta: float,
        participations: int,
        make: Callable[..., Method],
        threat: Threat | None = None,
    ) -> dict[str, float]:
        """The options that meet `privacy.target_epsilon` over so many participations; ``make`` is a method with changed
        options, ``threat`` one of its `accounts` (None: its own). Raises `OptionError` where there are none.
        """
        from fedpriv.privacy.calibration import calibrate  # loads the accountants

        def events(noise_multiplier: float) -> list[Event]:
            method = make(noise_multiplier=noise_multiplier)
            return method.planned_against(threat or method.threat, participations)

        return {"noise_multiplier": calibrate(events, target, delta).noise_multiplier}

    # --- what is said of it, and what the auditor tries ----------------------------------------------------

    def claim(self, participations: int, delta: float) -> Claim | None:
        """What the paper says of a client that takes part this often; None where it claims nothing."""
        return None

    def remarks(self) -> tuple[str, ...]:
        """What a reader must know to hold this method's claim against its guarantee, in sentences for the report."""
        return ()

    def exact_leak(self) -> str | None:
        """Why a release shows a function of the data without any noise; None where every coordinate has noise."""
        return "updates are sent without noise"

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """What the auditor tries: pairs of neighbours under the method's adjacency that it separates worst."""
        return [Neighbours("opposite updates", (1.0,) * participations, (-1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The release code on trials ``shape`` = [trials, d] of one side of a pair of neighbours: here an update of
        ``length`` clip norms.
        """
        update = on_all_axes(length * getattr(self, "clip_norm", 1.0), shape, self.audit_axes)
        return self.release(update, state, noise)

    def as_update(self, sent: Tensor, lr: float) -> Tensor:
        """The update [d] of local training at this rate whose release, before clipping and noise, is ``sent`` [d]."""
        return sent

    # --- which layers travel -------------------------------------------------------------------------------

    def shared(self, layout: Layout) -> slice:
        """The part of the model's flat vector [d] that the server holds: its theta."""
        return slice(0, layout.num_parameters)

    def exchange(self, layout: Layout, server_round: int) -> Exchange:
        """What travels in a round, as slices of [d]. The client's own rule, which no message can change."""
        whole = slice(0, layout.num_parameters)
        return Exchange(whole, whole, slice(0, 0))

    def outgoing(self, start: Tensor, update: Tensor, exchange: Exchange) -> Tensor:
        """What of a finished training is up for `release`: by default the update [d] cut to ``exchange.up``."""
        return update[exchange.up]


def on_all_axes(length: float, shape: tuple[int, int], among: int | None = None) -> Tensor:
    """Vectors [trials, d] of this length that have the same part along each of the first ``among`` axes (None: all).

    Against one noise for all coordinates the direction does not matter; a coordinate with less of it shows by itself.
    """
    many = among or shape[1]
    vectors = torch.zeros(shape)
    vectors[:, :many] = length / math.sqrt(many)
    return vectors
