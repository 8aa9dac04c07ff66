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
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.contract import (
    LATER,
    BudgetSpent,
    Charge,
    Release,
    Trained,
    form_of_state,
    single,
    stacked,
)
from fedpriv.client.memory import (
    Answer,
    ClientMemory,
    MemoryStore,
    Shelved,
    StaleRequest,
    Waiting,
    answered_before,
    read_memory,
    state_to_tensors,
)
from fedpriv.client.method import Method
from fedpriv.common.errors import OptionError, OwnCodeError, WrongForm
from fedpriv.common.messages import STATISTICS, Outgoing, Request
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.cohort_noise import CohortNoise
from fedpriv.mechanisms.device_errors import failed, nobodys_own
from fedpriv.mechanisms.noise import finite_or_zero, l2_norm
from fedpriv.mechanisms.step_gradients import StepGradient
from fedpriv.privacy.events import Account, Entry
from fedpriv.training.sequential import Clipping, LocalData

if TYPE_CHECKING:
    from fedpriv.common.identities import Identity

log = logging.getLogger("fedpriv")


@dataclass(frozen=True)
class Asked:
    """A client, or several that share a memory and a request; their key on a real machine, and Flower's run id."""

    clients: tuple[int, ...]
    store: MemoryStore
    request: Request
    identity: Identity | None = None
    run_id: int = 0

    @property
    def rows(self) -> Sequence[int] | None:
        """Of several clients in the vectors of the memory that they share."""
        return self.store.rows if isinstance(self.store, Shelved) else None

    def each(self) -> Iterator[Asked]:
        """Each client by itself."""
        if len(self.clients) == 1:
            yield self
        elif isinstance(self.store, Shelved):
            yield from (replace(self, clients=one.clients, store=one) for one in self.store.each())


Figures = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Rows:
    """What leaves clients of one computation: releases [clients, n] (None in an exchange without), statistics [clients,
    k] by their names, and figures for the experimenter; None: a client has none.
    """

    clients: Sequence[int]
    release: Tensor | None
    statistics: Mapping[str, Sequence[float]]
    figures: Figures


@dataclass
class Answered:
    """What leaves a cohort: replies of those that answered, of every other what it raised in place of one."""

    rows: list[Rows] = field(default_factory=list)
    refused: dict[int, Exception] = field(default_factory=dict)
    num_examples: Callable[[int], int] = lambda client: 0

    @cached_property
    def replies(self) -> dict[int, Outgoing]:
        """Each client's own."""
        found = {}
        for part in self.rows:
            releases = [None] * len(part.clients) if part.release is None else [*part.release.numpy()]
            for row, client in enumerate(part.clients):
                beside = {name: values[row] for name, values in part.statistics.items()}
                figures = {name: own for name, values in part.figures.items() if (own := values[row]) is not None}
                found[client] = Outgoing(self.num_examples(client), releases[row], beside, figures=figures)
        return found


#: The method for these clients: of one alone, or of all rows of a computation.
MakeMethod = Callable[[Sequence[Asked]], Method]
#: Trains clients: (clients, their generators of batches, start [d] or [clients, d], mu, drifts [clients, d] or None,
#: what their steps go along) -> (updates float32 [clients, d] where the model is, mean losses float64 [clients]).
Train = Callable[
    [Sequence[int], Sequence[np.random.Generator], Tensor, float, Tensor | None, StepGradient | None],
    tuple[Tensor, Tensor],
]
#: Sums of clipped gradients, one for each request.
Clip = Callable[[Sequence[Clipping]], list[ClippedSum]]


