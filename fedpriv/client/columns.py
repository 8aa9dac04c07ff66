"""One participation of several clients at once: their updates, states, noises and releases are columns [clients, ...].

The order is that of `fedpriv.client.base.Client.answer`: budget, training, release, then ledger entries, state and
account of each client in one write, then the reply. Every client has the batches, the noise and the charges that it
would have alone, so its release has the same bits; what is saved is a hundred small computations in place of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.base import Client, ledger_entries
from fedpriv.client.contract import BudgetSpent, Charge, Figure, Release, StaleRequest, Trained, repeated_answer
from fedpriv.client.memory import Answer, ClientMemory, ContextStore, read_memory
from fedpriv.common.messages import TRAIN, Request
from fedpriv.mechanisms.clipping import finite_or_zero, l2_norm
from fedpriv.mechanisms.noise_sources import CohortNoise

#: The method for clients that take part at once, made for the declared count of the first.
MakeMethod = Callable[[tuple[int, ...]], Client]
#: Trains clients from theta [d]: (their generators of batches, clients, theta, mu, drifts [clients, d]) -> (updates
#: float32 [clients, d], mean losses float64 [clients]).
TrainAll = Callable[[Sequence[np.random.Generator], Sequence[int], Tensor, float, Tensor | None], tuple[Tensor, Tensor]]


class OneByOne(Exception):
    """These clients cannot take part at once, for a reason of this round alone; nothing has happened yet."""


@dataclass
class CohortAnswer:
    """What leaves a cohort. refused: what a client raised in place of a release, in simulation a part of the reply.

    clients: those that released, in the order in which they were asked; of them releases [clients, n], statistics
    float64 [clients, k] by ``names``, and figures by name, a number for each client that has one.
    """

    clients: list[int] = field(default_factory=list)
    releases: list[Tensor] = field(default_factory=list)
    statistics: list[list[float]] = field(default_factory=list)
    names: tuple[str, ...] = ()
    figures: list[dict[str, float]] = field(default_factory=list)
    refused: dict[int, Exception] = field(default_factory=dict)


@dataclass
class _Group:
    """Clients whose release is one computation: of one declared count, and with states of one form."""

    method: Client
    state: Any
    places: list[int]
    charges: list[tuple[Charge, ...]]


class Cohort:
    """Clients of one process that take part at once.

    make: see `MakeMethod`; num_examples: the declared counts; train: see `TrainAll`.
    """

    def __init__(self, make: MakeMethod, num_examples: Callable[[int], int], train: TrainAll) -> None:
        self.make, self.num_examples, self.train = make, num_examples, train

    def answer(
        self, clients: Sequence[int], stores: Mapping[int, ContextStore], request: Request, received: np.ndarray
    ) -> CohortAnswer:
        """The exchange TRAIN from the parameters that came down (float32 [d]).

        Raises `OneByOne` before anything is done where a client has answered this request, or a later one.
        """
        memories = {client: read_memory(stores[client]) for client in clients}
        for memory in memories.values():
            if _answered_before(memory, request):
                raise OneByOne("a client has answered this request")
        found, vector = CohortAnswer(), torch.from_numpy(received)
        groups = self._groups(clients, memories, request, vector, found)
        admitted = [clients[place] for group in groups for place in group.places]
        if not admitted:
            return found
        method = groups[0].method
        theta = method.opened(vector)
        rngs = [method.batches(request, client) for client in admitted]
        updates, losses = self.train(rngs, admitted, theta, method.proximal_mu, self._drifts(groups, theta.numel()))
        answered: dict[int, tuple[Tensor, list[float], dict[str, float]]] = {}
        start = 0
        for group in groups:
            own = slice(start, start := start + len(group.places))
            members = [clients[place] for place in group.places]
            release = self._release(group, members, request, theta, updates[own], losses[own])
            found.names = group.method.statistic_names
            rows = self._keep(group, members, memories, stores, request, release)
            answered |= dict(zip(members, rows, strict=True))
        for client in clients:
            if client in answered:
                release_of, statistics, figures = answered[client]
                found.clients.append(client)
                found.releases.append(release_of)
                found.statistics.append(statistics)
                found.figures.append(figures)
        return found

    # --- before the work -----------------------------------------------------------------------------------

    def _groups(
        self,
        clients: Sequence[int],
        memories: Mapping[int, ClientMemory],
        request: Request,
        received: Tensor,
        found: CohortAnswer,
    ) -> list[_Group]:
        """Those who may take part, by what their releases have in common; the others are refused."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        kind = self.make((clients[0],))
        counted = kind.traits.needs_facts
        for place, client in enumerate(clients):
            key = (self.num_examples(client) if counted else 0, *_form(kind, memories[client].state))
            alike.setdefault(key, []).append(place)
        groups = []
        for places in alike.values():
            members = tuple(clients[place] for place in places)
            method = self.make(members)
            if (reason := why_one_by_one(method)) is not None:  # what a class gives its objects may differ
                raise OneByOne(reason)
            try:
                method.prepare(request)
                method.opened(received)
            except Exception as error:
                found.refused |= dict.fromkeys(members, error)
                continue
            states = [memories[client].state for client in members]
            prices = self._prices(method, states, request)
            admitted = []
            for index, client in enumerate(members):
                try:
                    method.check_budget(memories[client], prices[index], request, client)
                except BudgetSpent as spent:
                    found.refused[client] = spent
                else:
                    admitted.append(index)
            if not admitted:
                continue
            if len(admitted) < len(members):
                method = self.make(tuple(members[index] for index in admitted))
                method.prepare(request)
                method.opened(received)
            state = method.load_state(_stacked(kind, [states[index] for index in admitted]))
            groups.append(
                _Group(method, state, [places[index] for index in admitted], [prices[index] for index in admitted])
            )
        return groups

    @staticmethod
    def _drifts(groups: Sequence[_Group], size: int) -> Tensor | None:
        """What is added to every gradient of each client [clients, d], in the order of the groups."""
        drifts = [group.method.drift(group.state) for group in groups]
        found = [
            drift.expand(len(group.places), size)
            for group, drift in zip(groups, drifts, strict=True)
            if drift is not None
        ]
        return torch.cat(found) if found else None

    @staticmethod
    def _prices(
        method: Client, states: Sequence[dict[str, Tensor] | None], request: Request
    ) -> list[tuple[Charge, ...]]:
        if states[0] is None or method.priced_alike:
            return [method.price(method.load_state(states[0]), request)] * len(states)
        return [method.price(method.load_state(state), request) for state in states]

    # --- the work, and what is kept of it --------------------------------------------------------------------

    @staticmethod
    def _release(
        group: _Group, members: Sequence[int], request: Request, theta: Tensor, updates: Tensor, losses: Tensor
    ) -> Release:
        method = group.method
        sent = finite_or_zero(updates)
        figures: dict[str, Figure] = {"train_loss": losses, "update_norm": l2_norm(sent)}
        noise = CohortNoise([method.noise(request, "release", client) for client in members])
        local = theta + sent if method.tests_models else None
        return method.releasing(theta, Trained(sent, local, figures), group.state, noise)

    @staticmethod
    def _keep(
        group: _Group,
        members: Sequence[int],
        memories: Mapping[int, ClientMemory],
        stores: Mapping[int, ContextStore],
        request: Request,
        release: Release,
    ) -> list[tuple[Tensor, list[float], dict[str, float]]]:
        """Writes every client's memory; returns (release [n], statistics, figures) of each."""
        method, many = group.method, len(members)
        names = method.statistic_names
        beside = torch.stack([release.statistics[name].double().expand(many) for name in names], 1) if names else None
        told = {name: _column(value, many) for name, value in release.figures.items()}
        dumped, keeps = method.dump_state(release.state), method.keeps_answer()
        found = []
        for place, client in enumerate(members):
            memory, value = memories[client], release.value[place]
            statistics = None if beside is None else beside[place]
            figures = {name: column[place] for name, column in told.items()}
            figures |= method.tested(None if release.local is None else release.local[place], client)
            answer = None
            if keeps:
                kept = None if statistics is None else statistics.clone()
                answer = Answer(request.round, request.attempt, value.clone(), kept)
            entries = ledger_entries(memory, request, group.charges[place], client)
            stores[client].keep(memory.after(_row(dumped, place), entries, answer))
            found.append((value, [] if statistics is None else statistics.tolist(), figures))
        return found


