"""Which clients of a process work side by side: all at once where their training is vectorised, one otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from flwr.app import Message

from fedpriv.config.schema import Config
from fedpriv.engines.grid import client_of
from fedpriv.engines.worker import worker_for

T = TypeVar("T")

#: Bytes of pictures, models and updates that the clients of one computation may hold together.
MOST_BYTES = 2**29
#: Beyond, a larger computation is not faster.
MOST_CLIENTS = 256


def slices(config: Config, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The messages in order, cut where the clients of a slice would need more memory than `MOST_BYTES`."""
    if config.engine.trainer != "vectorised":
        yield from ([message] for message in messages)
        return
    worker = worker_for(config)
    pixels, parameters = worker.data.dataset.train.images[:1].size, worker.model.layout.num_parameters
    some: list[Message] = []
    held = 0
    for message in messages:
        needed = 4 * (2 * worker.data.num_examples(client_of(message)) * pixels + 4 * parameters)
        if some and (held + needed > MOST_BYTES or len(some) == MOST_CLIENTS):
            yield some
            some, held = [], 0
        some.append(message)
        held += needed
    if some:
        yield some


def side_by_side(config: Config, tasks: Sequence[Callable[[], T | None]]) -> Iterator[T]:
    """What the tasks of one slice give, without None."""
    if len(tasks) > 1:
        from fedpriv.training.vectorised import VectorisedTrainer

        trainer = worker_for(config).trainer
        assert isinstance(trainer, VectorisedTrainer), "several clients at a time need the trainer that waits for them"
        found = trainer.together(tasks)
    else:
        found = [task() for task in tasks]
    yield from (answer for answer in found if answer is not None)