@dataclass
class _Group:
    """Clients whose release is one computation: rows of one declared count and one form of state, or a single client.

    members: with their memories and charges. theta: the start of local training [d], a whole model.
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

    @cached_property
    def clients(self) -> list[int]:
        return [client for one in self.members for client in one.clients]


class Participation:
    """Clients of one process that take part in an exchange of a round.

    kind: the method, of no client yet; num_examples: declared counts; make, train, clip: see the types above; apart:
    whether each client is computed alone; alike: whether equal requests cost the same, so that one price is enough;
    foreign: whether training runs code of the user's.
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
        foreign: bool = False,
    ) -> None:
        self.kind, self.make, self.num_examples, self.foreign = kind, make, num_examples, foreign
        self.train: Train = _staying(train) if foreign else train
        self.clip: Clip = _staying(clip) if foreign else clip
        self.apart, self.alike, self.names = apart or kind.why_single is not None, alike, kind.statistics.names
        own = {"in_rows", "traits"} <= vars(type(kind)).keys()  # what a derived class computes may be elsewhere
        self.on_device = own and kind.traits.on_device and kind.traits.State is None and not self.names
        self._priced: tuple[Any, Any] = (None, None)  # the newest (what was asked, its prices)
        self._keeps: tuple[Any, bool] = (None, True)  # the newest (charges, whether an answer at this price is kept)
        self._told: tuple[Any, str] = (None, "")  # the newest (options of a request, as text)
        self._books: tuple[Any, dict[Any, Any], dict[Any, Account]] = (None, {}, {})  # of the newest round

    def answer(self, asked: Sequence[Asked], received: np.ndarray | None) -> Answered:
        """received: the parameters that came down (float32 [d_down]), None where none did.

        A repeated request gets the same bytes; an older one is refused by `StaleRequest`, a release beyond the budget
        by `BudgetSpent`. Where a common computation fails, each client is computed alone: memory may be full, or one
        client's data broken. What the project's trainer raises besides is nobody's own, and refuses all. Code of the
        user's may raise for one client's data alone: `_hides`.
        """
        try:
            return self._answer(asked, received)
        except Exception as error:
            clients = [client for one in asked for client in one.clients]
            common = failed(error) if self.foreign else nobodys_own(error, (self.train, self.clip))
            if len(clients) == 1 or common:
                return Answered(refused=dict.fromkeys(clients, error))
            log.warning("a cohort is computed client by client: %s: %s", type(error).__name__, error)
        found = Answered(num_examples=self.num_examples)
        for one in asked:
            for client in one.each():
                alone = self.answer([client], received)
                found.rows += alone.rows
                found.refused |= alone.refused
        return found

    def _answer(self, asked: Sequence[Asked], received: np.ndarray | None) -> Answered:
        found = Answered(num_examples=self.num_examples)
        groups = self._admitted(asked, received, found)
        for group, release in zip(groups, self._computed(groups), strict=True):
            self._kept(group, release, found)
        return found

    # --- before the work -------------------------------------------------------------------------------------

    def _admitted(self, asked: Sequence[Asked], received: np.ndarray | None, found: Answered) -> list[_Group]:
        """Those who may take part, by what their releases have in common; the others are answered or refused."""
        alike: dict[Any, list[tuple[Asked, ClientMemory]]] = {}
        apart = self.apart or sum(len(one.clients) for one in asked) == 1
        for one in self._divided(asked, apart or self.kind.traits.own_requests):
            try:
                memory = read_memory(one.store)
                if (known := answered_before(memory, one.request, self.kind.traits.measures_first)) is not None:
                    release, told = (part if part is None else part[None] for part in known)
                    found.rows.append(self._rows(one.clients, release, told, {}))
                    continue
            except StaleRequest as stale:
                found.refused |= dict.fromkeys(one.clients, stale)
                continue
            singly = apart or self.kind.traits.own_requests
            alike.setdefault(one.clients if singly else self._form(one, memory), []).append((one, memory))
        groups = []
        for members in alike.values():
            try:
                group = self._group(members, received, found)
            except Exception as error:
                if len(members) > 1 or len(members[0][0].clients) > 1:  # whose it is shows where each is alone
                    raise
                found.refused[members[0][0].clients[0]] = error
            else:
                groups += [group] if group is not None else []
        return groups

    def _divided(self, asked: Sequence[Asked], singly: bool) -> Iterator[Asked]:
        """Clients that are members of one computation together; each by itself where that depends on more than what
        they share.
        """
        for one in asked:
            counts = {self.num_examples(client) for client in one.clients} if self.kind.traits.needs_facts else {0}
            divided = singly or len(counts) > 1 or (one.rows is not None and self._priced_by_state)
            yield from one.each() if divided else (one,)

    @cached_property
    def _priced_by_state(self) -> bool:
        return any(charge.adaptive for charge in self.kind.all_charges(LATER))

    def _form(self, one: Asked, memory: ClientMemory) -> Any:
        """What the rows of one computation have in common."""
        return (*self._asked(one), *form_of_state(self.kind.traits.State, memory.state, one.rows is not None))

    def _asked(self, one: Asked) -> tuple[Any, ...]:
        """All that clients of one method may be told that is not the same."""
        counted, request = self.num_examples(one.clients[0]) if self.kind.traits.needs_facts else 0, one.request
        if self._told[0] is not request.options:
            self._told = request.options, repr(request.options)
        return request.round, request.attempt, request.exchange, self._told[1], counted

    def _group(
        self, members: Sequence[tuple[Asked, ClientMemory]], received: np.ndarray | None, found: Answered
    ) -> _Group | None:
        """The clients whose budgets admit the release; None where there are none. Raises what a method says of what it
        was sent.
        """
        method, theta = self._prepared(members, received)
        prices = self._prices(method, members)
        admitted = []
        for (one, memory), (charges, following) in zip(members, prices, strict=True):
            try:
                method.check_budget(memory, (*charges, *following), one.request)
            except BudgetSpent as spent:
                found.refused |= {client: spent.of(client) for client in one.clients}
            else:
                admitted.append((one, memory, charges))
        if not admitted:
            return None
        stayed = [(one, memory) for one, memory, _ in admitted]
        if len(stayed) < len(members):
            method, theta = self._prepared(stayed, received)
        asked, memories, own_charges = map(list, zip(*admitted, strict=True))
        rows = sum(len(one.clients) for one in asked) > 1
        states = [(memory.state, one.rows) for one, memory in stayed]
        state = method.load_state(stacked(method.traits.State, states) if rows else states[0][0])
        return _Group(method, asked, memories, own_charges, rows, state, theta)

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
            if first.state is not None and self._priced_by_state:
                return [method.due(method.load_state(memory.state)) for _, memory in members]
            own = first.state if one.rows is None else first.of(one.clients[0], one.rows[0]).state
            price = method.due(method.load_state(own))
            if not self.alike:
                return [price] * len(members)
            self._priced = asked, price
        return [self._priced[1]] * len(members)

    # --- the work --------------------------------------------------------------------------------------------

    def _computed(self, groups: Sequence[_Group]) -> list[Release]:
        """The releases of every group: rows, or one client's without the leading dimension."""
        if not groups:
            return []
        kind, exchange = groups[0].method, groups[0].request.exchange
        if kind.traits.clips_examples:
            return self._in_steps(groups)
        if exchange != kind.traits.trains_in:
            return [self._after_statistics(group) for group in groups]
        trained = self._trained(groups)
        if kind.traits.own_requests and len(groups) > 1 and not self.apart:
            rows = self._released(_beside(groups), *map(torch.cat, zip(*trained, strict=True)))
            return [single(rows, row) for row in range(len(groups))]
        return [self._released(group, *own) for group, own in zip(groups, trained, strict=True)]

    def _trained(self, groups: Sequence[_Group]) -> list[tuple[Tensor, Tensor]]:
        """(updates [rows, d], losses [rows]) of every group; those that train in the same form are one batch."""
        rules = [group.method.local(group.state) for group in groups]
        forms = [(rule.proximal_mu, rule.drift is None, id(rule.gradient)) for rule in rules]
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for form in dict.fromkeys(forms):
            chosen = [number for number, own in enumerate(forms) if own == form]
            some = [groups[number] for number in chosen]
            clients = [client for group in some for client in group.clients]
            rngs = [rng for group in some for rng in group.method.batches_of(group.request, group.clients)]
            pulls = [] if form[1] else [_each(groups[number], rules[number].drift) for number in chosen]
            drifts, gradient = torch.cat(pulls) if pulls else None, rules[chosen[0]].gradient
            updates, losses = self._updates(some[0], clients, rngs, _starts(some), form[0], drifts, gradient)
            sizes = [len(group.clients) for group in some]
            found |= zip(chosen, zip(updates.split(sizes), losses.split(sizes), strict=True), strict=True)
        return [found[number] for number in range(len(groups))]

    def _updates(self, group: _Group, clients: Sequence[int], *asked: Any) -> tuple[Tensor, Tensor]:
        """As `Train`; a zero update, as of a client without examples, in the place of what raises (`_hides`)."""
        try:
            return self.train(clients, *asked)
        except Exception as error:
            if not self._hides(error, group, clients):
                raise
        return torch.zeros(1, group.theta.numel()), torch.zeros(1, dtype=torch.float64)

    def _clipped(self, groups: Sequence[_Group], wanted: Sequence[Clipping]) -> list[ClippedSum]:
        """As `Clip`. Where that raises (`_hides`), a client's sum is of each example, or person, alone, and who raises
        adds nothing: a sum of nothing in its place would move by what all others add. All others' gradients keep their
        bits, since they are computed in blocks of the same shape (4a of `fedpriv.mechanisms.per_example`): so an
        example that raises, in another's place, moves the sum by the other's alone. groups: of all that go on.
        """
        clients = [client for group in groups for client in group.clients]
        try:
            return self.clip(wanted)
        except Exception as error:
            if wanted[0].chosen != "given" or not self._hides(error, groups[0], clients):
                raise
        (asked,) = wanted
        data, unit = asked.data, asked.data.unit
        numbers, parts = torch.arange(len(data)) if unit is None else unit, []
        for own in (numbers == number for number in numbers.unique()):
            one = LocalData(data.inputs[own], data.targets[own], None if unit is None else unit[own])
            try:
                parts += self.clip([replace(asked, data=one)])
            except Exception as error:
                if not self._hides(error, groups[0], clients):
                    raise
        total = torch.zeros(asked.theta.numel(), dtype=torch.float64, device=parts[0].total.device if parts else None)
        for part in parts:
            total += part.total
        norms = torch.cat([torch.zeros(0, dtype=torch.float64), *(part.norms.cpu() for part in parts)])
        return [ClippedSum(total, norms, sum(part.loss for part in parts) / max(1, len(parts)))]

    def _hides(self, error: Exception, group: _Group, clients: Sequence[int]) -> bool:
        """Whether noise hides what the user's code raised in a single client's training: whether a client answers would
        tell of its data without any noise. Not where releases have none.
        """
        of_the_code = isinstance(error, OptionError | WrongForm) and not isinstance(error, OwnCodeError)
        if not self.foreign or len(clients) > 1 or of_the_code or failed(error):
            return False
        if group.method.exact_leak() is not None:
            return False
        words = "client %d: its training raised, and zero with noise takes its place"
        log.error(words, clients[0], exc_info=error)
        return True

    def _released(self, group: _Group, updates: Tensor, losses: Tensor) -> Release:
        """The releases that come of a group's updates [rows, d]. They leave the model's device once, as releases where
        the method computes them there, else before.
        """
        method, layers = group.method, group.method.travelling(group.request)
        stays = self.on_device and layers is None and not method.tests_models
        updates = finite_or_zero(updates if stays else updates.cpu())
        if not group.rows:
            updates, losses = updates[0], losses[0]
        sent = updates if layers is None else layers.sent(group.theta, updates)
        norms = l2_norm(updates if layers is None else updates[layers.up])
        local = group.theta + updates if layers is not None or method.tests_models else None
        trained = Trained(sent, local, {"train_loss": losses, "update_norm": norms})
        sources = [method.noise(group.request, method.purpose, client) for client in group.clients]
        noise = CohortNoise(sources) if group.rows else sources[0]
        release = method.releasing(group.theta, trained, group.state, noise)
        if release.value.device == group.theta.device:
            return release
        figures = {name: own.cpu() if isinstance(own, Tensor) else own for name, own in release.figures.items()}
        return replace(release, value=release.value.cpu(), figures=figures)

    @staticmethod
    def _after_statistics(group: _Group) -> Release:
        """The release of the update that was measured in the round's first exchange, by one client."""
        method, memory = group.method, group.memories[0]
        assert memory.waiting is not None, "`_known` says so"
        trained = method.recall(memory.waiting)
        noise = method.noise(group.request, method.purpose, *group.clients)
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
                replies = dict(zip(wanted, self._clipped(groups, list(wanted.values())), strict=True))
        return [found[number] for number in range(len(groups))]

    # --- what is kept and told -------------------------------------------------------------------------------

    def _kept(self, group: _Group, release: Release, found: Answered) -> None:
        """Writes each client's entries, state and answer, then gives its reply."""
        method, request, clients = group.method, group.request, group.clients
        trains, measures = request.exchange == method.traits.trains_in, request.exchange == STATISTICS
        many, layers = len(clients), method.travelling(request) if trains else None
        column: Callable[[Tensor], Tensor] = (lambda tensor: tensor) if group.rows else lambda tensor: tensor[None]
        names = self.names if measures or not method.traits.measures_first else ()
        told = [column(release.statistics[name].double()).expand(many) for name in names]
        statistics = torch.stack(told, 1) if told else torch.zeros(many, 0).double() if measures else None
        figures: dict[str, Sequence[float | None]] = {
            name: value.double().expand(many).tolist() if isinstance(value, Tensor) else [float(value)] * many
            for name, value in release.figures.items()
        }
        if trains and method.tests_models and release.local is not None:
            tested = [method.tested(*pair) for pair in zip(column(release.local), clients, strict=True)]
            figures |= {name: [own.get(name) for own in tested] for name in dict.fromkeys(chain(*tested))}
        value, state = column(release.value), state_to_tensors(release.state)
        local = None if layers is None or release.local is None else column(release.local)
        for part in self._alike(group, layers is not None or measures):
            memory, row = part.memory, part.rows[0]
            rows = part.among if len(part.rows) > 1 else row  # a single client's has no leading dimension
            if self._keeps[0] != part.charges:
                self._keeps = part.charges, method.keeps_answer(part.charges)
            answer, waiting, kept = memory.answer if measures else None, release.waiting, memory.kept
            if not measures and (self._keeps[1] or waiting is not None):
                # a release without noise has no noise key to protect: nothing is kept of it
                beside = None if statistics is None else statistics[rows]
                answer = Answer(request.round, request.attempt, value[rows], beside)
            own_figures = {name: [values[place] for place in part.rows] for name, values in figures.items()}
            if measures:
                assert statistics is not None, "zeros, if there are none"
                left = {"update": value[row], "statistics": statistics[row]}
                numbers: Any = {name: values[0] for name, values in own_figures.items()}
                waiting = Waiting(request.round, request.attempt, left, numbers)
            if layers is not None:
                assert local is not None, "`releasing` keeps the local model"
                kept = local[row][layers.kept]
            after = state
            if state is not None and group.rows:
                after = {name: column[rows] if column.ndim else column for name, column in state.items()}
            try:
                uncollected = (*memory.uncollected, *part.entries)
                part.store.keep(ClientMemory(after, part.account, uncollected, answer, kept, waiting))
            except Exception as error:  # e.g. a full disk: nothing leaves that is not booked
                found.refused |= dict.fromkeys(part.clients, error)
            else:
                beside = None if statistics is None else statistics[part.among]
                found.rows.append(
                    self._rows(
                        part.clients, None if measures else value[part.among], beside, {} if measures else own_figures
                    )
                )

    def _alike(self, group: _Group, singly: bool) -> list[Part]:
        """Of a group those who remember the same from now on, but for vectors."""
        parts, first = dict[Any, Part](), 0
        for one, memory, charges in zip(group.members, group.memories, group.charges, strict=True):
            entries, account = self._booked(group.method, memory.account, group.request, charges, one.clients[0])
            rows, first = range(first, first + len(one.clients)), first + len(one.clients)
            if singly or memory.uncollected or not isinstance(one.store, Shelved):
                for row, own in zip(rows, one.each(), strict=True):
                    if not isinstance(one.store, Shelved):  # which tells whose an entry is
                        entries = tuple(replace(entry, client=one.clients[0]) for entry in entries)
                    parts[row] = Part(own, memory, charges, entries, account, [row], list(own.clients))
                continue
            key = id(account), memory.account.next_sequence, id(charges)
            if key in parts:
                parts[key].rows += rows
                parts[key].clients += one.clients
            else:
                parts[key] = Part(one, memory, charges, entries, account, list(rows), list(one.clients))
        return list(parts.values())

    def _booked(
        self, method: Method, account: Account, request: Request, charges: tuple[Charge, ...], client: int
    ) -> tuple[tuple[Entry, ...], Account]:
        """(a client's entries for these charges, its account after them): who had spent the same shares both."""
        if self._books[0] != (request.round, request.attempt):
            self._books = (request.round, request.attempt), {}, {}
        _, known, accounts = self._books
        if (key := (id(account), id(charges))) not in known:
            entries = tuple(method.entries(account, request, charges, client))
            after = account.after(entries)
            # Both stay here, so that their ids are nobody else's.
            known[key] = (entries, accounts.setdefault(after.key, after)), account, charges
        found: tuple[tuple[Entry, ...], Account] = known[key][0]
        return found

    def _rows(
        self, clients: Sequence[int], release: Tensor | None, statistics: Tensor | None, figures: Figures
    ) -> Rows:
        beside = {} if statistics is None else dict(zip(self.names, statistics.T.tolist(), strict=True))
        return Rows(clients, release, beside, figures)


