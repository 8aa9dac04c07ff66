"""Clients run in this process: quick start, debugging, many small clients, one GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.client.memory import Shelf
from fedpriv.client.one_path import Answered, Asked
from fedpriv.common.cohort_messages import Refused, blobs_of_cohort, cohort_content, cohort_of_message, requests_of
from fedpriv.common.messages import ARRAYS, STATISTICS, TRAIN, read_request
from fedpriv.config.schema import Config
from fedpriv.engines.grid import RUN_ID, LocalGrid, client_of
from fedpriv.engines.worker import asked_of, parameters_of, refused_as, replied, worker_for


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
            reply = answer_for_all(self.config, message, some, self.contexts)
            if time.monotonic() <= deadline:
                yield reply
            self.contexts.settle()


T = TypeVar("T")

#: Bytes of examples, models and updates that the clients of one computation may hold together.
MOST_BYTES = 2**29
#: Beyond, a larger computation is not faster.
MOST_CLIENTS = 256


def slices(config: Config, messages: Sequence[T], whose: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The messages in order, or the clients, cut where those of a slice would need more memory than `MOST_BYTES`."""
    if config.engine.trainer != "vectorised":
        yield from ([message] for message in messages)
        return
    worker = worker_for(config)
    pixels, parameters = worker.data.dataset.train.inputs[:1].size, worker.model.layout.num_parameters
    counts = worker.data.partition.num_train
    some: list[T] = []
    held = 0
    for message in messages:
        needed = 4 * (2 * int(counts[whose(message)]) * pixels + 4 * parameters)
        if some and (held + needed > MOST_BYTES or len(some) == MOST_CLIENTS):
            yield some
            some, held = [], 0
        some.append(message)
        held += needed
    if some:
        yield some


def answers(
    config: Config, asked: Sequence[tuple[Message, Context]], app: Callable[[Message, Context], Message]
) -> list[Message]:
    """The replies of clients of one slice, each to its own message; ``app`` answers for one alone."""
    together = None if len(asked) == 1 or config.engine.faults else _together(config, asked)
    return [app(message, context) for message, context in asked] if together is None else together


def _together(config: Config, asked: Sequence[tuple[Message, Context]]) -> list[Message] | None:
    """The replies of a cohort; None where these messages are not those of one exchange for different clients."""
    first, worker = asked[0][0], worker_for(config)
    if any(message.content.get(ARRAYS) != first.content.get(ARRAYS) for message, _ in asked):
        return None
    try:
        requests = [asked_of(config, context, read_request(message.content)) for message, context in asked]
        different = len({one.clients for one in requests}) == len(asked)
        exchanges = {one.request.exchange for one in requests}
        if len(exchanges) > 1 or not exchanges <= {STATISTICS, TRAIN} or not different:
            return None
        received = parameters_of(worker, first, requests[0].request)
    except Exception:  # each client says what is wrong with its message
        return None
    found = worker.participation.answer(requests, received)
    return [replied(config, found, one, message) for one, (message, _) in zip(requests, asked, strict=True)]


def answer_for_all(config: Config, message: Message, clients: Sequence[int], shelf: Shelf) -> Message:
    """The one reply of these clients, of those that a message for many asks."""
    worker = worker_for(config)
    try:
        requests, run_id = requests_of(message.content, clients), 0 if config.privacy.rng == "seeded" else RUN_ID
        received = parameters_of(worker, message, requests[0][0])
        asked = [
            Asked(one.clients, one, request, run_id=run_id)
            for request, told in requests
            for one in shelf.alike(told, asked=True)
        ]
        if (exchange := requests[0][0].exchange) not in (STATISTICS, TRAIN):
            asked = [single for one in asked for single in one.each()]
            return Message(_further(config, exchange, clients, asked), reply_to=message)
        found = worker.participation.answer(asked, received)
    except Exception as error:  # of what the server sent
        found = Answered(refused=dict.fromkeys(clients, error))
    return Message(_content(config, clients, found), reply_to=message)


def _further(config: Config, exchange: str, clients: Sequence[int], asked: Sequence[Asked]) -> RecordDict:
    """What clients answer in an exchange of byte strings, each by itself."""
    told, refused = dict[int, Sequence[bytes]](), dict[int, Exception]()
    for one in asked:
        try:
            told[one.clients[0]] = worker_for(config).half([one]).further(one.request).blobs
        except Exception as error:
            refused[one.clients[0]] = error
    return blobs_of_cohort(exchange, clients, told, _in_words(config, refused))


def _in_words(config: Config, errors: Mapping[int, Exception]) -> dict[int, Refused]:
    refused = {}
    for client, error in errors.items():
        code, words = refused_as(error)
        refused[client] = Refused(int(code), words if config.privacy.rng == "seeded" else code.name.lower())
    return refused


def _content(config: Config, clients: Sequence[int], found: Answered) -> RecordDict:
    whose = [client for part in found.rows for client in part.clients]
    place, order = {client: number for number, client in enumerate(clients)}, list(range(len(whose)))
    if whose != clients:
        order.sort(key=lambda row: place[whose[row]])
    releases = [own for part in found.rows if part.release is not None for own in part.release.numpy()]
    rows = [releases[row] for row in order] if releases else []

    def columns(kind: str) -> dict[str, list[Any]]:
        """By name, a value of each client in order; None where it has none."""
        parts = [(getattr(part, kind), [None] * len(part.clients)) for part in found.rows]
        together = {
            name: [value for named, none in parts for value in named.get(name, none)]
            for name in dict.fromkeys(name for named, _ in parts for name in named)
        }
        return {name: [values[row] for row in order] for name, values in together.items()}

    figures = columns("figures") if config.privacy.rng == "seeded" else None
    refused = _in_words(config, found.refused)
    return cohort_content(clients, [whose[row] for row in order], rows, columns("statistics"), figures, refused)
