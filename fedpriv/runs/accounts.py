"""What a run's releases cost: its ledger, the epsilon of every round, and the verdict at the end."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fedpriv.client.build import fixed_events_with_ends, make_client
from fedpriv.client.memories import Book, Memories
from fedpriv.common.files import json_number
from fedpriv.config.schema import Config
from fedpriv.privacy.composition import (
    Budget,
    History,
    RunningTotals,
    Verified,
    at_other_adjacency,
    compose,
    guarantee_events,
    threats,
    verify,
)
from fedpriv.privacy.events import EVERY_CLIENT, OF_SUMS, Entries, Entry, Event, Threat
from fedpriv.privacy.opacus_accounts import OpacusFigure, OpacusTotals
from fedpriv.runs.folder import RunFolder


def opacus_totals(config: Config) -> OpacusTotals | None:
    """For releases of a run under its method's own threat; None where `privacy.accountant` does not ask for it."""
    if config.privacy.accountant != "opacus":
        return None
    factor = getattr(config.strategy.options, "factor", "identity")
    words = f"Opacus composes independent noise, and this is correlated over rounds (strategy.client.factor={factor})"
    return OpacusTotals(config.privacy.delta, None if factor == "identity" else words)


class Accounts:
    """The ledger of a run's folder and what follows from it.

    threat: the method's own; what a finished run says of it needs no data. seconds: spent on ledger and composition so
    far.
    """

    def __init__(self, config: Config, folder: RunFolder, threat: Threat | None = None) -> None:
        self.config, self.folder = config, folder
        self.threat, self.seconds = threat or make_client(config).threat, 0.0
        self.deployed = config.dataset.name == "on_nodes"
        self._running = RunningTotals(config.privacy.delta)  # under the method's own threat
        self._opacus = opacus_totals(config)
        self._of_all: list[Event] = []  # what a trusted server released about every client
        self._most = math.inf
        self._verdict: Verified | None = None  # on the ledger as it is; None: not known, or no longer
        self._others: list[Threat] | None = None  # which it holds beside the method's own; None likewise

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time of its block to ``seconds``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    # --- booking -----------------------------------------------------------------------------------------

    def book(self, entries: Sequence[Entry]) -> None:
        """Appends entries to the ledger."""
        self.folder.append_entries(entries, together=not self.deployed)
        self._remember(entries)

    def book_what_is_new(self, entries: Sequence[Entry]) -> None:
        """After a crash or an interruption an entry can be in the ledger and still wait in its client's memory."""
        known = {(entry.client, entry.sequence, entry.attempt) for entry in self.entries()}
        self.book([entry for entry in entries if (entry.client, entry.sequence, entry.attempt) not in known])

    def entries(self) -> list[Entry]:
        """The ledger as it was written."""
        return list(self.folder.ledger.read().entries)

    def take_up(self) -> None:
        """The entries that a resumed run finds in its ledger."""
        self._remember(self.entries())

    def _remember(self, entries: Iterable[Entry]) -> None:
        alike, self._others = Entries.of(entries).alike, None
        charged = [([entry for entry in some if entry.event.threat == self.threat], clients) for some, clients in alike]
        charged = [(some, clients) for some, clients in charged if some]
        if charged:
            self._verdict = None
        self._running.add((clients, [entry.event for entry in some]) for some, clients in charged)
        if self._opacus is not None:
            for some, clients in charged:
                self._opacus.add((client, event) for client in clients for event in guarantee_events(some))
        self._of_all += [entry.event for some, clients in charged if EVERY_CLIENT in clients for entry in some]

    # --- what it comes to --------------------------------------------------------------------------------

    def admits(self, *events: Event) -> bool:
        """Whether one more release of a trusted server, of these events, keeps to `privacy.max_epsilon`. Where all are
        fixed before, so are those that a resumed run makes again: what they cost together decides.
        """
        privacy = self.config.privacy
        if privacy.max_epsilon is None:
            return True
        plan = fixed_events_with_ends(self.config, [stage["rounds"] for stage in self.folder.stages()])
        budget = Budget(privacy.max_epsilon, privacy.delta, plan=tuple(plan))
        if budget.admits(self._of_all, list(events)):
            return True
        fits = bool(plan) and compose(plan, privacy.delta).epsilon <= privacy.max_epsilon
        return fits and compose([*self._of_all, *events], privacy.delta).epsilon <= privacy.max_epsilon

    def plan(self, costliest: tuple[History, ...], epsilon: float, by_filter: bool) -> None:
        """Tells what the whole run is planned to cost. by_filter: because clients stop before they exceed it."""
        self._running.within(costliest, epsilon)
        self._most = epsilon if by_filter else math.inf

    def epsilon_so_far(self) -> float:
        """Without PLD, which would cost up to half a second a round for sampled Gaussians: an upper bound, and at most
        what the whole run is planned to cost. The last line of metrics.jsonl has verified_epsilon in its place, which
        bounds the lines before it too.
        """
        with self.timed():
            return min(self._running.maximum(), self._most)

    def by_opacus(self, tight: bool = True) -> OpacusFigure | None:
        """What Opacus' accountants make of the ledger; None where `privacy.accountant` does not ask for it."""
        if self._opacus is None:
            return None
        with self.timed():
            return self._opacus.figure(tight)

    def verified(self) -> Verified:
        """The verdict on the ledger as it is, under the method's own threat."""
        if self._verdict is None:
            with self.timed():
                accounts, privacy = self._by_client(), self.config.privacy
                idle, self._others = self._idle(accounts), self._besides(accounts)
                self._verdict = verify(accounts, privacy.delta, privacy.max_epsilon, self.threat, idle)
        return self._verdict

    def under_further_threats(self) -> dict[Threat, Verified]:
        """The verdicts under every other threat that the ledger holds."""
        if self._others == []:
            return {}
        with self.timed():
            accounts, delta = self._by_client(), self.config.privacy.delta
            return {
                threat: verify(accounts, delta, None, threat, self._idle(accounts))
                for threat in self._besides(accounts)
            }

    def _besides(self, accounts: Mapping[int, list[Entry]]) -> list[Threat]:
        return [threat for threat in threats(accounts) if threat != self.threat]

    def at_other_adjacency(self, threat: Threat) -> dict[str, float | str]:
        """{other_adjacency, other_epsilon} of a sum of clients under this threat: what its neighbours may be besides,
        and what the ledger costs there; empty of others, and where a budget's filter gives the guarantee.
        """
        if threat.observer not in OF_SUMS or self.verified().accountant == "filter":
            return {}
        with self.timed():
            events = {client: guarantee_events(own) for client, own in self._by_client().items()}
            own = {client: [one for one in some if one.threat == threat] for client, some in events.items()}
            found = at_other_adjacency(own, self.config.privacy.delta, make_client(self.config).at_other_adjacency)
        return {} if found is None else {"other_adjacency": found[0], "other_epsilon": json_number(found[1])}

    def _by_client(self) -> dict[int, list[Entry]]:
        """Client -> all that the ledger charges it with."""
        accounts: dict[int, list[Entry]] = defaultdict(list)
        for entry in self.entries():
            accounts[entry.client].append(entry)
        if of_all := accounts.pop(EVERY_CLIENT, None):  # a client that released nothing has this account alone
            accounts = {client: of_all + own for client, own in accounts.items()} | {EVERY_CLIENT: of_all}
        return accounts

    def _idle(self, accounts: Mapping[int, list[Entry]]) -> int:
        """Clients without an account."""
        return 0 if EVERY_CLIENT in accounts else self.config.num_clients - sum(client >= 0 for client in accounts)


