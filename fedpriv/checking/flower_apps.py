"""A whole Flower ClientApp, played on neighbouring data that its user says how to give.

An app reads its own data and takes its own model, and a check knows neither. `AppTarget` tells it: the model that the
server sends, two data sets, and a function that puts one of them where the app reads it. Without such a function the
app is asked as two partitions. An app behind a guard of this project answers with the guard's noise whatever it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_messages import CLIENT, SENT, Trained, numbers_of, quiet, record, sent
from fedpriv.checking.flower_mods_known import known_mods
from fedpriv.checking.rounds import RoundsSubject, claim_of
from fedpriv.checking.subject import Numbers, Pair, Question, Recognised, Subject
from fedpriv.engines.contexts import empty_context
from fedpriv.engines.grid import RUN_ID

#: (message, context) -> reply; a `ClientApp`, or a guard.
App = Callable[[Message, Context], Message]


@dataclass(frozen=True)
class AppTarget:
    """An app and what a check needs to play it.

    arrays: the model that a message carries, by name. left, right: data of two neighbouring clients; give: puts one of
    them where the app reads it; None: the app is asked as two partitions. config: of the message; run_config: of the
    context. unit: what left and right differ in. old: the app is a NumPyClient. recognised: what is known of it beside
    its mods, such as `known_guard`.
    """

    app: App
    arrays: Mapping[str, Any]
    left: Any = 0
    right: Any = 1
    give: Callable[[Any], None] | None = None
    adjacency: str = "replace-one"
    unit: str = "client"
    config: Mapping[str, Any] | None = None
    run_config: Mapping[str, Any] | None = None
    old: bool = False
    recognised: Sequence[Recognised] = ()


class AppSubject(RoundsSubject):
    """Data of a round are what `AppTarget.give` takes, or a partition's number."""

    kind: ClassVar[str] = "Flower ClientApp"

    def __init__(self, target: AppTarget, question: Question, name: str = "app") -> None:
        self.target = target
        recognised = list(target.recognised)
        if not recognised and isinstance(target.app, ClientApp):
            recognised = known_mods(list(getattr(target.app, "_mods", ())), target.adjacency)
        super().__init__(
            name=name,
            pairs=[Pair("the two data sets", target.left, target.right, target.adjacency, target.unit)],
            recognised=recognised,
            claim=claim_of(recognised, question, "the app's mod", target.adjacency),
            stateful=True,
        )
        self.notes = [] if target.give else [_of_partitions()]

    def quiet(self) -> AbstractContextManager[None]:
        return quiet()

    def rounds(self, data: Sequence[Any]) -> Iterator[dict[str, Numbers]]:
        target = self.target
        kept: dict[int, Context] = {}
        for number, one in enumerate(data, 1):
            if target.give is not None:
                target.give(one)
            partition = 0 if target.give is not None else int(one)
            if partition not in kept:
                kept[partition] = empty_context(RUN_ID, CLIENT, partition, 2)
                kept[partition].run_config.update(target.run_config or {})
            yield numbers_of(target.app(self._message(number), kept[partition]))

    def _message(self, number: int) -> Message:
        config = dict(SENT if self.target.config is None else self.target.config)
        message = sent(Trained(dict(self.target.arrays), config=config), number, old=self.target.old)
        records = message.content.array_records
        for name in records:
            message.content[name] = record(self.target.arrays)
        return message


def known_guard(terms: Any, dimension: int) -> Recognised:
    """What a guard's terms (`fedpriv.guard.terms.Terms`) say that one answer about so many numbers costs."""
    words = (
        f"a guard of this project: {terms.shards} shards of unit {terms.unit}, answers clipped to {terms.clip:g}, "
        f"noise {terms.noise_multiplier:g} x the clip norm"
    )
    return Recognised(words, terms.event(dimension))


def _of_partitions() -> Finding:
    return Finding(
        "recognised",
        "data-of-partitions",
        "note",
        "The app was asked as partitions 0 and 1: their data are two clients' data as the app reads them, no worst "
        "case. To try others, make an `AppTarget` with `give`, a function that puts a data set where the app reads it.",
    )


def recognises(target: Any, question: Question) -> Subject | None:
    """An `AppTarget`. Of a bare `ClientApp` it says what is missing, in `NotTaken`."""
    if isinstance(target, AppTarget):
        return AppSubject(target, question)
    if isinstance(target, ClientApp):
        from fedpriv.checking.release_function import NotTaken

        raise NotTaken(
            "a ClientApp reads its own data and takes its own model: check an AppTarget(app, arrays, left, right, "
            "give) of fedpriv.checking.flower_apps, where arrays is the model that the server sends, left and right "
            "two data sets, and give puts one of them where the app reads it"
        )
    return None