@dataclass
class Part:
    """Rows of a group that are kept together, with the request of the first and what it remembers and books."""

    one: Asked
    memory: ClientMemory
    charges: tuple[Charge, ...]
    entries: tuple[Entry, ...]
    account: Account
    rows: list[int]
    clients: list[int]

    @property
    def among(self) -> Any:
        """Their rows as an index of the group's: a view, where they are side by side."""
        first, end = self.rows[0], self.rows[-1] + 1
        return slice(first, end) if len(self.rows) == end - first else self.rows

    @property
    def store(self) -> MemoryStore:
        several = len(self.rows) > 1 and isinstance(self.one.store, Shelved)
        return Shelved(self.one.store.shelf, tuple(self.clients)) if several else self.one.store  # type: ignore[attr-defined]


def _staying(computation: Callable[..., Any]) -> Callable[..., Any]:
    """A computation that ends no process: that would tell of the data as any other error would."""

    def computed(*given: Any) -> Any:
        try:
            return computation(*given)
        except SystemExit as error:
            raise RuntimeError(f"SystemExit: {error}") from error

    return computed


def _beside(groups: Sequence[_Group]) -> _Group:
    """Clients that were prepared one by one as rows of one computation."""
    method = copy(groups[0].method)
    method._each = tuple(group.method for group in groups)
    return replace(groups[0], method=method, members=[one for group in groups for one in group.members], rows=True)


def _each(group: _Group, vector: Tensor | None) -> Tensor:
    """A vector [d] or [rows, d] as one for each row."""
    assert vector is not None, "the form says so"
    return vector.expand(len(group.clients), group.theta.numel())


def _starts(groups: Sequence[_Group]) -> Tensor:
    """Where training starts: one model [d] for all, or each client's own [clients, d]."""
    first = groups[0].theta
    if all(group.theta is first or torch.equal(group.theta, first) for group in groups):
        return first
    return torch.cat([_each(group, group.theta) for group in groups])
