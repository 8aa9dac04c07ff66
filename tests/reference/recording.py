"""A run without a folder whose messages are all kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from conftest import SMALL
from flwr.app import Message

from fedpriv.client.memory import ContextStore, read_memory
from fedpriv.common.messages import pack_vector, unpack_vector
from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.engines.grid import client_of
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import adopt, make_apps
from fedpriv.runs.preparation import make_strategy, resolve
from fedpriv.server.round import Round


class RecordingGrid(InProcessGrid):
    """Keeps every message and its reply."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, make_apps(config)[1])
        self.seen: list[tuple[Message, Message]] = []

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        for message, reply in zip(messages, super().deliver(messages, deadline), strict=True):
            self.seen.append((message, reply))
            yield reply

    def kept(self, client: int) -> np.ndarray:
        found = read_memory(ContextStore(self.context_of(client))).kept
        assert found is not None
        return found.numpy()


class Conversation:
    """All rounds of a configuration with every message recorded; thetas[t] is the server's after round t."""

    def __init__(self, *overrides: str) -> None:
        self.config, self.worker, self.plan = resolve(compose([*SMALL, *overrides]), None)
        adopt(self.config, self.worker)
        self.thetas = [self.worker.initial_parameters()]
        self.bytes_up = self.bytes_down = 0
        with RecordingGrid(self.config) as self.grid:
            make_strategy(self.config, self.worker).run_rounds(
                self.grid, pack_vector(self.thetas[0]), self.config.num_rounds, on_round=self._end_round
            )

    def _end_round(self, current: Round) -> None:
        self.thetas.append(current.theta)
        self.bytes_up, self.bytes_down = self.bytes_up + current.bytes_up, self.bytes_down + current.bytes_down

    def vectors(self) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """(round, client, what came down, what went up)."""
        for message, reply in self.grid.seen:
            number = int(message.content["config"]["round"])  # type: ignore[arg-type, index]
            yield number, client_of(message), unpack_vector(message.content), unpack_vector(reply.content)
