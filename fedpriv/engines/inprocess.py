"""Clients run in this process: quick start, debugging, many small clients, one GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedpriv.common.cohort_messages import cohort_of_message
from fedpriv.config.schema import Config
from fedpriv.engines.cohort import answer_for_all, answers, slices
from fedpriv.engines.grid import LocalGrid, client_of
from fedpriv.engines.worker import worker_for


class InProcessGrid(LocalGrid):
    """A Grid whose messages are function calls."""

    def __init__(
        self, config: Config, client_app: ClientApp, on_disturbance: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config, on_disturbance)
        self.client_app = client_app

    @property
    def carries_cohorts(self) -> bool:
        return type(self).deliver is InProcessGrid.deliver and worker_for(self.config).why_single_messages is None

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        """A client that has begun is not interrupted, but its reply does not count when it is late; after the deadline
        no further one begins.
        """
        if len(messages) == 1 and (clients := cohort_of_message(messages[0])) is not None:
            yield from self._deliver_cohort(messages[0], clients, deadline)
            return
        for some in slices(self.config, messages, client_of):
            if time.monotonic() > deadline:
                return
            asked = [(message, self.context_of(client_of(message))) for message in some]
            replies = answers(self.config, asked, self.client_app)
            if time.monotonic() <= deadline:
                yield from replies
            self.contexts.settle()

    def _deliver_cohort(self, message: Message, clients: list[int], deadline: float) -> Iterator[Message]:
        for some in slices(self.config, clients, int):
            if time.monotonic() > deadline:
                return
            contexts = {client: self.context_of(client) for client in some}
            reply = answer_for_all(self.config, message, some, contexts)
            if time.monotonic() <= deadline:
                yield reply
            self.contexts.settle()
