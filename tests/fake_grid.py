"""A server half on a grid whose clients answer what a test says."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import making
import numpy as np
from flwr.app import ConfigRecord, Message

from fedpriv.common.messages import FIRST_NODE, pack_vector, reply_content, unpack_vector
from fedpriv.common.seeds import draw_cohort
from fedpriv.engines.grid import LocalGrid
from fedpriv.server.round import Population
from fedpriv.server.strategy import FederatedStrategy
from strategies.fedavg import FedAvg

SIZE = 6
THETA = np.arange(SIZE, dtype=np.float32)


def release_of(client: int) -> np.ndarray:
    return np.random.default_rng(client).normal(size=SIZE).astype(np.float32)


class FakeGrid(LocalGrid):
    """A grid whose clients answer what the test says: ``answer(message, client)`` gives one reply or several."""

    def __init__(self, num_clients: int = 8) -> None:
        engine = SimpleNamespace(client_memory_mib=1.0)
        config: Any = SimpleNamespace(num_clients=num_clients, run_dir=None, engine=engine)
        super().__init__(config)
        self.asked: list[Message] = []
        self.answer: Any = lambda message, client: honest(message, client)

    def deliver(self, messages: list[Message], deadline: float = 0.0) -> Iterable[Message]:
        self.asked = messages
        for message in messages:
            found = self.answer(message, message.metadata.dst_node_id - FIRST_NODE)
            yield from found if isinstance(found, list) else [found]


def honest(message: Message, client: int) -> Message:
    return Message(reply_content(release_of(client), 999, {"train_loss": 1.0}), reply_to=message)


def build(kind: type[FederatedStrategy] = FedAvg, **options: Any) -> FederatedStrategy:
    clients, size = options.pop("num_clients", 8), options.pop("clients_per_round", 4)
    options.setdefault("weighting", "uniform")
    return making.server(kind, Population(7, clients, size, lambda client: 10 + client), **options)


def play(strategy: FederatedStrategy, grid: FakeGrid, server_round: int = 1) -> np.ndarray:
    messages = strategy.configure_train(server_round, pack_vector(THETA), ConfigRecord(), grid)
    arrays, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
    assert arrays is not None
    return unpack_vector(arrays)


def cohort(server_round: int = 1) -> list[int]:
    return draw_cohort(7, server_round, 8, 4, "fixed")
