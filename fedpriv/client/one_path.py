"""One participation: the order in which clients are priced, budgeted, trained, released, booked and answered.

A participation is that of a cohort, some clients of one process; a single client (a real node, a test) is a cohort of
one. Each client has the batches, the noise and the charges that it would have alone, so its release has the same bits.

All clients are trained as one batch. Releases of a method that is written for it (`Method.in_rows`) are one computation
on rows [clients, ...]; those of any other method, and of a client that is asked alone, are computed one row after the
other, without the leading dimension. Nothing is written before everything is computed, and a client's ledger entries,
state and reply are one write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.contract import LATER, BudgetSpent, Charge, Release, Row, Trained, form_of_state, rows_of, stacked
from fedpriv.client.memory import (
    Answer,
    ClientMemory,
    MemoryStore,
    StaleRequest,
    Waiting,
    answered_before,
    read_memory,
    state_to_tensors,
)
from fedpriv.client.method import Method
from fedpriv.common.messages import STATISTICS, Outgoing, Request
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.cohort_noise import CohortNoise
from fedpriv.mechanisms.device_errors import nobodys_own
from fedpriv.mechanisms.noise import finite_or_zero, l2_norm
from fedpriv.training.sequential import Clipping

if TYPE_CHECKING:
    from fedpriv.common.identities import Identity

log = logging.getLogger("fedpriv")


@dataclass(frozen=True)
class Asked:
    """A client, its memory, what it is asked, its key on a real machine, and Flower's run id."""

    client: int
    store: MemoryStore
    request: Request
    identity: Identity | None = None
    run_id: int = 0


@dataclass
class Answered:
    """What leaves a cohort: of each client that answered its reply, of every other what it raised in place of one."""

    replies: dict[int, Outgoing] = field(default_factory=dict)
    refused: dict[int, Exception] = field(default_factory=dict)


#: The method for these clients: of one alone, or of all rows of a computation.
MakeMethod = Callable[[Sequence[Asked]], Method]
#: Trains clients: (clients, their generators of batches, start [d] or [clients, d], mu, drifts [clients, d] or None) ->
#: (updates float32 [clients, d], mean losses float64 [clients]).
Train = Callable[[Sequence[int], Sequence[np.random.Generator], Tensor, float, Tensor | None], tuple[Tensor, Tensor]]
#: Sums of clipped gradients, one for each request.
Clip = Callable[[Sequence[Clipping]], list[ClippedSum]]


@dataclass
class _Group:
    """Clients whose release is one computation: rows of one declared count and one form of state, or a single client.

    theta: the start of local training [d], a whole model.
    """

    method: Method
    members: list[Asked]
    memories: list[ClientMemory]
    charges: list[tuple[Charge, ...]]
    rows: bool
    state: Any
    theta: Tensor

    @property
    def request(self) -> Request:
        return self.members[0].request


