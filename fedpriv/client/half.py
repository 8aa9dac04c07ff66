"""A method at a site: what one participation asks of it (`fedpriv.client.one_path` has the order)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, final

import numpy as np
from torch import Tensor

from fedpriv.client.contract import BudgetSpent, Charge, Figure, Release, RunFacts, Site, Trained
from fedpriv.client.memory import ClientMemory, Waiting, WithNorms, tensors_to_state
from fedpriv.client.method import Method
from fedpriv.common.messages import STATISTICS, TRAIN, Outgoing, Request
from fedpriv.common.seeds import generator
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.clipping import l2_norm
from fedpriv.mechanisms.noise import NoiseSource, SeededNoise
from fedpriv.privacy.events import Entry
from fedpriv.training.flat_model import Layers
from fedpriv.training.sequential import Clipping


class Half(Method):
    """All of a client half but Flower's side. Without a ``site`` it can still be planned and audited.

    What a family of methods may change of a participation: `releasing` (a release in another form), `steps` (noise
    inside local training), `further` (exchanges without a release).
    """

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.site = run.site
        #: Whether this exchange is for statistics of an update whose release follows.
        self.measuring = False
        #: What was told in the round's first exchange, where there are two.
        self.reported: Mapping[str, Tensor] = MappingProxyType({})

    @final
    def figures(self, clipped: Tensor, noise: Tensor, **others: Figure) -> dict[str, Figure]:
        """Diagnostics of a release [..., d] at a site; empty for an auditor's trials, where nobody reads them."""
        if self.site is None and clipped.ndim > 1:
            return {}
        return {"clipped_norm": l2_norm(clipped), "noise_norm": l2_norm(noise), **others}

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
    def begin(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """A new exchange, which is prepared for. down: as of `prepare`."""
        self.round, self.measuring, self.reported = max(1, request.round), request.exchange == STATISTICS, {}
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
            return self.statistics.charges, self.charges(own)
        return (self.charges(own) if self.traits.measures_first else self.all_charges(own)), ()

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
        if self.traits.exchanges != (TRAIN,):
            return f"{kind.__name__} has several exchanges in a round"
        return f"{kind.__name__} keeps layers of its own" if self.traits.keeps_layers else None

    @final
    def travelling(self, request: Request) -> Layers | None:
        """Which layers travel in this round; None where all do."""
        if not self.traits.keeps_layers:
            return None
        layout = self._site().layout
        assert layout is not None, "a client that keeps layers needs the model's layout"
        return self.layers(layout, request.round)

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
    def entries(self, memory: ClientMemory, request: Request, charges: Sequence[Charge], client: int) -> list[Entry]:
        """The ledger's lines for these charges, after those of earlier releases."""
        return [
            Entry(
                request.round, client, sequence, request.attempt, charge.event, charge.realised, bool(charge.adaptive)
            )
            for sequence, charge in enumerate(charges, memory.account.next_sequence)
        ]

    @final
    def check_budget(self, memory: ClientMemory, charges: Sequence[Charge], request: Request, client: int) -> None:
        """Raises `BudgetSpent` before anything is computed, or what the node's policy raises."""
        site = self._site()
        if site.guard is not None:
            site.guard(charges)
        again = memory.account.last == (request.round, request.attempt)  # a further exchange of the same participation
        if site.participations is not None and not again and memory.account.participations >= site.participations:
            words = f"client {client} has taken part {memory.account.participations} times, and may no more"
            raise BudgetSpent(words)
        if site.max_epsilon is None:
            return
        from fedpriv.privacy.composition import Budget, compose  # loads the accountants: only where a budget is kept

        own = [charge for charge in charges if charge.event.threat == self.threat]
        plan = tuple(self.fixed_events())
        if plan and compose(plan, site.delta).epsilon <= site.max_epsilon:
            budget = Budget(site.max_epsilon, site.delta, plan=plan)
            bounds = [entry.event for entry in memory.account.entries() if entry.event.threat == self.threat]
            admitted = budget.admits(bounds, [charge.event for charge in own])
        else:
            spent = memory.account.spent(self.threat)
            further = [charge.realised or charge.event for charge in own]
            admitted = Budget(site.max_epsilon, site.delta).admits(spent, further)
        if not admitted:
            raise BudgetSpent(f"client {client}: the next release would exceed epsilon {site.max_epsilon}")

    @final
    def batches(self, request: Request, client: int | None = None) -> np.random.Generator:
        """What draws a client's batches: repeatable in simulation, in secret where noise comes from the operating
        system. client: of whom, where several take part.
        """
        site = self._site()
        if site.rng == "secure":
            from fedpriv.mechanisms.secure_noise import secure_generator  # cryptography: only where it is needed

            return secure_generator()
        who = site.client if client is None else client
        return generator(site.seed, who, request.round, request.attempt, "batches")

    def _site(self) -> Site:
        if self.site is None:
            raise RuntimeError("a client without a site can be planned and audited, not trained")
        return self.site
