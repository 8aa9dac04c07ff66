"""A cohort of clients that answer what they are told to, before a strategy of either of Flower's generations."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client.mod.utils import make_ffn
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedpriv.checking.flower_messages import (
    ARRAYS,
    COUNT,
    METRICS,
    Trained,
    arrays_in,
    context,
    fresh,
    hashed,
    model,
    numbers_of,
    record,
    reply,
    values_in,
)
from fedpriv.checking.reading import Numbers, is_word
from fedpriv.engines.grid import RUN_ID, identify_server, stamp

Asked = TypeVar("Asked")


@dataclass(frozen=True)
class Cohort:
    """Answers of a round's clients; the first is the neighbour. More clients than given: the last answers for them.

    silent: so many clients, from the first on, send no reply; below 0: all but so many, which are the last. last: the
    neighbour is asked, and replies, after all others.
    """

    clients: tuple[Trained, ...]
    silent: int = 0
    last: bool = False

    def of(self, count: int) -> Iterator[Trained]:
        for place in range(count):
            yield self.clients[min(place, len(self.clients) - 1)]

    def replying(self, asked: Sequence[Asked]) -> list[tuple[Trained, Asked]]:
        """(answer, what it was asked) of each client that replies."""
        turned = [*asked[-1:], *asked[:-1]] if self.last else asked
        found = list(zip(self.of(len(asked)), turned, strict=True))[self.silent :]
        return [*found[1:], *found[:1]] if self.last and not self.silent else found

    def without_the_first(self) -> Cohort:
        """The same round, to which the neighbour sends no reply."""
        return replace(self, silent=1)


class Nodes(Grid):
    """Node ids, and nothing else that a strategy may ask of a grid to make its messages."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self.count + 1)

    @property
    def run(self) -> Run:
        return Run.create_empty(run_id=RUN_ID)


Nodes.__abstractmethods__ = frozenset()


class NewRounds:
    """Rounds of a strategy of `flwr.serverapp.strategy`. mods: of every client."""

    def __init__(self, strategy: Any, nodes: int, mods: Sequence[Any]) -> None:
        identify_server()
        self.strategy, self.nodes, self.mods = fresh(strategy), Nodes(nodes), mods  # type: ignore[abstract]
        self.contexts: dict[int, Any] = {}
        self.waiting: list[Message] | None = None

    def round(self, number: int, cohort: Cohort) -> dict[str, Numbers]:
        """What leaves in a round: the model, its metrics, and what the next round's messages say beside the model."""
        if self.waiting is None:
            self.arrays, self.config = record(model(cohort.clients[0].update)), ConfigRecord({"lr": 0.1})
            self.waiting = self._messages(number)
        self.answers: dict[int, dict[str, Any]] = {}
        replies = [self._reply(trained, message) for trained, message in cohort.replying(self.waiting)]
        arrays, metrics = self.strategy.aggregate_train(number, replies)
        found = {"form.model": np.array([float(arrays is not None)])}
        if arrays is not None:
            found |= arrays_in(arrays, "model")
            self.arrays = arrays
        if metrics is not None:
            found |= values_in(metrics, "metrics")
        self.waiting = self._messages(number + 1)
        return found | self._broadcast(self.waiting)

    def evaluated(self, number: int, cohort: Cohort) -> dict[str, Numbers]:
        """What leaves of an evaluation."""
        messages = list(self.strategy.configure_evaluate(number, self.arrays, ConfigRecord(), self.nodes))
        replies = []
        for place, (trained, message) in enumerate(cohort.replying(messages)):
            stamp(message, f"evaluate-{number}-{place}")
            replies.append(Message(RecordDict({"metrics": _metrics(trained)}), reply_to=message))
        metrics = self.strategy.aggregate_evaluate(number, replies)
        return self._broadcast(messages) | ({} if metrics is None else values_in(metrics, "evaluation"))

    def _broadcast(self, messages: Sequence[Message]) -> dict[str, Numbers]:
        """Who is asked, and what messages say beside the model that has left."""
        told = [one.metadata for one in messages]
        found, seen = _asked([one.dst_node_id for one in told]), set[int]()
        found["form.sent"] = hashed(*(f"{one.message_type} {one.group_id} {one.ttl}" for one in told))
        model = {key: array.data for key, array in self.arrays.items()}
        for place, message in enumerate(messages):
            if id(message.content) in seen:
                continue
            seen.add(id(message.content))
            parts, name = numbers_of(message), f"broadcast {place}"
            for key, records in message.content.array_records.items():
                if {part: array.data for part, array in records.items()} == model:
                    parts = {part: value for part, value in parts.items() if f"arrays.{key}." not in part}
            del parts["form.message"], parts["form.names"]
            found |= {_under(name, part): value for part, value in parts.items()}
        return found

    def _messages(self, number: int) -> list[Message]:
        messages = list(self.strategy.configure_train(number, self.arrays, self.config, self.nodes))
        for place, message in enumerate(messages):
            stamp(message, f"train-{number}-{place}")
        return messages

    def _reply(self, trained: Trained, message: Message) -> Message:
        if not self.mods:  # clients that answer alike: their arrays are packed once
            if id(trained) not in self.answers:
                self.answers[id(trained)] = dict(next(iter(reply(trained, message).content.array_records.values())))
            arrays = ArrayRecord(self.answers[id(trained)])
            return Message(RecordDict({ARRAYS: arrays, METRICS: _metrics(trained)}), reply_to=message)
        kept = self.contexts.setdefault(message.metadata.dst_node_id, context())
        message.content = copy.deepcopy(message.content)  # as a connection would
        return make_ffn(lambda asked, _: reply(trained, asked), list(self.mods))(message, kept)


