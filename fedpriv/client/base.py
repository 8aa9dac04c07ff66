"""A client half: a method at a site, as Flower's NumPyClient.

A method's client file says what its release is and what that costs (`release`, `charges` and the rest of
`fedpriv.client.method.Method`). The order of a participation is that of `fedpriv.client.participation`, for all.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
from flwr.client import NumPyClient
from torch import Tensor

from fedpriv.client.contract import BudgetSpent, Charge, Figure, Release, RunFacts, Site, Trained, figure
from fedpriv.client.memory import ClientMemory, Waiting
from fedpriv.client.method import Method
from fedpriv.client.participation import Asked, alone
from fedpriv.client.states import state_to_tensors, tensors_to_state
from fedpriv.common.messages import ATTEMPT, ROUND, STATISTICS, TRAIN, Outgoing, Request
from fedpriv.common.seeds import generator
from fedpriv.mechanisms.clipping import l2_norm
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.noise_sources import noise_source
from fedpriv.mechanisms.per_example import ClippedSum
from fedpriv.privacy.events import Entry
from fedpriv.training.sequential import Clipping


class Client(Method, NumPyClient):
    """Base of the client halves. Without a ``site`` it can still be planned and audited.

    What a family of methods may change of a participation: `releasing` (a release in another form), `steps` (noise
    inside local training), `further` (exchanges without a release).
    """

    #: Purpose of the noise key of this participation.
    purpose: str = "release"

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.site = run.site

    @final
    def answer(self, request: Request, received: np.ndarray | None) -> Outgoing:
        """One exchange of a round. received: the parameters that came down (float32 [d_down]), None where none did.

        A repeated request gets the same bytes; an older one raises `StaleRequest`. Raises `BudgetSpent`.
        """
        if request.exchange not in (STATISTICS, TRAIN):
            return self.further(request)
        site = self._site()
        found = alone(self).answer([Asked(site.client, site.store, request)], received)
        for error in found.refused.values():
            raise error
        return found.replies[site.client]

    def figures(self, clipped: Tensor, noise: Tensor, **others: Figure) -> dict[str, Figure]:
        """Diagnostics of a release [..., d] at a site; empty for an auditor's trials, where nobody reads them."""
        if self.site is None and clipped.ndim > 1:
            return {}
        return {"clipped_norm": figure(l2_norm(clipped)), "noise_norm": figure(l2_norm(noise)), **others}

    # --- what a family may change ----------------------------------------------------------------------------

    def further(self, request: Request) -> Outgoing:
        """An exchange in which nobody trains or releases, such as keys."""
        raise ValueError(f"{type(self).__name__} has no exchange {request.exchange}")

    def still_waiting(self) -> Waiting | None:
        """What further exchanges of the round need after the release; written together with it."""
        return None

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

    def recall(self, waiting: Waiting) -> Trained:
        """What was trained in the round's first exchange, where there are two; takes what was reported there."""
        raise NotImplementedError

    # --- parts of a participation --------------------------------------------------------------------------

    @final
    def released(self, trained: Trained, release: Release) -> Release:
        """A release with what is kept and told of the training that led to it."""
        return replace(release, local=trained.local, figures={**trained.figures, **release.figures})

    @final
    def load_state(self, tensors: dict[str, Tensor] | None) -> Any:
        """The state that `dump_state` gave, or None before the first participation."""
        return tensors_to_state(self.State, tensors)

    @final
    def dump_state(self, state: Any) -> dict[str, Tensor] | None:
        """What the memory holds of a state."""
        return state_to_tensors(state)

    @final
    def noise(self, request: Request, purpose: str, client: int | None = None) -> NoiseSource:
        """The one source of noise of this participation for a purpose. client: of whom, where several take part."""
        site = self._site()
        who = site.client if client is None else client
        return noise_source(site.rng, site.seed, who, request.round, request.attempt, purpose)  # type: ignore[arg-type]

    @final
    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """`answer` in the form of Flower's NumPyClient: ``[theta]`` or nothing, and the request's round, attempt and
        options in one dictionary; returns the arrays that leave, the declared count, and figures.
        """
        options = {key: value for key, value in config.items() if key not in (ROUND, ATTEMPT)}
        request = Request(int(config[ROUND]), int(config[ATTEMPT]), options)
        found = self.answer(request, parameters[0] if parameters else None)
        arrays = [] if found.release is None else [found.release]
        if found.statistics or request.exchange == STATISTICS:
            arrays.append(np.array(list(found.statistics.values()), np.float64))
        arrays += [np.frombuffer(blob, np.uint8) for blob in found.blobs]
        return arrays, found.num_examples, dict(found.figures)

    @final
    @property
    def tests_models(self) -> bool:
        """Whether anybody asks for a client's own model after training, other than the client."""
        return self._site().test is not None

    @final
    def tested(self, local: Tensor | None, client: int) -> dict[str, float]:
        """Figures of a client's own model [d] on its own test pictures, in simulation."""
        site = self._site()
        return site.test(client, local) if site.test is not None and local is not None else {}

    @final
    def entries(self, memory: ClientMemory, request: Request, charges: Sequence[Charge], client: int) -> list[Entry]:
        """The ledger's lines for these charges, after those of earlier releases."""
        return [
            Entry(request.round, client, sequence, request.attempt, charge.event, charge.realised, charge.adaptive)
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
