"""How a server half reaches its clients by number: a protocol, and the grids that are not our own, but Flower's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.messages import MalformedMessage
from fedpriv.common.printing import say
from fedpriv.common.replies import read_identity, refusal_name
from fedpriv.server.round import Population


class ClientGrid(Protocol):
    """What a server half needs of a grid. The project's own grids are one; `FlowerGrid` makes any other one.

    in_order: replies come in the order of the messages, one for each. carries_cohorts: one message may be for many
    clients (`fedpriv.common.cohort_messages`). unnamed: `refusal_name` of nodes that did not
    even say which client they are.
    """

    in_order: bool
    unnamed: Counter[str]

    @property
    def carries_cohorts(self) -> bool: ...

    def nodes(self) -> Nodes:
        """client -> node, of the clients that can be asked now."""

    def client_of(self, node: int) -> int:
        """The client of a node; -1 for a node that is none."""

    def receive(self, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
        """The replies of one exchange, none later than ``timeout`` seconds of the monotonic clock."""


class Nodes(Protocol):
    """client -> node."""

    def __contains__(self, client: object, /) -> bool: ...

    def __getitem__(self, client: int, /) -> int: ...


class FlowerGrid:
    """Any grid of Flower's. Its nodes are waited for and asked once; of real machines some may be away, and are looked
    for again in every exchange.
    """

    in_order = False
    carries_cohorts = False

    def __init__(self, grid: Grid, population: Population, known: dict[int, int] | None = None) -> None:
        self.grid, self.population, self.known = grid, population, known
        self.unnamed: Counter[str] = Counter()
        self._clients: dict[int, int] = {}  # node -> client

    def nodes(self) -> Nodes:
        count, wait = self.population.num_clients, self.population.round_timeout
        if self.population.run and len(self.known or ()) < count:
            self.unnamed.clear()
            before, self.known = self.known or {}, find_partitions(self.grid, count, wait, self.known, self.unnamed)
            if self.known.keys() - before.keys():
                names = {node.node_id: node.name for node in self.grid.get_nodes()}
                for client in sorted(self.known.keys() - before.keys()):
                    node = self.known[client]
                    say(f"client {client} is SuperNode {node}{f', {name}' if (name := names.get(node)) else ''}")
        elif self.known is None:
            self.known = ask_partitions(self.grid, count, wait)
        self._clients = {node: client for client, node in self.known.items()}
        return self.known

    def client_of(self, node: int) -> int:
        return self._clients.get(node, -1)

    def receive(self, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
        return as_they_come(self.grid, messages, timeout)


#: Seconds between two looks for replies, at most: as Flower's own grids.
LONGEST_PAUSE = 3.0


def as_they_come(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """Replies from a grid that is not our own, as soon as they are there. Its own wait would return all at once, and
    goes by the wall clock, which may jump.
    """
    began = time.monotonic()
    waiting = {identifier for identifier in grid.push_messages(messages) if identifier}
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            yield reply
        waited = time.monotonic() - began
        if waited >= timeout:
            break
        if waiting:
            time.sleep(min(LONGEST_PAUSE, 0.05 + waited / 20, timeout - waited))


#: Seconds to wait for nodes that are not there yet, and for a real machine to say which client it is; and for one that
#: comes when the run has begun.
PATIENCE, PATIENCE_LATER = 120.0, 15.0


def ask_partitions(grid: Grid, num_clients: int, timeout: float) -> dict[int, int]:
    """Of a simulation: waits until ``num_clients`` nodes are there and asks each for its partition id: client -> node.
    Every node answers, though on a loaded machine some minutes pass before the first of Ray's workers has started.

    Raises `OptionError` with both numbers when their count stays different, `RunFailed` for answers that do not fit.
    """
    nodes = _wait_for(grid, num_clients, timeout)
    if len(nodes) != num_clients:
        raise OptionError("num_clients", num_clients, f"the federation has {len(nodes)} nodes; both must be equal")
    found = _ask(grid, nodes, num_clients, timeout)
    if sorted(found) != list(range(num_clients)):
        raise RunFailed(f"{num_clients} nodes were asked for their partition, the answers were {sorted(found)}")
    return found


def find_partitions(
    grid: Grid, num_clients: int, timeout: float, known: dict[int, int] | None, refused: Counter[str]
) -> dict[int, int]:
    """As `ask_partitions` for real machines, of which some are away: those that are there, after a first wait.

    known: what was found earlier; only nodes that are new are asked, and nobody takes another's place. refused: counts
    the codes of those that answer with one.
    """
    if known is None:
        return _ask(grid, _wait_for(grid, num_clients, timeout), num_clients, min(timeout, PATIENCE), refused)
    new = [node for node in sorted(grid.get_node_ids()) if node not in known.values()]
    return (_ask(grid, new, num_clients, min(timeout, PATIENCE_LATER), refused) if new else {}) | known


def _wait_for(grid: Grid, num_clients: int, timeout: float) -> list[int]:
    deadline = time.monotonic() + min(timeout, PATIENCE)
    nodes = sorted(grid.get_node_ids())
    while len(nodes) < num_clients and time.monotonic() < deadline:
        time.sleep(0.2)
        nodes = sorted(grid.get_node_ids())
    return nodes


def _ask(
    grid: Grid, nodes: list[int], num_clients: int, timeout: float, refused: Counter[str] | None = None
) -> dict[int, int]:
    messages = [Message(RecordDict(), node, "query") for node in nodes]
    found: dict[int, int] = {}
    for answer in grid.send_and_receive(messages, timeout=timeout):
        if answer.has_error() and refused is not None:
            refused[refusal_name(answer.error.code)] += 1
        with suppress(MalformedMessage):  # then nobody has said that number
            if answer.has_content() and (client := read_identity(answer)) < num_clients:
                found.setdefault(client, answer.metadata.src_node_id)
    return found
