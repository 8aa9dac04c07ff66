"""A whole Flower ClientApp, played on neighbouring data.

An app reads its own data and takes its own model. A bare one is asked as partitions of a data set, with the model that
`fedpriv.checking.flower_bare_apps` finds. `AppTarget` says more: the model that the server sends, two data sets, and a
function that puts one of them where the app reads it. An app behind a guard of this project answers with the guard's
noise whatever it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_bare_apps import Parts, models, parts_of, run_config
from fedpriv.checking.flower_messages import (
    CLIENT,
    OLD_ARRAYS,
    OLD_CONFIG,
    SENT,
    Trained,
    numbers_of,
    quiet,
    record,
    sent,
    shared_modules,
)
from fedpriv.checking.flower_mods_known import known_mods
from fedpriv.checking.fresh_state import Memory
from fedpriv.checking.release_function import NotTaken
from fedpriv.checking.replay_numbers import bare_names
from fedpriv.checking.replayed import COUNTS
from fedpriv.checking.rounds import RoundsSubject, claim_of
from fedpriv.checking.seeded_data import Draws
from fedpriv.checking.subject import Numbers, Pair, Question, Recognised, Subject
from fedpriv.engines.contexts import empty_context
from fedpriv.engines.grid import RUN_ID

#: (message, context) -> reply; a `ClientApp`, or a guard.
App = Callable[[Message, Context], Message]
#: Partitions that a bare app is asked as: neighbours, and how many it is told that there are.
PARTITIONS, NUM_PARTITIONS = ((0, 1), (0, 2), (1, 3)), 10
#: What is added to every number of the model where clients' answers shall be far apart.
FAR = 100.0
#: Plays of each side where it is asked whether numbers leave bare.
PLAYS = 8


@dataclass(frozen=True)
class Asked:
    """The data of a partition, changed as `fedpriv.checking.seeded_data` says, and a model whose numbers are all moved
    by ``moved``.
    """

    partition: int
    moved: float = 0.0
    change: str = ""


@dataclass(frozen=True)
class AppTarget:
    """An app and what a check needs to play it.

    arrays: the model that a message carries, by name. left, right: data of two neighbouring clients; give: puts one of
    them where the app reads it; None: the app is asked as two partitions. config: of the message; run_config: of the
    context. unit: what left and right differ in. old: the app is a NumPyClient. recognised: what is known of it beside
    its mods, such as `known_guard`. message_type: of a round ("train", "train.ACTION", "query").
    """

    app: App
    arrays: Mapping[str, Any]
    left: Any = Asked(0)
    right: Any = Asked(1)
    give: Callable[[Any], None] | None = None
    adjacency: str = "replace-one"
    unit: str = "client"
    config: Mapping[str, Any] | None = None
    run_config: Mapping[str, Any] | None = None
    old: bool = False
    recognised: Sequence[Recognised] = ()
    message_type: str = "train"


class AppSubject(RoundsSubject):
    """Data of a round are what `AppTarget.give` takes, or `Asked`."""

    kind: ClassVar[str] = "Flower ClientApp"

    def __init__(
        self, target: AppTarget, question: Question, name: str = "app", pairs: Sequence[Pair] | None = None
    ) -> None:
        self.target = target
        self.draws: Draws | None = None
        self.known: frozenset[str] = frozenset()
        shared_modules()
        self.parts = parts_of(target.app) if isinstance(target.app, ClientApp) else Parts({})
        known = list(target.recognised)
        if not known and self.parts.functions:
            known = known_mods(self.parts.mods.get(target.message_type, []), target.adjacency)
        mods = [mod for stack in self.parts.mods.values() for mod in stack]
        self.memories = [Memory(one) for one in (*self.parts.functions.values(), *mods)] if pairs else []
        super().__init__(
            name=name,
            pairs=pairs or [Pair("the two data sets", target.left, target.right, target.adjacency, target.unit)],
            recognised=known,
            claim=claim_of(known, question, "the app's mod", target.adjacency),
            stateful=True,
            counts_differ=True,
        )
        self.notes = [] if target.give else [_of_partitions()]
        self.notes += [] if pairs else self.further(question)

    def quiet(self) -> AbstractContextManager[None]:
        return quiet()

    def rounds(self, data: Sequence[Any]) -> Iterator[dict[str, Numbers]]:
        for memory in self.memories:
            memory.restore()
        target = self.target
        kept: dict[int, Context] = {}
        for number, one in enumerate(data, 1):
            if target.give is not None:
                target.give(one)
            asked = one if target.give is None and isinstance(one, Asked) else Asked(0)
            if asked.partition not in kept:
                kept[asked.partition] = empty_context(RUN_ID, CLIENT, asked.partition, NUM_PARTITIONS)
                kept[asked.partition].run_config.update(target.run_config or {})
            with nullcontext() if self.draws is None else self.draws.changed(asked.change):
                found = numbers_of(target.app(self._message(number, asked), kept[asked.partition]))
            yield {name: value for name, value in found.items() if name not in self.known}

    def _message(self, number: int, asked: Asked) -> Message:
        kind, old = self.target.message_type, self.target.old
        config = dict(SENT if self.target.config is None else self.target.config)
        message = sent(Trained(dict(self.target.arrays), config=config), number, old=old, message_type=kind)
        arrays = {name: _moved(array, asked.moved) for name, array in self.target.arrays.items()}
        for name in list(message.content.array_records):
            message.content[name] = record(arrays)
        if old and kind == "evaluate":
            for name in (OLD_ARRAYS, OLD_CONFIG):
                message.content[name.replace("fitins", "evaluateins")] = message.content.pop(name)
        return message

    def further(self, question: Question) -> Iterator[Finding]:
        """Numbers that leave bare in answers to other messages: evaluation, queries."""
        pair, claim = self.pairs[0], question.claim
        for kind in self.parts.functions:
            if kind == self.target.message_type:
                continue
            other = AppSubject.__new__(AppSubject)
            other.__dict__.update({**self.__dict__, "target": replace(self.target, message_type=kind)})
            try:
                sides = [[other.play(side, seed)[0] for seed in range(PLAYS)] for side in (pair.left, pair.right)]
            except Exception:  # an app that answers no such message
                continue
            names = bare_names(sides)
            if claim is None or claim.unit != "client":  # two clients may have unequal numbers of examples
                names = [name for name in names if not name.rpartition(".")[2].startswith(COUNTS)]
            if names:
                yield Finding(
                    "replayed",
                    "evaluation-bare" if kind.startswith("evaluate") else "answer-bare",
                    "doubt" if claim is None else "fault",
                    f"In answer to a message of type {kind}, {', '.join(names[:3])} moved with the data and never "
                    f"changed in {PLAYS} calls with other seeds: it leaves without noise; epsilon is infinite.",
                    "Add noise to every number that leaves, or do not send it.",
                )


def _moved(array: Any, by: float) -> Any:
    array = np.asarray(array)
    return (array + array.dtype.type(by)).astype(array.dtype) if by and array.dtype.kind == "f" else array


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
        "The app was asked as partitions of its data set: their data are two clients' data as the app reads them, no "
        "worst case. To try others, make an `AppTarget` with `give`, a function that puts a data set where the app "
        "reads it.",
    )


def bare_app(app: ClientApp, question: Question) -> AppSubject:
    """An app asked as partitions, with the first model that it trains with. Raises `NotTaken` with its own error."""
    parts = parts_of(app)
    if not parts.functions:
        raise NotTaken("the app has no function that answers a message")
    first, errors = None, []
    for words, model in models(parts):
        target = AppTarget(app, model, run_config=run_config(parts), old=parts.old, message_type=parts.first)
        try:
            trial = AppSubject(target, question, pairs=_partitions())
            numbers = trial.play(Asked(0), 1)[0].numbers
        except Exception as error:  # of foreign code, which may want another model
            errors.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            continue
        if "form.error" not in numbers:
            first = trial
            first.name = f"an app asked as partitions; its model was found in {words}"
            break
    if first is None:
        reason = errors[0] if errors else "it answers with an error"
        raise NotTaken(
            f"the app answers no message that a check makes ({reason}): check an AppTarget(app, arrays, left, right, "
            "give) of fedpriv.checking.flower_apps, where arrays is the model that the server sends, left and right "
            "two data sets, and give puts one of them where the app reads it"
        )
    _find_data(first, question)
    if not _follows_data(first):
        raise NotTaken(
            "the app answers alike as every partition, so nothing is seen of its data: check an AppTarget(app, arrays, "
            "left, right, give) of fedpriv.checking.flower_apps, whose give puts a data set where the app reads it"
        )
    first.notes = [*first.notes, *first.further(question)]
    return first


def _find_data(subject: AppSubject, question: Question) -> None:
    """Where an app makes its data of a seed that follows its partition, its pairs are one client with other data."""
    of_clients = question.claim is not None and question.claim.unit == "client"
    draws = Draws(subject.parts.module, unit="client" if of_clients else "example")
    try:
        found = draws.survey(lambda client, seed: subject.play(Asked(client, FAR * (seed == 2)), seed))
    except Exception:  # of foreign code: the layers say so
        return
    subject.draws = draws
    before, subject.pairs = subject.pairs, _changed_data("data set" if of_clients else "example")
    if found and _follows_data(subject):
        subject.notes = [one for one in subject.notes if one.name != "data-of-partitions"]
    else:
        subject.draws, subject.pairs = None, before
        subject.known = _numbers_of_partitions(subject)


NOTHING = np.zeros(0)


def _numbers_of_partitions(subject: AppSubject) -> frozenset[str]:
    """Records that hold the partition's number, which whoever sends the message knows."""
    plays = {one: subject.play(Asked(one), 1)[0].numbers for two in PARTITIONS for one in two}
    return frozenset(
        name
        for name in plays[0]
        if all(np.array_equal(found.get(name, NOTHING), [one]) for one, found in plays.items())
    )


