"""Clients run in this process: quick start, debugging, many small clients, one GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedpriv.config.schema import Config
from fedpriv.engines.cohort import side_by_side, slices
from fedpriv.engines.grid import LocalGrid, client_of


class InProcessGrid(LocalGrid):
    """A Grid whose messages are function calls."""

    def __init__(
        self, config: Config, client_app: ClientApp, on_disturbance: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config, on_disturbance)
        self.client_app = client_app

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        """A client that has begun is not interrupted, but its reply does not count when it is late; after the deadline
        no further one begins.
        """
        for some in slices(self.config, messages):
            yield from side_by_side(self.config, [partial(self._ask, message, deadline) for message in some])
            self.contexts.settle()

    def _ask(self, message: Message, deadline: float) -> Message | None:
        if time.monotonic() > deadline:
            return None
        reply = self.client_app(message, self.context_of(client_of(message)))
        return None if time.monotonic() > deadline else reply