#: The steps of a participation that `Cohort` takes in its own way, as `Client` takes them.
OWN_STEPS = {
    name: vars(Client)[name]
    for name in (
        *("answer", "work", "train_locally", "still_waiting", "batches"),
        *("_start", "_exchange", "_kept", "_entries", "_check_budget", "_outgoing"),
    )
}


def why_one_by_one(method: Client) -> str | None:
    """Why clients of this method never take part at once, in words; None where they can.

    Where a step that `Cohort` takes itself is another than `Client`'s, by whatever way it came there, the cohort would
    leave it out, and with it, for instance, clipping and noise inside local training.
    """
    kind = type(method)
    if vars(kind).get("in_columns") is not True:
        return f"{kind.__name__} is not written for several clients at once (in_columns)"
    if method.exchanges != (TRAIN,):
        return f"{kind.__name__} has several exchanges in a round"
    if method.traits.keeps_layers:
        return f"{kind.__name__} keeps layers of its own"
    for name, own in OWN_STEPS.items():
        found = getattr(method, name)
        if getattr(found, "__func__", found) is not own:
            return f"{kind.__name__} has its own `{name}`, which clients that take part at once do without"
    return method.one_by_one


def _answered_before(memory: ClientMemory, request: Request) -> bool:
    """Whether this request was answered already, or is too old."""
    try:
        return repeated_answer(memory, request) is not None
    except StaleRequest:
        return True


def _form(kind: Client, state: dict[str, Tensor] | None) -> tuple[Any, ...]:
    """What states must have in common to be stacked: names, shapes, and the values of fields that are numbers."""
    if state is None:
        return (None,)
    numbers = _number_fields(kind)
    return tuple((name, float(value) if name in numbers else tuple(value.shape)) for name, value in state.items())


def _number_fields(kind: Client) -> set[str]:
    """Fields of the method's state that are numbers and not tensors."""
    if kind.State is None:
        return set()
    return {item.name for item in fields(kind.State) if item.type in ("int", "float", int, float)}


def _stacked(kind: Client, states: Sequence[dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
    """States of one `_form` as one, whose tensors have a leading dimension."""
    first, numbers = states[0], _number_fields(kind)
    if first is None:
        return None
    rows = [state for state in states if state is not None]
    return {
        name: value if name in numbers else torch.stack([row[name] for row in rows]) for name, value in first.items()
    }


def _row(state: dict[str, Tensor] | None, place: int) -> dict[str, Tensor] | None:
    """One client's part of a dumped state: fields without a leading dimension are everybody's."""
    if state is None:
        return None
    return {name: value[place].clone() if value.ndim else value for name, value in state.items()}


def _column(value: Figure, many: int) -> list[float]:
    if isinstance(value, Tensor):
        return value.double().expand(many).tolist()
    return [float(value)] * many
