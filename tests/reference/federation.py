"""A federation without engine or messages: client objects, memories in a dictionary, a plain loop over rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.client.base import Client
from fedpriv.client.contract import Site
from fedpriv.client.memory import ClientMemory, read_memory
from fedpriv.common.messages import ATTEMPT, ROUND
from fedpriv.config.schema import LocalConfig
from fedpriv.training.sequential import FlatModel, LocalData, LocalResult, SequentialTrainer

NEVER_EMPTY = LocalConfig(epochs=1, batch_size=8, lr=0.2, momentum=0.0, sampler="poisson")


class BytesStore:
    """A memory that is nothing but bytes: every participation reads what an earlier one wrote."""

    def __init__(self) -> None:
        self.blob: bytes | None = None

    def read(self) -> bytes | None:
        return self.blob

    def keep(self, memory: ClientMemory) -> None:
        self.blob = memory.to_bytes()


class FixedUpdates:
    """A trainer whose updates are given: round -> vector."""

    foreign = False

    def __init__(self, update: Callable[[int], Tensor], config: Any = None) -> None:
        self.update, self.calls = update, 0
        if config is not None:
            self.config = config

    def train_all(self, requests: Sequence[Any]) -> list[LocalResult]:
        return [self.train(one.theta) for one in requests]

    def train(self, theta: Tensor, *others: Any) -> LocalResult:
        self.calls += 1
        return LocalResult(self.update(self.calls), 0.0)


def linear_model(inputs: int = 9, classes: int = 3) -> FlatModel:
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(5)
    layers = {"hidden": nn.Sequential(nn.Flatten(), nn.Linear(inputs, 7), nn.Tanh()), "head": nn.Linear(7, classes)}
    module = nn.Sequential()
    for name, layer in layers.items():
        module.add_module(name, layer)
    torch.random.set_rng_state(torch_state)
    return FlatModel(module)


def client_data(client: int, examples: int = 40) -> LocalData:
    """3x3 pictures of three classes that can be told apart."""
    rng = np.random.default_rng((11, client))
    labels = torch.from_numpy(rng.integers(0, 3, examples))
    images = torch.from_numpy(rng.normal(size=(examples, 1, 3, 3))).float()
    images[torch.arange(examples), 0, labels, labels] += 2.0
    return LocalData(images, labels)


def make_site(client: int = 0, trainer: Any = None, store: Any = None, **changes: Any) -> Site:
    options: dict[str, Any] = {
        "client": client,
        "num_examples": 40,
        "load_data": lambda: client_data(client),
        "trainer": trainer or SequentialTrainer(linear_model(), NEVER_EMPTY),
        "store": store if store is not None else BytesStore(),
        "seed": 3,
        "rng": "seeded",
        "delta": 1e-5,
        "max_epsilon": None,
    }
    return Site(**options | changes)


def take_part(client: Client, server_round: int, theta: np.ndarray | None = None, attempt: int = 0) -> np.ndarray:
    """One participation; the release."""
    start = np.zeros(4, np.float32) if theta is None else theta
    (release,), _, _ = client.fit([start], {ROUND: server_round, ATTEMPT: attempt})
    return release


def booked(client: Client) -> list[Any]:
    """The ledger entries that the client has written."""
    assert client.site is not None
    return list(read_memory(client.site.store).uncollected)
