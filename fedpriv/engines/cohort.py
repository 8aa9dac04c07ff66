"""Which clients of a process work side by side: as columns where their method allows it, else all that wait for the
vectorised trainer, else one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from flwr.app import Context, Message, RecordDict

from fedpriv.client.columns import CohortAnswer, OneByOne
from fedpriv.client.memory import ContextStore
from fedpriv.common.cohort_messages import COHORT, Refused, cohort_content
from fedpriv.common.messages import FIRST_NODE, read_request, refusal, reply_content
from fedpriv.common.records import ARRAYS, CONFIG
from fedpriv.common.vectors import unpack_vector
from fedpriv.config.schema import Config
from fedpriv.engines.adapter import refused_as
from fedpriv.engines.grid import client_of
from fedpriv.engines.worker import worker_for

log = logging.getLogger("fedpriv")

T = TypeVar("T")

#: Bytes of pictures, models and updates that the clients of one computation may hold together.
MOST_BYTES = 2**29
#: Beyond, a larger computation is not faster.
MOST_CLIENTS = 256


def slices(config: Config, messages: Sequence[T], whose: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The messages in order, or the clients, cut where those of a slice would need more memory than `MOST_BYTES`."""
    if config.engine.trainer != "vectorised":
        yield from ([message] for message in messages)
        return
    worker = worker_for(config)
    pixels, parameters = worker.data.dataset.train.images[:1].size, worker.model.layout.num_parameters
    some: list[T] = []
    held = 0
    for message in messages:
        needed = 4 * (2 * worker.data.num_examples(whose(message)) * pixels + 4 * parameters)
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


def one_message_each(message: Message, clients: Sequence[int]) -> list[Message]:
    """What a message for many says, to each of these clients alone."""
    content = RecordDict({key: record for key, record in message.content.items() if key != COHORT})
    label = message.metadata.group_id
    return [Message(content, client + FIRST_NODE, "train", group_id=label) for client in clients]


def answer_at_once(
    config: Config, message: Message, clients: Sequence[int], contexts: Mapping[int, Context]
) -> Message | None:
    """The reply of these clients, of those that a message for many asks; None where they must be asked one by one, and
    nothing has been done.
    """
    found = _answered(config, message, clients, contexts)
    return None if found is None else Message(_content(config, clients, found), reply_to=message)


def each_at_once(config: Config, asked: Sequence[tuple[Message, Context]]) -> list[Message] | None:
    """As `answer_at_once`, for clients that were asked one by one, and answer so."""
    first, worker = asked[0][0], worker_for(config)
    same = all(message.content[CONFIG] == first.content[CONFIG] for message, _ in asked)
    if len(asked) < 2 or worker.one_by_one is not None or not same or ARRAYS not in first.content:
        return None
    clients = [client_of(message) for message, _ in asked]
    found = _answered(config, first, clients, dict(zip(clients, (context for _, context in asked), strict=True)))
    if found is None:
        return None
    replies, simulation = dict[int, Message](), config.privacy.rng == "seeded"
    messages = dict(zip(clients, (message for message, _ in asked), strict=True))
    for client, error in found.refused.items():
        code, words = refused_as(error)
        replies[client] = refusal(code, messages[client], words if simulation else None)
    rows = zip(found.clients, found.releases, found.statistics, found.figures, strict=True)
    for client, release, statistics, figures in rows:
        told = dict(zip(found.names, statistics, strict=True))
        examples = worker.data.num_examples(client)
        content = reply_content(release.numpy(), examples, figures if simulation else None, told)
        replies[client] = Message(content, reply_to=messages[client])
    return [replies[client] for client in clients]


def _answered(
    config: Config, message: Message, clients: Sequence[int], contexts: Mapping[int, Context]
) -> CohortAnswer | None:
    """What these clients answer at once; None where nothing has been done."""
    worker, request = worker_for(config), read_request(message.content)
    stores = {client: ContextStore(context) for client, context in contexts.items()}
    before = {client: store.load() for client, store in stores.items()}
    try:
        size = worker.maker.make().numbers_down(worker.initial_parameters().size)
        return worker.cohort.answer(clients, stores, request, unpack_vector(message.content, size))
    except OneByOne:
        return None
    except Exception as error:  # e.g. out of memory: one client must not fail because of others
        log.warning("a cohort is computed client by client: %s", error)
        for client, memory in before.items():
            stores[client].put_back(memory)
        return None


def _content(config: Config, clients: Sequence[int], found: CohortAnswer) -> RecordDict:
    simulation = config.privacy.rng == "seeded"
    refused = {}
    for client, error in found.refused.items():
        code, words = refused_as(error)
        refused[client] = Refused(int(code), words if simulation else code.name.lower())
    releases = torch.stack(found.releases).numpy() if found.releases else torch.zeros(0, 0).numpy()
    statistics = {name: [row[place] for row in found.statistics] for place, name in enumerate(found.names)}
    return cohort_content(clients, found.clients, releases, statistics, found.figures if simulation else None, refused)
