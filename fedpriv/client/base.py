"""One participation: the order in which every client half budgets, trains, releases, books and replies.

`Client` is Flower's NumPyClient. A method's client file says what its release is and what that costs (`release`,
`charges` and the rest of `fedpriv.client.method.Method`). The order is fixed here: budget, training, release, then
ledger entries, state and account in one write, then the reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor

from fedpriv.client.contract import (
    BudgetSpent,
    Charge,
    Figure,
    Release,
    RunFacts,
    Site,
    Trained,
    figure,
    numbers,
    repeated_answer,
)
from fedpriv.client.memory import Answer, ClientMemory, Waiting, read_memory
from fedpriv.client.method import Method
from fedpriv.client.states import state_to_tensors, tensors_to_state
from fedpriv.common.messages import ATTEMPT, ROUND, STATISTICS, Outgoing, Request
from fedpriv.common.seeds import generator
from fedpriv.mechanisms.clipping import finite_or_zero, l2_norm
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.noise_sources import noise_source
from fedpriv.privacy.events import Entry
from fedpriv.training.flat_model import Exchange


class Client(Method, NumPyClient):
    """Base of the client halves. Without a ``site`` it can still be planned and audited.

    What a family of methods may change of a participation: `answer` (further exchanges) and `work` (noise inside local
    training, a release in another form).
    """

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.site = run.site

    def answer(self, request: Request, received: np.ndarray | None) -> Outgoing:
        """One exchange of a round. received: the parameters that came down (float32 [d_down]), None where none did.

        A repeated request gets the same bytes; an older one raises `StaleRequest`. Raises `BudgetSpent`.
        """
        site, memory = self._site(), read_memory(self._site().store)
        if (answer := repeated_answer(memory, request)) is not None:
            return self._outgoing(answer)
        assert received is not None, "an exchange that trains brings parameters"
        self.prepare(request)
        parameters = self.opened(torch.from_numpy(received))
        state = self.load_state(memory.state)
        charges = self.price(state, request)
        self._check_budget(memory, charges, request)

        release = self.work(self._start(parameters, memory, request), state, request)
        figures = numbers(release.figures) | self.tested(release.local, site.client)
        beside = [release.statistics[name].double() for name in self.statistic_names]
        answer = Answer(request.round, request.attempt, release.value, torch.stack(beside) if beside else None)
        # A release without noise has no noise key to protect: nothing is kept of it.
        remembered = answer if self.keeps_answer() else None
        kept = self._kept(release.local, request)
        entries = self._entries(memory, request, charges)
        site.store.keep(memory.after(self.dump_state(release.state), entries, remembered, kept, self.still_waiting()))
        return self._outgoing(answer, figures)

    def figures(self, clipped: Tensor, noise: Tensor, **others: Figure) -> dict[str, Figure]:
        """Diagnostics of a release [..., d] at a site; empty for an auditor's trials, where nobody reads them."""
        if self.site is None and clipped.ndim > 1:
            return {}
        return {"clipped_norm": figure(l2_norm(clipped)), "noise_norm": figure(l2_norm(noise)), **others}

    def still_waiting(self) -> Waiting | None:
        """What further exchanges of the round need after the release; written together with it."""
        return None

    def work(self, theta: Tensor, state: Any, request: Request) -> Release:
        """Local training from ``theta`` [d] and the release that comes of it, with the figures of both.

        theta is a whole model, also where only a part of it came down.
        """
        trained = self.train_locally(theta, request, self.drift(state))
        return self.releasing(theta, trained, state, self.noise(request, "release"))

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        """The release that comes of a training from ``theta`` [d], with the figures of both; of one client, or of
        several at once.
        """
        return self.released(trained, self.release(trained.sent, state, noise))

    # --- parts of a participation --------------------------------------------------------------------------

    @final
    def train_locally(self, theta: Tensor, request: Request, drift: Tensor | None = None) -> Trained:
        """Local training from ``theta`` [d], a whole model; ``drift`` [d] is added to every gradient."""
        site = self._site()
        rng = self._batch_generator(request.round, request.attempt)
        result = site.trainer.train(theta, site.load_data(), rng, self.proximal_mu, drift)
        update = finite_or_zero(result.update)
        exchange = self._exchange(request)
        sent = update if exchange is None else self.outgoing(theta, update, exchange)
        norm = float(l2_norm(update if exchange is None else update[exchange.up]))
        return Trained(sent, theta + update, {"train_loss": result.loss, "update_norm": norm})

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

    def _outgoing(self, answer: Answer, figures: Mapping[str, float] | None = None) -> Outgoing:
        statistics = [] if answer.statistics is None else answer.statistics.tolist()
        named = dict(zip(self.statistic_names, statistics, strict=True)) if statistics else {}
        return Outgoing(self._site().num_examples, answer.release.numpy(), named, figures=figures or {})

    def _start(self, theta: Tensor, memory: ClientMemory, request: Request) -> Tensor:
        """The whole model [d] that this participation starts from: what came down, the client's own layers, and theta^0
        where it has trained none yet.
        """
        exchange = self._exchange(request)
        if exchange is None:
            return theta
        initial, kept = self._site().initial, memory.kept
        assert initial is not None, "a client that keeps layers needs the initial model"
        start = initial.clone()
        if kept is not None:
            start[exchange.kept] = kept
        if theta.shape != start[exchange.down].shape:
            raise ValueError(f"{theta.numel()} parameters came down, expected {start[exchange.down].numel()}")
        start[exchange.down] = theta
        return start

    def _exchange(self, request: Request) -> Exchange | None:
        """None where all layers travel."""
        if not self.traits.keeps_layers:
            return None
        layout = self._site().layout
        assert layout is not None, "a client that keeps layers needs the model's layout"
        return self.exchange(layout, request.round)

    def _kept(self, local: Tensor | None, request: Request) -> Tensor | None:
        """The client's own layers of its model after training; None where all layers travel."""
        exchange = self._exchange(request)
        if exchange is None:
            return None
        assert local is not None, "`work` of a client that keeps layers returns its local model"
        return local[exchange.kept].clone()

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

    def _entries(self, memory: ClientMemory, request: Request, charges: Sequence[Charge]) -> list[Entry]:
        return ledger_entries(memory, request, charges, self._site().client)

    def _check_budget(self, memory: ClientMemory, charges: Sequence[Charge], request: Request) -> None:
        self.check_budget(memory, charges, request, self._site().client)

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
    def batches(self, request: Request, client: int) -> np.random.Generator:
        """What draws a client's batches, where several take part at once."""
        return self._batch_generator(request.round, request.attempt, client)

    def _batch_generator(self, server_round: int, attempt: int, client: int | None = None) -> np.random.Generator:
        """Batches are repeatable in simulation; in secret where noise comes from the operating system."""
        site = self._site()
        if site.rng == "secure":
            from fedpriv.mechanisms.secure_noise import secure_generator  # cryptography: only where it is needed

            return secure_generator()
        return generator(site.seed, site.client if client is None else client, server_round, attempt, "batches")

    def _site(self) -> Site:
        if self.site is None:
            raise RuntimeError("a client without a site can be planned and audited, not trained")
        return self.site


def ledger_entries(memory: ClientMemory, request: Request, charges: Sequence[Charge], client: int) -> list[Entry]:
    """The ledger's lines for these charges, after those of earlier releases."""
    return [
        Entry(request.round, client, sequence, request.attempt, charge.event, charge.realised, charge.adaptive)
        for sequence, charge in enumerate(charges, memory.account.next_sequence)
    ]
