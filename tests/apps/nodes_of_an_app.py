"""Nodes of a Flower app in this process: a grid that runs a ClientApp, without Ray and without a SuperLink."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class AppNodes(Grid):
    """apps: one for all nodes, or one for each. away: nodes that are not there now. seen: (message, reply)."""

    def __init__(self, apps: ClientApp | list[ClientApp], nodes: int = 3, partitions: bool = True) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.apps = apps if isinstance(apps, list) else [apps] * nodes
        self.contexts = {
            101 + place: Context(1, 101 + place, {"partition-id": place} if partitions else {}, RecordDict(), {})
            for place in range(nodes)
        }
        self.away = set[int]()
        self.seen: list[tuple[Message, Message]] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = []
        for number, message in enumerate(messages):
            name = f"{len(self.seen)}-{number}"
            message.metadata._message_id = name  # type: ignore[attr-defined]
            found.append(name)
            node = message.metadata.dst_node_id
            message.metadata._src_node_id = 1  # type: ignore[attr-defined]
            TaskIdentity._run_id = None  # as in the processes in which Flower's simulation runs clients
            try:
                reply = self.apps[node - 101](message, self.contexts[node])
            except Exception as error:  # as Flower's runtimes answer
                reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
            finally:
                TaskIdentity.run_id = 1
            reply.metadata._src_node_id = node  # type: ignore[attr-defined]
            self.seen.append((message, copy(reply)))
            self._replies[name] = reply
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))
