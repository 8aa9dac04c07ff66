"""Whether a method gives clients that take part at once what it gives each alone, tried before a run.

A class says of itself that it is written for several clients (`in_columns`). tests/contract holds the project's own to
it; one of a user's is tried here: two participations of three clients at once and one by one, with the run's options
and given updates, one far beyond any clip norm. Releases, statistics, states and ledgers have to be equal, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.columns import Cohort
from fedpriv.client.memory import ContextStore
from fedpriv.common.messages import Request
from fedpriv.engines.contexts import empty_context
from fedpriv.training.sequential import LocalData, LocalResult

#: Lengths of the updates, one for each client, in units of the clip norm.
LENGTHS = (0.1, 1.0, 1e4)
ROUNDS = 2


class Workplace(Protocol):
    """What a trial needs of a `fedpriv.engines.worker.Worker`, whose module asks this one."""

    @property
    def config(self) -> Any: ...

    @property
    def maker(self) -> Any: ...

    @property
    def data(self) -> Any: ...

    @property
    def trainer(self) -> Any: ...

    @property
    def initial_model(self) -> Any: ...

    def initial_parameters(self) -> Any: ...

    def client(self, client: int, store: Any, *, together: tuple[int, ...] = ()) -> Client: ...


class _Given:
    """In a trainer's place: a client's update is known, and only what the method adds to every gradient moves it."""

    def __init__(self, update: Tensor, trainer: Any) -> None:
        self.update, self.trainer = update, trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    def train(self, theta: Tensor, data: LocalData, rng: Any, mu: float = 0.0, drift: Tensor | None = None) -> Any:
        return LocalResult(self.update if drift is None else self.update + drift, 0.0)


def unlike(worker: Workplace) -> str | None:
    """Why the configuration's clients are to take part one by one; None where no difference was seen."""
    clients, name = range(min(len(LENGTHS), worker.config.num_clients)), type(worker.maker.make()).__name__
    try:
        differs = _differs(worker, clients)
    except Exception as error:  # the user's code
        return f"{name} cannot be tried with several clients at once ({type(error).__name__}: {error})"
    return f"{name} gives clients that take part at once something else than each alone" if differs else None


def _differs(worker: Workplace, clients: Sequence[int]) -> bool:
    plain, size = worker.maker.make(), worker.initial_model.numel()
    drawn = torch.randn(len(clients), size, generator=torch.Generator().manual_seed(0)) / size**0.5
    updates = drawn * torch.tensor(LENGTHS)[: len(clients), None] * float(getattr(plain, "clip_norm", 1.0))
    initial = worker.initial_parameters()
    received = np.zeros(plain.numbers_down(initial.size), np.float32)
    received[: initial.size] = initial

    def placed(client: int, store: ContextStore, together: tuple[int, ...] = ()) -> Client:
        found = worker.client(client, store, together=together)
        assert found.site is not None, "it was made with one"
        given, nothing = (
            _Given(updates[client], worker.trainer),
            LocalData(torch.zeros(0), torch.zeros(0, dtype=torch.int64)),
        )
        found.site = replace(
            found.site,
            trainer=given,  # type: ignore[arg-type]
            load_data=lambda rows=None: nothing,
            rng="seeded",  # noise that is there twice
            max_epsilon=None,
            participations=None,
            test=None,
        )
        return found

    def train(rngs: Any, some: Sequence[int], theta: Tensor, mu: float, drifts: Tensor | None) -> tuple[Tensor, Tensor]:
        own = updates[torch.tensor(some)]
        return own if drifts is None else own + drifts, torch.zeros(len(some), dtype=torch.float64)

    at_once, alone = ({client: ContextStore(empty_context(0, 0, 0, 0)) for client in clients} for _ in range(2))
    nowhere = ContextStore(empty_context(0, 0, 0, 0))
    cohort = Cohort(lambda some: placed(some[0], nowhere, some), worker.data.num_examples, train)
    for server_round in range(1, ROUNDS + 1):
        request = Request(server_round, 0)
        found = cohort.answer(clients, at_once, request, received)
        if found.refused:
            raise next(iter(found.refused.values()))
        for place, client in enumerate(clients):
            own = placed(client, alone[client]).answer(request, received)
            release = found.releases[place].numpy()
            if own.release is None or own.release.tobytes() != release.tobytes():
                return True
            if list(own.statistics.values()) != found.statistics[place]:
                return True
            if at_once[client].read() != alone[client].read():
                return True
    return False