class Participation:
    """Clients of one process that take part in an exchange of a round.

    kind: the method, of no client yet; num_examples: declared counts; make, train, clip: see the types above; apart:
    whether each client is computed alone; alike: whether equal requests cost the same, so that one price is enough.
    """

    def __init__(
        self,
        kind: Method,
        make: MakeMethod,
        num_examples: Callable[[int], int],
        train: Train,
        clip: Clip,
        apart: bool = False,
        alike: bool = False,
    ) -> None:
        self.kind, self.make, self.num_examples, self.train, self.clip = kind, make, num_examples, train, clip
        self.apart, self.alike, self.names = apart or kind.why_single is not None, alike, kind.statistics.names
        self._priced: tuple[Any, Any] = (None, None)  # the newest (what was asked, its prices)
        self._keeps: tuple[Any, bool] = (None, True)  # the newest (charges, whether an answer at this price is kept)

    def answer(self, asked: Sequence[Asked], received: np.ndarray | None) -> Answered:
        """received: the parameters that came down (float32 [d_down]), None where none did.

        A repeated request gets the same bytes; an older one is refused by `StaleRequest`, a release beyond the budget
        by `BudgetSpent`. Where a common computation fails, each client is computed alone: memory may be full, or one
        client's data broken. What the trainer raises besides is nobody's own, and refuses all.
        """
        try:
            return self._answer(asked, received)
        except Exception as error:
            if len(asked) == 1 or nobodys_own(error, (self.train, self.clip)):
                return Answered(refused=dict.fromkeys((one.client for one in asked), error))
            log.warning("a cohort is computed client by client: %s: %s", type(error).__name__, error)
        found = Answered()
        for one in asked:
            alone = self.answer([one], received)
            found.replies |= alone.replies
            found.refused |= alone.refused
        return found

    def _answer(self, asked: Sequence[Asked], received: np.ndarray | None) -> Answered:
        found = Answered()
        groups = self._admitted(asked, received, found)
        computed = self._computed(groups)
        for group, rows in zip(groups, computed, strict=True):
            for number, one in enumerate(group.members):
                try:
                    found.replies[one.client] = self._kept(group, number, rows[number])
                except Exception as error:  # e.g. a full disk: nothing leaves that is not booked
                    found.refused[one.client] = error
        return found

    # --- before the work -------------------------------------------------------------------------------------

    def _admitted(self, asked: Sequence[Asked], received: np.ndarray | None, found: Answered) -> list[_Group]:
        """Those who may take part, by what their releases have in common; the others are answered or refused."""
        alike: dict[Any, list[tuple[Asked, ClientMemory]]] = {}
        apart = self.apart or len(asked) == 1
        for one in asked:
            try:
                memory = read_memory(one.store)
                if (known := answered_before(memory, one.request, self.kind.traits.measures_first)) is not None:
                    found.replies[one.client] = self._told(one, *known)
                    continue
            except StaleRequest as stale:
                found.refused[one.client] = stale
                continue
            singly = apart or self.kind.traits.own_requests
            alike.setdefault(one.client if singly else self._form(one, memory), []).append((one, memory))
        groups = []
        for members in alike.values():
            try:
                group = self._group(members, received, found)
            except Exception as error:
                if len(members) > 1:  # whose it is shows where each is alone
                    raise
                found.refused[members[0][0].client] = error
            else:
                groups += [group] if group is not None else []
        return groups

    def _form(self, one: Asked, memory: ClientMemory) -> Any:
        """What the rows of one computation have in common."""
        return (*self._asked(one), *form_of_state(self.kind.traits.State, memory.state))

    def _asked(self, one: Asked) -> tuple[Any, ...]:
        """All that clients of one method may be told that is not the same."""
        counted = self.num_examples(one.client) if self.kind.traits.needs_facts else 0
        return one.request.round, one.request.attempt, one.request.exchange, repr(one.request.options), counted

    def _group(
        self, members: Sequence[tuple[Asked, ClientMemory]], received: np.ndarray | None, found: Answered
    ) -> _Group | None:
        """The clients whose budgets admit the release; None where there are none. Raises what a method says of what it
        was sent.
        """
        method, theta = self._prepared(members, received)
        prices = self._prices(method, members)
        admitted = []
        for member, (charges, following) in zip(members, prices, strict=True):
            (one, memory), request = member, member[0].request
            try:
                method.check_budget(memory, (*charges, *following), request, one.client)
            except BudgetSpent as spent:
                found.refused[one.client] = spent
            else:
                admitted.append((member, charges))
        if not admitted:
            return None
        stayed = [member for member, _ in admitted]
        if len(stayed) < len(members):
            method, theta = self._prepared(stayed, received)
        memories = [memory for _, memory in stayed]
        states = [memory.state for memory in memories]
        rows = len(stayed) > 1
        state = method.load_state(stacked(method.traits.State, states) if rows else states[0])
        return _Group(
            method, [one for one, _ in stayed], memories, [charges for _, charges in admitted], rows, state, theta
        )

    def _prepared(
        self, members: Sequence[tuple[Asked, ClientMemory]], received: np.ndarray | None
    ) -> tuple[Method, Tensor]:
        """(the method after it took the request, the whole model [d] that training starts from)."""
        method = self.make([one for one, _ in members])
        one, memory = members[0]
        down = () if received is None else torch.from_numpy(received.copy()).chunk(method.traits.vectors_down)
        method.begin(one.request, down)
        return method, method.start_from(down[0], memory, one.request) if down else torch.zeros(0)

    def _prices(
        self, method: Method, members: Sequence[tuple[Asked, ClientMemory]]
    ) -> list[tuple[tuple[Charge, ...], tuple[Charge, ...]]]:
        """(what is booked with this exchange, what will follow in the round) of each client."""

        one, first = members[0]
        if method.traits.measures_first and not method.measuring and first.waiting is not None:
            method.recall(first.waiting)
        asked = (*self._asked(one), first.state is None)
        if not self.alike or asked != self._priced[0]:
            if first.state is not None and any(charge.adaptive for charge in method.all_charges(LATER)):
                return [method.due(method.load_state(memory.state)) for _, memory in members]
            price = method.due(method.load_state(first.state))
            if not self.alike:
                return [price] * len(members)
            self._priced = asked, price
        return [self._priced[1]] * len(members)

    # --- the work --------------------------------------------------------------------------------------------

    def _computed(self, groups: Sequence[_Group]) -> list[list[Row]]:
        """Each client's own row, of every group."""
        if not groups:
            return []
        kind, exchange = groups[0].method, groups[0].request.exchange
        if kind.traits.clips_examples:
            return [[_alone(release)] for release in self._in_steps(groups)]
        if exchange != kind.traits.trains_in:
            return [[_alone(self._after_statistics(group))] for group in groups]
        trained = self._trained(groups)
        if kind.traits.own_requests and len(groups) > 1 and not self.apart:
            return [[row] for row in self._released(_beside(groups), *map(torch.cat, zip(*trained, strict=True)))]
        return [self._released(group, *own) for group, own in zip(groups, trained, strict=True)]

    def _trained(self, groups: Sequence[_Group]) -> list[tuple[Tensor, Tensor]]:
        """(updates [rows, d], losses [rows]) of every group; those that train in the same form are one batch."""
        rules = [group.method.local(group.state) for group in groups]
        forms = [(rule.proximal_mu, rule.drift is None) for rule in rules]
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for form in dict.fromkeys(forms):
            chosen = [number for number, own in enumerate(forms) if own == form]
            some = [groups[number] for number in chosen]
            asked = [(group, one) for group in some for one in group.members]
            rngs = [group.method.batches(one.request, one.client) for group, one in asked]
            pulls = [] if form[1] else [_each(groups[number], rules[number].drift) for number in chosen]
            updates, losses = self.train(
                [one.client for _, one in asked], rngs, _starts(some), form[0], torch.cat(pulls) if pulls else None
            )
            sizes = [len(group.members) for group in some]
            found |= zip(chosen, zip(updates.split(sizes), losses.split(sizes), strict=True), strict=True)
        return [found[number] for number in range(len(groups))]

    def _released(self, group: _Group, updates: Tensor, losses: Tensor) -> list[Row]:
        """The releases that come of a group's updates [rows, d]."""
        method, updates = group.method, finite_or_zero(updates)
        if not group.rows:
            updates, losses = updates[0], losses[0]
        layers = method.travelling(group.request)
        sent = updates if layers is None else layers.sent(group.theta, updates)
        norms = l2_norm(updates if layers is None else updates[layers.up])
        local = group.theta + updates if layers is not None or method.tests_models else None
        trained = Trained(sent, local, {"train_loss": losses, "update_norm": norms})
        sources = [method.noise(one.request, method.purpose, one.client) for one in group.members]
        noise = CohortNoise(sources) if group.rows else sources[0]
        release = method.releasing(group.theta, trained, group.state, noise)
        return rows_of(release, len(group.members), self.names) if group.rows else [_alone(release)]

    @staticmethod
    def _after_statistics(group: _Group) -> Release:
        """The release of the update that was measured in the round's first exchange, by one client."""
        method, memory = group.method, group.memories[0]
        assert memory.waiting is not None, "`_known` says so"
        trained = method.recall(memory.waiting)
        (one,) = group.members
        noise = method.noise(one.request, method.purpose, one.client)
        return method.releasing(group.theta, trained, group.state, noise)

    def _in_steps(self, groups: Sequence[_Group]) -> list[Release]:
        """The releases of single clients whose training has noise of its own in every step: all ask for their clipped
        sums (`Method.steps`), which are computed as one batch, and go on with them.
        """
        under_way = dict(enumerate(group.method.steps(group.theta, group.state, group.request) for group in groups))
        replies: dict[int, ClippedSum | None] = dict.fromkeys(under_way)
        found: dict[int, Release] = {}
        while under_way:
            wanted: dict[int, Clipping] = {}
            for number, steps in list(under_way.items()):
                try:
                    reply = replies[number]
                    wanted[number] = next(steps) if reply is None else steps.send(reply)
                except StopIteration as end:
                    found[number] = end.value
                    del under_way[number]
            if wanted:
                replies = dict(zip(wanted, self.clip(list(wanted.values())), strict=True))
        return [found[number] for number in range(len(groups))]

    # --- what is kept and told -------------------------------------------------------------------------------

    def _kept(self, group: _Group, number: int, row: Row) -> Outgoing:
        """Writes a client's entries, state and answer, then gives its reply."""
        method, one, memory, release = group.method, group.members[number], group.memories[number], row.release
        request, trains = one.request, one.request.exchange == method.traits.trains_in
        measures = request.exchange == STATISTICS
        names = self.names if measures or not method.traits.measures_first else ()
        told = [release.statistics[name].double() for name in names]
        statistics = torch.stack(told) if told else torch.zeros(0, dtype=torch.float64) if measures else None
        figures = {name: float(value) for name, value in release.figures.items()}
        kept = memory.kept
        if trains:
            figures |= method.tested(release.local, one.client)
            layers = method.travelling(request)
            assert layers is None or release.local is not None, "`releasing` keeps the local model"
            kept = None if layers is None else release.local[layers.kept].clone()  # type: ignore[index]
        answer, waiting, charges = memory.answer, release.waiting, group.charges[number]
        if measures:
            left = {"update": release.value, "statistics": statistics}
            waiting = Waiting(request.round, request.attempt, left, figures)  # type: ignore[arg-type]
        else:  # a release without noise has no noise key to protect: nothing is kept of it
            if self._keeps[0] != charges:
                self._keeps = charges, method.keeps_answer(charges)
            keeps = self._keeps[1] or waiting is not None
            shared = release.value.untyped_storage().nbytes() > release.value.nbytes  # a view of the cohort's
            value = release.value.clone() if shared else release.value
            answer = Answer(request.round, request.attempt, value, statistics) if keeps else None
        entries = method.entries(memory, request, charges, one.client)
        one.store.keep(memory.after(row.state, entries, answer, kept, waiting))
        if measures:
            return self._told(one, None, statistics)
        return self._told(one, release.value, statistics, figures)

    def _told(
        self, one: Asked, release: Tensor | None, statistics: Tensor | None, figures: Mapping[str, float] | None = None
    ) -> Outgoing:
        beside = [] if statistics is None else statistics.tolist()
        named = dict(zip(self.names, beside, strict=True)) if beside else {}
        value = None if release is None else release.numpy()
        return Outgoing(self.num_examples(one.client), value, named, figures=figures or {})


def _beside(groups: Sequence[_Group]) -> _Group:
    """Clients that were prepared one by one as rows of one computation."""
    method = copy(groups[0].method)
    method._each = tuple(group.method for group in groups)
    return replace(groups[0], method=method, members=[one for group in groups for one in group.members], rows=True)


def _alone(release: Release) -> Row:
    return Row(release, state_to_tensors(release.state))


def _each(group: _Group, vector: Tensor | None) -> Tensor:
    """A vector [d] or [rows, d] as one for each row."""
    assert vector is not None, "the form says so"
    return vector.expand(len(group.members), group.theta.numel())


def _starts(groups: Sequence[_Group]) -> Tensor:
    """Where training starts: one model [d] for all, or each client's own [clients, d]."""
    first = groups[0].theta
    if all(group.theta is first or torch.equal(group.theta, first) for group in groups):
        return first
    return torch.cat([_each(group, group.theta) for group in groups])
