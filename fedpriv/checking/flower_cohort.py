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
    model,
    record,
    reply,
    values_in,
)
from fedpriv.checking.reading import Numbers
from fedpriv.engines.grid import RUN_ID, identify_server, stamp

#: What every round's message holds beside what the strategy adds; a round's number is public.
PUBLIC = ("server-round", "server_round", "current_round")


Asked = TypeVar("Asked")


@dataclass(frozen=True)
class Cohort:
    """Answers of a round's clients; the first is the neighbour. More clients than given: the last answers for them.

    silent: so many clients, from the first on, send no reply; below 0: all but so many, which are the last.
    """

    clients: tuple[Trained, ...]
    silent: int = 0

    def of(self, count: int) -> Iterator[Trained]:
        for place in range(count):
            yield self.clients[min(place, len(self.clients) - 1)]

    def replying(self, asked: Sequence[Asked]) -> list[tuple[Trained, Asked]]:
        """(answer, what it was asked) of each client that replies."""
        return list(zip(self.of(len(asked)), asked, strict=True))[self.silent :]

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
        return found | _broadcast(self.waiting[0].content.config_records.values() if self.waiting else ())

    def evaluated(self, number: int, cohort: Cohort) -> dict[str, Numbers]:
        """What leaves of an evaluation."""
        messages = list(self.strategy.configure_evaluate(number, self.arrays, ConfigRecord(), self.nodes))
        replies = []
        for place, (trained, message) in enumerate(cohort.replying(messages)):
            stamp(message, f"evaluate-{number}-{place}")
            metrics = MetricRecord({**trained.metrics, COUNT: trained.examples})
            replies.append(Message(RecordDict({"metrics": metrics}), reply_to=message))
        metrics = self.strategy.aggregate_evaluate(number, replies)
        return {} if metrics is None else values_in(metrics, "evaluation")

    def _messages(self, number: int) -> list[Message]:
        messages = list(self.strategy.configure_train(number, self.arrays, self.config, self.nodes))
        for place, message in enumerate(messages):
            stamp(message, f"train-{number}-{place}")
        return messages

    def _reply(self, trained: Trained, message: Message) -> Message:
        if not self.mods:  # clients that answer alike: their arrays are packed once
            if id(trained) not in self.answers:
                self.answers[id(trained)] = dict(next(iter(reply(trained, message).content.array_records.values())))
            metrics = MetricRecord({**trained.metrics, COUNT: trained.examples})
            arrays = ArrayRecord(self.answers[id(trained)])
            return Message(RecordDict({ARRAYS: arrays, METRICS: metrics}), reply_to=message)
        kept = self.contexts.setdefault(message.metadata.dst_node_id, context())
        message.content = copy.deepcopy(message.content)  # as a connection would
        return make_ffn(lambda asked, _: reply(trained, asked), list(self.mods))(message, kept)


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
        return found | _broadcast([asked.config for _, asked in self.waiting[:1]])

    def evaluated(self, number: int, cohort: Cohort) -> dict[str, Numbers]:
        """What leaves of an evaluation."""
        from flwr.common import EvaluateRes

        asked = self.strategy.configure_evaluate(number, self.parameters, self.clients)
        results = [
            (proxy, EvaluateRes(_OK, trained.metrics.get("loss", 0.0), trained.examples, dict(trained.metrics)))
            for trained, (proxy, _) in cohort.replying(asked)
        ]
        loss, metrics = self.strategy.aggregate_evaluate(number, results, [])
        found = values_in(metrics or {}, "evaluation")
        return found if loss is None else found | {"evaluation.loss": np.array([float(loss)])}

    def _reply(self, trained: Trained, asked: FitIns) -> FitRes:
        sent = parameters_to_ndarrays(asked.parameters)
        answer = [np.asarray(one + update) for one, update in zip(sent, trained.update.values(), strict=True)]
        found = FitRes(_OK, ndarrays_to_parameters(answer), trained.examples, dict(trained.metrics))
        for mod in self.mods:
            found = mod(asked, found)
        return found


_OK = Status(code=Code.OK, message="")


def _broadcast(configs: Iterable[Any]) -> dict[str, Numbers]:
    found: dict[str, Numbers] = {}
    for config in configs:
        found |= values_in({key: value for key, value in config.items() if key not in PUBLIC}, "broadcast")
    return found
