"""Clients run in this process, one after the other: quick start, debugging, many small clients, one GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedpriv.config import Config
from fedpriv.engines.grid import LocalGrid, client_of


class InProcessGrid(LocalGrid):
    """A Grid whose messages are function calls."""

    def __init__(self, config: Config, client_app: ClientApp) -> None:
        super().__init__(config)
        self.client_app = client_app

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        """A client that has begun is not interrupted; after the deadline no further one begins."""
        for message in messages:
            if time.monotonic() > deadline:
                return
            yield self.client_app(message, self.context_of(client_of(message)))
