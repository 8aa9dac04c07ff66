"""Adapter of functions ``train(data)``: a small data set in, what is published out, by a loop written without Opacus.

It is asked where a function takes no update. Data are rows and targets: a pair, two arguments, a data set or loader of
torch, or a list of these, one for each client: the first form that the function takes (`fedpriv.checking.data_inputs`).
A generator or a seed may be its last argument. Nothing is known of the loop's inside: its output alone is replayed and
sampled.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from fedpriv.checking.data_inputs import (
    NUMBERS,
    WANTED,
    WIDE,
    Form,
    data_pairs,
    data_probes,
    forms,
    mixing,
    ordinary,
    quiet,
)
from fedpriv.checking.generators import seeded
from fedpriv.checking.numbers import played
from fedpriv.checking.release_function import MakeRng, ReleaseFunction, fresh_callable, generators_of
from fedpriv.checking.subject import Played, Question, Subject

#: Numbers of a row that are tried after `NUMBERS`, where no error of the target says how many it wants.
OTHER_NUMBERS = (2, 8, 10, 16, 20, 32)


@dataclass
class DataFunction(ReleaseFunction):
    """One call is a whole run: several calls of one instance are not looked at."""

    kind: ClassVar[str] = "function of data"
    series = Subject.series

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        if calls > 1:
            raise NotImplementedError
        with seeded(seed):
            return [played("released", self.fresh()(copy.deepcopy(data), self.rng(seed)))]

    def one(self, data: Any, seed: int) -> Played:
        return self.play(data, seed)[0]


def recognises(target: Any, question: Question) -> Subject | None:
    """A subject for a callable that takes a data set, or None where it takes none of those that are tried."""
    fresh, function = fresh_callable(target)
    wanted = [NUMBERS]
    for numbers in wanted:
        for form in forms():
            for of_rng, rng in _rngs(function, len(form.make(*ordinary(numbers)))):
                trial = DataFunction("", (), fresh=partial(_passes, fresh, bool(of_rng)), rng=rng)
                if not _takes(trial, form, numbers, wanted):
                    continue
                form = _unmixed(trial, form, numbers)
                trial.name = f"a function of {form.words}" + (f" and {of_rng}" if of_rng else "")
                trial.claim = question.claim
                wide = _takes(trial, form, WIDE, []) and _plays(trial, form.make(*quiet(WIDE, 1)))
                trial.pairs = data_pairs(form, numbers, question, trial.one, wide)
                trial.probes = data_probes(form, numbers)
                return trial
        if numbers == wanted[-1] == NUMBERS:
            wanted += OTHER_NUMBERS
    return None


def _passes(fresh: Callable[[], Any], rng_too: bool) -> Any:
    return partial(_called, fresh(), rng_too)


def _called(function: Any, rng_too: bool, data: tuple[Any, ...], rng: Any) -> Any:
    return function(*copy.deepcopy(data), *([rng] if rng_too else []))


def _rngs(function: Any, arguments: int) -> Iterator[tuple[str, MakeRng]]:
    """(words, maker) of what is passed after the data: nothing, or a generator where there is a place for one."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in places if one.default is one.empty]
    if len(needed) <= arguments:
        yield "", lambda seed: None
    if len(places) > arguments and len(needed) in (arguments, arguments + 1):
        optional = places[arguments].default is None or places[arguments].default is places[arguments].empty
        if optional:
            yield from generators_of(sys.modules.get("torch"), function)


def _takes(trial: DataFunction, form: Form, numbers: int, wanted: list[int]) -> bool:
    """Whether a call gives numbers. wanted: gets the length of rows that an error of the target asks for."""
    try:
        return len(trial.one(form.make(*ordinary(numbers)), 1).flat()) > 1  # more than its form
    except Exception as error:  # of the target's own, for data that it was not meant for
        found = WANTED.search(str(error))
        if found and int(found[1]) not in wanted and wanted:
            wanted.append(int(found[1]))
        return False


def _plays(trial: DataFunction, data: Any) -> bool:
    try:
        return len(trial.one(data, 1).flat()) > 1
    except Exception:
        return False


def _unmixed(trial: DataFunction, form: Form, numbers: int) -> Form:
    """The same form with targets as plain numbers where a column of them is broadcast against predictions."""
    plain = next((one for one in forms() if one.words == form.words.replace("a column of numbers", "numbers")), form)
    if plain.words == form.words or not _takes(trial, plain, numbers, []):
        return form
    mixed = [mixing(partial(trial.one, one.make(*ordinary(numbers)), 1)) for one in (form, plain)]
    return plain if mixed[1] < mixed[0] else form