def _changed_data(unit: str) -> list[Pair]:
    far = [Asked(0, FAR), Asked(0, FAR, "other")]
    words = "all rows" if unit == "data set" else "one row"
    found = [
        Pair("a client's data and another client's", Asked(0), Asked(0, change="other"), "replace-one", "data set"),
        Pair("the same, and a model far from both", far[0], far[1], "replace-one", "data set"),
    ]
    for name, left, right in (
        ("large and opposite", "large", "large, opposite"),
        ("equal and opposite", "equal", "equal, opposite"),
        ("large and small", "large", "small"),
    ):
        sides = (Asked(0, change=left), Asked(0, change=right))
        found.append(Pair(f"{words} of a client's data {name}", *sides, "replace-one", unit))
    return found


def _partitions() -> list[Pair]:
    name = "partitions {} and {} of the app's data"
    found = [Pair(name.format(*two), Asked(two[0]), Asked(two[1]), "replace-one", "data set") for two in PARTITIONS]
    far = [Asked(one, FAR) for one in PARTITIONS[0]]
    words = name.format(*PARTITIONS[0]) + ", and a model far from both"
    return [*found, Pair(words, far[0], far[1], "replace-one", "data set")]


def _follows_data(subject: AppSubject) -> bool:
    """Whether any of the pairs is told apart under equal seeds."""
    for pair in subject.pairs:
        for seed in range(PLAYS // 2):
            try:
                one, other = (subject.play(side, seed)[0].numbers for side in (pair.left, pair.right))
            except Exception:  # the layers say so
                return True
            if one.keys() != other.keys() or any(not np.array_equal(one[name], other[name]) for name in one):
                return True
    return False


def recognises(target: Any, question: Question) -> Subject | None:
    """An `AppTarget`, or a bare `ClientApp`."""
    if isinstance(target, AppTarget):
        return AppSubject(target, question)
    return bare_app(target, question) if isinstance(target, ClientApp) else None
