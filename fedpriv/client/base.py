"""The shared base of all client halves: local training, then one release that is booked before it leaves.

A method's client file says two things only: what its release is (`release`) and what that costs (`charges`, and
`planned_events` for a whole run). The order of a participation is fixed here: budget, training, release, then
ledger entries, state and account in one write, then the reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor

from fedpriv.client.contract import (
    BudgetSpent,
    Charge,
    Neighbours,
    Release,
    Request,
    Site,
    Trained,
    arrays_of,
    read_request,
    repeated_answer,
)
from fedpriv.client.memory import Answer, ClientMemory, read_memory, state_to_tensors, tensors_to_state
from fedpriv.common.messages import TRAIN
from fedpriv.common.seeds import generator
from fedpriv.mechanisms.clipping import finite_or_zero, l2_norm
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.noise_sources import noise_source
from fedpriv.privacy.claimed import Claim
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Event, NoBound, Threat
from fedpriv.training.flat_model import Exchange, Layout

if TYPE_CHECKING:
    pass


class Client(NumPyClient):
    """Base of the client halves; on its own it releases the update as it is (no privacy).

    Without a ``site`` a client can still be planned (`planned_events`) and audited (`release`), with any number
    of leading trial dimensions.
    """

    #: Who must not learn what; None where a method promises nothing.
    threat: ClassVar[Threat] = CLIENT_TO_SERVER
    #: Dataclass of what the method keeps between participations.
    State: ClassVar[type[Any] | None] = None
    #: Whether every release has a finite price, so that `privacy.max_epsilon` bounds the total.
    keeps_budget: bool = False
    #: Weight mu of the proximal term in local training.
    proximal_mu: float = 0.0
    #: Whether the constructor takes `PublicFacts` as ``facts``.
    needs_facts: ClassVar[bool] = False
    #: Batches of a participation; None: epochs over the client's data.
    batches_per_round: int | None = None
    #: Names of the numbers that leave beside every release, in the order in which `fit` returns them.
    statistic_names: tuple[str, ...] = ()
    #: Whether some layers of the model stay with the client: then `exchange` and `shared` say which travel.
    keeps_layers: ClassVar[bool] = False
    #: Whether a canary must be long in every coordinate, since each has noise of its own; else it is long in one.
    canary_everywhere: ClassVar[bool] = False
    #: What a round asks of the client, in order.
    exchanges: ClassVar[tuple[str, ...]] = (TRAIN,)
    #: The exchange that brings the parameters.
    trains_in: ClassVar[str] = TRAIN
    #: Whether local training asks for sums of clipped per-example gradients instead of whole updates.
    clips_examples: ClassVar[bool] = False
    #: Whether the client's own ledger holds its releases; not where a trusted server books the sum for everybody.
    books_itself: bool = True
    #: Whether other clients know a part of a release's randomness, so that they could help the server.
    shares_secrets: ClassVar[bool] = False
    #: Whether the model's named blocks and the number of parameters matter to the method.
    needs_layout: ClassVar[bool] = False

    def __init__(self, *, variant: str = "repaired", site: Site | None = None) -> None:
        self.variant, self.site = variant, site

    # --- what a method says ------------------------------------------------------------------------------

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """The vector [..., d] that leaves the client, from its update [..., d] and its state."""
        return Release(update, state)

    def respond(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """All that leaves in a participation: the release, and what a base class sends beside it."""
        return self.release(update, state, noise)

    def prepare(self, request: Request) -> None:
        """Takes from a request what this participation is to be done with. Raises where that is not safe."""

    def load_state(self, tensors: dict[str, Tensor] | None) -> Any:
        """The state that `dump_state` gave, or None before the first participation."""
        return tensors_to_state(self.State, tensors) if self.State else None

    def dump_state(self, state: Any) -> dict[str, Tensor] | None:
        """What the memory holds of a state."""
        return state_to_tensors(state)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """What the next release costs; depends on public values and on the client's own noisy history only."""
        return (Charge(NoBound(threat=self.threat, reason="updates are sent without noise")),)

    def planned_events(self, participations: int) -> list[Event]:
        """The guarantee's events of a client that takes part this often, fixed before the run."""
        (charge,) = self.charges(None)
        return [replace(charge.event, count=participations)] if participations else []

    def price(self, state: Any, request: Request) -> tuple[Charge, ...]:
        """What answering this request costs. Charges under further threats than the method's own may be among them.

        Raises `UnsafeNoise`.
        """
        return self.charges(state)

    def accounts(self) -> tuple[Threat, ...]:
        """The method's own threat, and the further ones under which its releases are booked beside it."""
        charges = self.price(None, Request(1, 0)) if self.books_itself else ()
        return tuple(dict.fromkeys([self.threat, *(charge.event.threat for charge in charges)]))

    def why_no_account(self, observer: str) -> str:
        """In words, where a reader may expect an account against this observer."""
        return ""

    def planned_against(self, threat: Threat, participations: int) -> list[Event]:
        """As `planned_events`, under any of the `accounts`; under a further one every participation is booked alike."""
        if threat == self.threat:
            return self.planned_events(participations)
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

    def claim(self, participations: int, delta: float) -> Claim | None:
        """What the paper says of a client that takes part this often; None where it claims nothing."""
        return None

    def remarks(self) -> tuple[str, ...]:
        """What a reader must know to hold this method's claim against its guarantee, in sentences for the report."""
        return ()

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """What the auditor tries: pairs of neighbours under the method's adjacency that it separates worst."""
        return [Neighbours("opposite updates", (1.0,) * participations, (-1.0,) * participations)]

    def exact_leak(self) -> str | None:
        """Why a release shows a function of the data without any noise; None where every coordinate has noise."""
        return "updates are sent without noise"

    def keeps_answer(self) -> bool:
        """Whether the last reply is kept for a repeated request: wherever a noise key must not meet a second update."""
        return self.exact_leak() is None

    def as_update(self, sent: Tensor, lr: float) -> Tensor:
        """The update [d] of local training at this rate whose release, before clipping and noise, is ``sent`` [d]."""
        return sent

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The release code on trials ``shape`` = [trials, d] of one side of a pair of neighbours: here an update of
        ``length`` clip norms.
        """
        return self.respond(on_all_axes(length * getattr(self, "clip_norm", 1.0), shape), state, noise)

    @classmethod
    def chosen_for(
        cls,
        target: float,
        delta: float,
        participations: int,
        make: Callable[..., Client],
        threat: Threat | None = None,
    ) -> dict[str, float]:
        """The options that meet `privacy.target_epsilon` over so many participations; ``make`` is a client with changed
        options, ``threat`` one of its `accounts` (None: its own). Raises `OptionError` where there are none.
        """
        from fedpriv.privacy.calibration import calibrate  # loads the accountants

        def events(noise_multiplier: float) -> list[Event]:
            client = make(noise_multiplier=noise_multiplier)
            return client.planned_against(threat or client.threat, participations)

        return {"noise_multiplier": calibrate(events, target, delta).noise_multiplier}

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        """Bytes of a release of so many coordinates on the wire."""
        return 4 * size

    # --- which layers travel ---------------------------------------------------------------------------------

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

    def _starting_model(self, received: Tensor, kept: Tensor | None, exchange: Exchange) -> Tensor:
        """The model [d] that local training starts from: what came down, the client's own layers, and theta^0 where
        it has trained none yet.
        """
        initial = self._site().initial
        assert initial is not None, "a client that keeps layers needs the initial model"
        start = initial.clone()
        if kept is not None:
            start[exchange.kept] = kept
        if received.shape != start[exchange.down].shape:
            raise ValueError(f"{received.numel()} parameters came down, expected {start[exchange.down].numel()}")
        start[exchange.down] = received
        return start

    def _exchange(self, request: Request) -> Exchange | None:
        """None where all layers travel."""
        if not self.keeps_layers:
            return None
        layout = self._site().layout
        assert layout is not None, "a client that keeps layers needs the model's layout"
        return self.exchange(layout, request.round)

    # --- one participation -------------------------------------------------------------------------------

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Trains from the parameters that came down, ``[theta]`` (float32), and returns ``[release]``, or ``[release,
        statistics]`` (float64 [k]) where the method has `statistic_names`.

        The returned count is the declared one. The dictionary holds diagnostics for the experimenter, which the
        adapter drops outside simulation. A repeated request gets the same bytes; an older one raises `StaleRequest`.
        Raises `BudgetSpent`.
        """
        site, request = self._site(), read_request(config)
        memory = read_memory(site.store)
        if (answer := repeated_answer(memory, request)) is not None:
            return arrays_of(answer), site.num_examples, {}
        self.prepare(request)
        state = self.load_state(memory.state)
        charges = self.price(state, request)
        self._check_budget(memory, charges)

        release, diagnostics = self.work(self._start(parameters[0], memory, request), state, request)
        diagnostics |= self._tested(release.local)
        beside = [release.statistics[name].double() for name in self.statistic_names]
        answer = Answer(request.round, request.attempt, release.value, torch.stack(beside) if beside else None)
        # A release without noise has no noise key to protect: nothing is kept of it.
        remembered = answer if self.keeps_answer() else None
        kept = self._kept(release.local, request)
        entries = self._entries(memory, request, charges)
        site.store.write(memory.after(self.dump_state(release.state), entries, remembered, kept).to_bytes())
        return arrays_of(answer), site.num_examples, diagnostics

    def work(self, theta: Tensor, state: Any, request: Request) -> tuple[Release, dict[str, float]]:
        """Local training from ``theta`` [d] and the release that comes of it, with figures for the experimenter.

        theta is a whole model, also where only a part of it came down. A method whose noise is inside local training
        overrides this instead of `release`.
        """
        trained = self.train_locally(theta, request)
        release = self.respond(trained.sent, state, self._noise(request, "release"))
        return replace(release, local=trained.local), {**trained.figures, **release.figures}

    def train_locally(self, theta: Tensor, request: Request) -> Trained:
        """Local training from ``theta`` [d], a whole model."""
        site = self._site()
        rng = self._batch_generator(request.round, request.attempt)
        result = site.trainer.train(theta, site.load_data(), rng, self.proximal_mu)
        update = finite_or_zero(result.update)
        exchange = self._exchange(request)
        sent = update if exchange is None else self.outgoing(theta, update, exchange)
        norm = float(l2_norm(update if exchange is None else update[exchange.up]))
        return Trained(sent, theta + update, {"train_loss": result.loss, "update_norm": norm})

    def _start(self, received: np.ndarray, memory: ClientMemory, request: Request) -> Tensor:
        """The whole model [d] that this participation starts from."""
        theta, exchange = torch.from_numpy(received), self._exchange(request)
        return theta if exchange is None else self._starting_model(theta, memory.kept, exchange)

    def _kept(self, local: Tensor | None, request: Request) -> Tensor | None:
        """The client's own layers of its model after training; None where all layers travel."""
        exchange = self._exchange(request)
        if exchange is None:
            return None
        assert local is not None, "`work` of a client that keeps layers returns its local model"
        return local[exchange.kept].clone()

    def _tested(self, local: Tensor | None) -> dict[str, float]:
        """Figures of the client's own model on its own test pictures, in simulation."""
        site = self._site()
        return site.test(local) if site.test is not None and local is not None else {}

    def _entries(self, memory: ClientMemory, request: Request, charges: Sequence[Charge]) -> list[Entry]:
        """The ledger's lines for these charges, after those of earlier releases."""
        site = self._site()
        return [
            Entry(request.round, site.client, sequence, request.attempt, charge.event, charge.realised, charge.adaptive)
            for sequence, charge in enumerate(charges, memory.account.next_sequence)
        ]

    def _noise(self, request: Request, purpose: str) -> NoiseSource:
        """The one source of this release's noise."""
        site = self._site()
        return noise_source(site.rng, site.seed, site.client, request.round, request.attempt, purpose)  # type: ignore[arg-type]

    def _check_budget(self, memory: ClientMemory, charges: Sequence[Charge]) -> None:
        site = self._site()
        if site.guard is not None:
            site.guard(charges)
        if site.max_epsilon is None:
            return
        from fedpriv.privacy.composition import Budget, compose  # loads the accountants: only where a budget is kept

        own = [charge for charge in charges if charge.event.threat == self.threat]
        plan = tuple(self.budget_plan())
        if plan and compose(plan, site.delta).epsilon <= site.max_epsilon:
            budget = Budget(site.max_epsilon, site.delta, plan=plan)
            bounds = [entry.event for entry in memory.account.entries() if entry.event.threat == self.threat]
            admitted = budget.admits(bounds, [charge.event for charge in own])
        else:
            spent = memory.account.spent(self.threat)
            further = [charge.realised or charge.event for charge in own]
            admitted = Budget(site.max_epsilon, site.delta).admits(spent, further)
        if not admitted:
            raise BudgetSpent(f"client {site.client}: the next release would exceed epsilon {site.max_epsilon}")

    def _batch_generator(self, server_round: int, attempt: int) -> np.random.Generator:
        """Batches are repeatable in simulation; in secret where noise comes from the operating system."""
        site = self._site()
        if site.rng == "secure":
            from fedpriv.mechanisms.secure_noise import secure_generator  # cryptography: only where it is needed

            return secure_generator()
        return generator(site.seed, site.client, server_round, attempt, "batches")

    def _site(self) -> Site:
        if self.site is None:
            raise RuntimeError("a client without a site can be planned and audited, not trained")
        return self.site


def on_all_axes(length: float, shape: tuple[int, int], among: int | None = None) -> Tensor:
    """Vectors [trials, d] of this length that have the same part along each of the first ``among`` axes (None: all).

    Against one noise for all coordinates the direction does not matter; a coordinate with less of it shows by itself.
    """
    many = among or shape[1]
    vectors = torch.zeros(shape)
    vectors[:, :many] = length / math.sqrt(many)
    return vectors
