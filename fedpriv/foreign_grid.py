"""Grids that are not our own, but Flower's: who is there, and how replies are waited for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpriv.errors import OptionError, RunFailed
from fedpriv.records import MalformedMessage, read_identity

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


def ask_partitions(grid: Grid, num_clients: int, timeout: float) -> dict[int, int]:
    """Waits until ``num_clients`` nodes are there and asks each for its partition id: client -> node.

    Raises `OptionError` with both numbers when their count stays different.
    """
    deadline = time.monotonic() + min(timeout, 120.0)
    nodes = sorted(grid.get_node_ids())
    while len(nodes) < num_clients and time.monotonic() < deadline:
        time.sleep(0.2)
        nodes = sorted(grid.get_node_ids())
    if len(nodes) != num_clients:
        raise OptionError("num_clients", num_clients, f"the federation has {len(nodes)} nodes; both must be equal")
    messages = [Message(RecordDict(), node, "query") for node in nodes]
    answers = list(grid.send_and_receive(messages, timeout=timeout))
    found: dict[int, int] = {}
    for answer in answers:
        with suppress(MalformedMessage):  # then nobody has said that number
            if answer.has_content():
                found[read_identity(answer)] = answer.metadata.src_node_id
    if sorted(found) != list(range(num_clients)):
        raise RunFailed(f"{num_clients} nodes were asked for their partition, the answers were {sorted(found)}")
    return found