class _Any:
    """Metrics of a client that measures whatever a strategy asks for: a number under every name."""

    usual = 0.5

    def __getitem__(self, key: str) -> Any:
        try:
            return super().__getitem__(key)  # type: ignore[misc]
        except KeyError:
            return self.usual

    def get(self, key: str, default: Any = None) -> Any:
        number = isinstance(default, int | float) and not isinstance(default, bool)
        return self[key] if key in self or number else default  # type: ignore[operator]


class _AnyOf(_Any, dict[str, Any]):
    """Of the older API."""


class _AnyRecord(_Any, MetricRecord):
    """Of the newer."""


def _metrics(trained: Trained, old: bool = False) -> Any:
    found = _AnyOf(trained.metrics) if old else _AnyRecord({**trained.metrics, COUNT: trained.examples})
    found.usual = trained.metrics.get("loss", 0.5)
    return found


class OldClients(ClientManager):
    """Clients without a connection."""

    def __init__(self, count: int) -> None:
        self.proxies: dict[str, ClientProxy] = {str(place): _Proxy(str(place)) for place in range(count)}  # type: ignore[abstract]

    def num_available(self) -> int:
        return len(self.proxies)

    def all(self) -> dict[str, ClientProxy]:
        return dict(self.proxies)

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        return num_clients <= len(self.proxies)

    def sample(
        self, num_clients: int, min_num_clients: int | None = None, criterion: Criterion | None = None
    ) -> list[ClientProxy]:
        return list(self.proxies.values())[:num_clients]


class _Proxy(ClientProxy):
    """A client that is never called."""


OldClients.__abstractmethods__ = _Proxy.__abstractmethods__ = frozenset()


class OldRounds:
    """Rounds of a strategy of `flwr.server.strategy`. mods: functions of (FitIns, FitRes) -> FitRes at every client."""

    def __init__(self, strategy: Any, nodes: int, mods: Sequence[Any]) -> None:
        self.strategy, self.clients, self.mods = fresh(strategy), OldClients(nodes), mods  # type: ignore[abstract]
        self.waiting: list[tuple[ClientProxy, FitIns]] | None = None

    def round(self, number: int, cohort: Cohort) -> dict[str, Numbers]:
        """What leaves in a round: the model, its metrics, and what the next round's messages say beside the model."""
        if self.waiting is None:
            self.names = list(cohort.clients[0].update)
            self.parameters = ndarrays_to_parameters(list(model(cohort.clients[0].update).values()))
            self.waiting = self.strategy.configure_fit(number, self.parameters, self.clients)
        results = [(proxy, self._reply(trained, asked)) for trained, (proxy, asked) in cohort.replying(self.waiting)]
        parameters, metrics = self.strategy.aggregate_fit(number, results, [])
        found = {"form.model": np.array([float(parameters is not None)])}
        if parameters is not None:
            found |= arrays_in(record(dict(zip(self.names, parameters_to_ndarrays(parameters), strict=True))), "model")
            self.parameters = parameters
        found |= values_in(metrics or {}, "metrics")
        self.waiting = self.strategy.configure_fit(number + 1, self.parameters, self.clients)
        return found | self._broadcast(self.waiting)

    def evaluated(self, number: int, cohort: Cohort) -> dict[str, Numbers]:
        """What leaves of an evaluation."""
        from flwr.common import EvaluateRes

        asked = self.strategy.configure_evaluate(number, self.parameters, self.clients)
        results = [
            (proxy, EvaluateRes(_OK, trained.metrics.get("loss", 0.0), trained.examples, _metrics(trained, old=True)))
            for trained, (proxy, _) in cohort.replying(asked)
        ]
        loss, metrics = self.strategy.aggregate_evaluate(number, results, [])
        found = values_in(metrics or {}, "evaluation") | self._broadcast(asked)
        return found if loss is None else found | {"evaluation.loss": np.array([float(loss)])}

    def _broadcast(self, asked: Sequence[tuple[ClientProxy, Any]]) -> dict[str, Numbers]:
        """Who is asked, and what it is told beside the model that has left."""
        found, seen = _asked([proxy.cid for proxy, _ in asked]), set[int]()
        for place, (_, told) in enumerate(asked):
            if id(told) in seen:
                continue
            seen.add(id(told))
            found |= values_in(told.config, f"broadcast {place}")
            if told.parameters.tensors != self.parameters.tensors:
                arrays = parameters_to_ndarrays(told.parameters)
                found |= arrays_in(record({str(n): one for n, one in enumerate(arrays)}), f"broadcast {place}.model")
        return found

    def _reply(self, trained: Trained, asked: FitIns) -> FitRes:
        sent = parameters_to_ndarrays(asked.parameters)
        answer = [np.asarray(one + update) for one, update in zip(sent, trained.update.values(), strict=True)]
        metrics = dict(trained.metrics) if self.mods else _metrics(trained, old=True)
        found = FitRes(_OK, ndarrays_to_parameters(answer), trained.examples, metrics)
        for mod in self.mods:
            found = mod(asked, found)
        return found


_OK = Status(code=Code.OK, message="")


def _asked(clients: Sequence[Any]) -> dict[str, Numbers]:
    """How many clients are asked, which, and in what order."""
    words = list(map(str, clients))
    return {"form.count": hashed(str(len(words))), "form.whom": hashed(*sorted(words)), "form.order": hashed(*words)}


def _under(name: str, part: str) -> str:
    return f"form.{name}.{part[5:]}" if is_word(part) else f"{name}.{part}"
