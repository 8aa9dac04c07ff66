"""What the server of a deployment can say of its clients' ledgers, which stay on the clients' own machines.

It books by the run's public options: a client that is asked is charged for a participation before the message
goes out, whether or not an answer comes. What binds is the ledger beside each client's data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedpriv.client.build import make_client
from fedpriv.client.memories import Book, Memories
from fedpriv.config.schema import Config
from fedpriv.privacy.events import Entry, Event


class PlannedAccounts:
    """In the place of clients' memories, where a server cannot read those. entries: booked so far, by this run."""

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

    def collect_entries(self, clients: Iterable[int], book: Book = lambda entries: None) -> list[Entry]:
        """Nothing: clients were charged when they were asked."""
        return []

    def memories(self) -> Memories:
        return Memories([], lambda client: b"")

    def restore(self, memories: Mapping[int, bytes]) -> None:
        """Nothing: a client keeps its own memory, whatever becomes of the server."""


def _counted(events: Sequence[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for event in events:
        counts[replace(event, count=1)] += event.count
    return counts