class PlannedAccounts:
    """What the server of a deployment can say of its clients' ledgers, which stay on the clients' own machines.

    It books by the run's public options: a client that is asked is charged for a participation before the message goes
    out, whether or not an answer comes. What binds is the ledger beside each client's data.

    entries: booked so far, by this run.
    """

    def __init__(self, config: Config, entries: Iterable[Entry]) -> None:
        self.config = config
        self._asked: dict[int, set[tuple[int, int]]] = defaultdict(set)
        self._sequence: Counter[int] = Counter()
        self._prices: dict[tuple[int, int], list[Event]] = {}
        for entry in entries:
            self._asked[entry.client].add((entry.round, entry.attempt))
            self._sequence[entry.client] = max(self._sequence[entry.client], entry.sequence + 1)

    def ask(self, clients: Sequence[int], server_round: int, attempt: int) -> list[Entry]:
        """The ledger's lines for asking these clients; none for one that was asked in this round already."""
        found = []
        for client in clients:
            before = self._asked[client]
            if (server_round, attempt) in before:
                continue
            before.add((server_round, attempt))
            examples = self.config.dataset.examples[client]
            for event in self._one_more(examples, len(before)):
                found.append(Entry(server_round, client, self._sequence[client], attempt, event))
                self._sequence[client] += 1
        return found

    def _one_more(self, examples: int, participations: int) -> list[Event]:
        """What the last of so many participations adds to what is planned for a client with so many examples."""
        key = (examples, participations)
        if key not in self._prices:
            client = make_client(self.config, examples=examples)
            now, before = (_counted(client.planned_events(count)) for count in (participations, participations - 1))
            more = [replace(event, count=count) for event, count in (now - before).items()]
            self._prices[key] = more if client.books_itself else []
        return self._prices[key]

    def collect_entries(self, clients: Iterable[int], book: Book = lambda entries: None) -> Entries:
        """Nothing: clients were charged when they were asked."""
        return Entries(())

    def memories(self) -> Memories:
        return Memories([], lambda client: b"")

    def restore(self, memories: Mapping[int, bytes]) -> None:
        """Nothing: a client keeps its own memory, whatever becomes of the server."""


def _counted(events: Sequence[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for event in events:
        counts[replace(event, count=1)] += event.count
    return counts
