"""Whether clients are rows of one computation, in one message or in one each; why not, in words.

A class says of itself that it is written for rows (`in_rows`). tests/contract holds the project's own to it; one of a
user's is tried here: two participations of three clients together and apart, with the run's options and given updates,
one far beyond any clip norm. Releases, statistics, states and ledgers have to be equal, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.memory import ContextStore
from fedpriv.client.one_path import Asked, Participation
from fedpriv.common.messages import Outgoing, Request
from fedpriv.config.halves import half_class
from fedpriv.engines.contexts import empty_context
from fedpriv.mechanisms.device_errors import failed
from fedpriv.training.sequential import LocalData

#: Lengths of the updates, one for each client, in units of the clip norm.
LENGTHS = (0.1, 1.0, 1e4)
ROUNDS = 2


class Workplace(Protocol):
    """What a trial needs of a `fedpriv.engines.worker.Worker`, whose module asks this one."""

    @property
    def config(self) -> Any: ...

    @property
    def method(self) -> Any: ...

    @property
    def maker(self) -> Any: ...

    def num_examples(self, client: int) -> int: ...

    @property
    def trainer(self) -> Any: ...

    @property
    def why_apart(self) -> str | None: ...

    @property
    def initial_model(self) -> Any: ...

    def initial_parameters(self) -> Any: ...

    def half(self, asked: Sequence[Asked]) -> Client: ...


def why_single_messages(worker: Workplace) -> str | None:
    """Why each client of a configuration has a message of its own, in words; None where one is for many."""
    config = worker.config
    if config.engine.trainer != "vectorised":
        return f"engine.trainer={config.engine.trainer}"
    if config.engine.faults:
        return "engine.faults are of single clients"
    if config.dataset.name == "on_nodes" or config.strategy.secure_sum == "protocol":
        return "its messages are of single clients"
    apart = None if worker.method.traits.clips_examples else worker.why_apart  # these go on together, step by step
    return apart or half_class(config, "server").why_single_messages()


def why_apart(worker: Workplace) -> str | None:
    """Why releases are computed one client after the other, in words; None where they are rows."""
    reason: str | None = worker.method.why_single
    if reason is None and type(worker.method).__module__ != f"clients.{worker.config.strategy.name}":
        return unlike(worker)  # of the project's own, tests/contract has seen it
    return reason


def unlike(worker: Workplace) -> str | None:
    """Why the configuration's clients are to be computed apart; None where no difference was seen."""
    clients, name = range(min(len(LENGTHS), worker.config.num_clients)), type(worker.method).__name__
    try:
        differs = _differs(worker, clients)
    except Exception as error:  # the user's code
        if failed(error):
            raise
        return f"{name} cannot be tried with several clients at once ({type(error).__name__}: {error})"
    return f"{name} gives clients that are rows something else than each alone" if differs else None


def _differs(worker: Workplace, clients: Sequence[int]) -> bool:
    plain, size = worker.method, worker.initial_model.numel()
    drawn = torch.randn(len(clients), size, generator=torch.Generator().manual_seed(0)) / size**0.5
    updates = drawn * torch.tensor(LENGTHS)[: len(clients), None] * float(getattr(plain, "clip_norm", 1.0))
    initial = worker.initial_parameters()
    received = np.zeros(plain.traits.vectors_down * initial.size, np.float32)
    received[: initial.size] = initial
    examples = worker.num_examples(0)
    nothing = LocalData(torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    def half(asked: Sequence[Asked]) -> Client:
        """With noise that is there twice, without limits, and with one declared count: else they were no rows."""
        site = worker.half(asked).site
        assert site is not None, "it was made with one"
        free: dict[str, Any] = {"rng": "seeded", "max_epsilon": None, "participations": None, "test": None}
        site = replace(site, load_data=lambda rows=None: nothing, num_examples=examples, **free)
        made: Client = worker.maker.make(site, examples)
        return made

    def train(some: Sequence[int], rngs: Any, theta: Tensor, mu: float, drifts: Tensor | None) -> tuple[Tensor, Tensor]:
        own = updates[torch.tensor(some)]
        return own if drifts is None else own + drifts, torch.zeros(len(some), dtype=torch.float64)

    def answers(apart: bool) -> list[Any]:
        stores = {client: ContextStore(empty_context(0, 0, 0, 0)) for client in clients}
        path = Participation(worker.method, half, lambda _: examples, train, worker.trainer.clipped_sums, apart)
        told = []
        for number in range(1, ROUNDS + 1):
            asked = [Asked(client, stores[client], Request(number, 0)) for client in clients]
            found = path.answer(asked, received)
            for error in found.refused.values():
                raise error
            told += [_bits(found.replies[client]) for client in clients]
        return [*told, *(stores[client].read() for client in clients)]

    return answers(False) != answers(True)


def _bits(reply: Outgoing) -> tuple[Any, ...]:
    assert reply.release is not None, "it took part"
    return reply.release.tobytes(), dict(reply.statistics)
