"""Adapter of functions ``release(update, rng)``: an update in, what is released out.

The update may be an array, a tensor, a list or a dict of these; rng a NumPy or torch generator, a seed, or missing: the
first combination that the function takes without an error is used. A class without arguments whose objects can be
called is such a function with a state of its own.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedpriv.checking.fresh_state import Memory
from fedpriv.checking.generators import copied, seeded, seeds_of
from fedpriv.checking.numbers import played
from fedpriv.checking.nvflare_filters import as_function
from fedpriv.checking.subject import Numbers, Played, Question, Subject
from fedpriv.checking.update_inputs import direction, forms_of_update, update_pairs, update_probes
from fedpriv.common.errors import FedprivError

#: seed (None: of the operating system) -> what is passed as rng.
MakeRng = Callable[[int | None], Any]
#: (the target, update, rng) -> what is released.
Convention = Callable[[Any, Any, Any], Any]


class NotTaken(FedprivError):
    """The target took no input that the check tried."""


@dataclass
class ReleaseFunction(Subject):
    """call: (update, rng) -> what is released. fresh: gives a call without memory of earlier ones."""

    kind: ClassVar[str] = "release function"
    fresh: Callable[[], Callable[[Any, Any], Any]] = field(default=lambda: lambda update, rng: update)
    rng: MakeRng = field(default=lambda seed: None)

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        return self.series([data] * calls, seed)

    def series(self, data: Sequence[Any], seed: int | None) -> list[Played]:
        with seeded(seed):
            call, rng = self.fresh(), self.rng(seed)
            return [played("released", call(copy.deepcopy(one), rng)) for one in data]

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        (seed,) = seeds_of(seed, 1)
        with seeded(seed):
            rng = self.rng(seed)
            return np.stack([played("released", self.fresh()(copy.deepcopy(data), rng)).flat() for _ in range(n)])


def recognises(target: Any, question: Question) -> Subject | None:
    """A subject for each callable that takes an update. Raises `NotTaken` with the target's own error."""
    filters = as_function(target)
    target = target if filters is None else filters
    if not callable(target):
        return None
    fresh, function = fresh_callable(target)
    words, form, convention, rng = _accepted(fresh, function)
    pairs, probes = [], []
    unit = (question.claim and question.claim.unit) or "client"
    for dimension in (1,) if words.startswith("a number") else question.dims:
        pairs += update_pairs(dimension, form, question.bound, unit)
        probes += update_probes(dimension, form, question.bound)
    return ReleaseFunction(
        name=f"a function of {words}",
        pairs=pairs,
        probes=probes,
        claim=question.claim,
        fresh=lambda: partial(convention, fresh()),
        rng=rng,
    )


def fresh_callable(target: Any) -> tuple[Callable[[], Any], Any]:
    """(maker of a fresh callable, the callable whose signature counts)."""
    if inspect.isclass(target):
        return target, _an_object(target)
    if inspect.isroutine(target):
        memory = Memory(target)

        def again() -> Any:
            memory.restore()
            return target

        return again, target
    try:
        copy.deepcopy(target)
    except Exception:
        return lambda: target, target
    return lambda: copied(target), target


def _an_object(target: type) -> Any:
    try:
        made = target()
    except Exception as error:
        raise NotTaken(f"its objects cannot be made without arguments: {error}") from error
    if not callable(made):
        raise NotTaken("its objects cannot be called with an update")
    return made


def _generators(torch: Any) -> list[tuple[str, MakeRng]]:
    def of_torch(seed: int | None) -> Any:
        made = torch.Generator()
        made.manual_seed(_fresh_bits(62) if seed is None else seed)
        return made

    found: list[tuple[str, MakeRng]] = [("a NumPy generator", np.random.default_rng)]
    if torch is not None:
        from fedpriv.mechanisms.noise import SeededNoise

        found.append(("a torch generator", of_torch))
        found.append(("a noise source", lambda seed: SeededNoise(_fresh_bits(62) if seed is None else seed)))
    return [
        *found,
        ("a Python generator", lambda seed: random.SystemRandom() if seed is None else random.Random(seed)),
        ("a legacy NumPy generator", np.random.RandomState),
        ("a seed", lambda seed: _fresh_bits(31) if seed is None else seed),
    ]


def generators_of(torch: Any, function: Any) -> list[tuple[str, MakeRng]]:
    """(words, what makes it) of everything that is tried as rng. Generators of a type that an argument of the function
    is annotated with come first: others may have methods of the same names with other arguments.
    """
    generators = _generators(torch)
    try:
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except Exception:
        return generators
    hints.pop("return", None)
    wanted = {part for hint in hints.values() for part in (typing.get_args(hint) or (hint,)) if inspect.isclass(part)}
    return sorted(generators, key=lambda one: not wanted & (set(type(one[1](1)).__mro__) - {object}))


def _fresh_bits(bits: int) -> int:
    return random.SystemRandom().getrandbits(bits)


def _conventions(function: Any) -> list[tuple[bool, Convention]]:
    """(whether it passes rng, convention) of each that the signature allows. Raises `NotTaken`."""

    def alone(call: Any, update: Any, rng: Any) -> Any:
        return call(update)

    def second(call: Any, update: Any, rng: Any) -> Any:
        return call(update, rng)

    def named(name: str) -> Convention:
        return lambda call, update, rng: call(update, **{name: rng})

    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [(True, second), (False, alone)]
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    keywords = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    any_place = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if not places and not any_place:
        raise NotTaken("the function takes no update: a target is called as release(update, rng) or release(update)")
    needed = [one for one in places[1:] if one.default is one.empty]
    needed_by_name = [one for one in keywords if one.default is one.empty]
    if len(needed) + len(needed_by_name) > 1:
        names = ", ".join(one.name for one in (*needed, *needed_by_name))
        raise NotTaken(
            f"the function needs more than an update and a generator ({names}): wrap it in one of two arguments"
        )
    if needed:
        return [(True, second)]
    if needed_by_name:
        return [(True, named(needed_by_name[0].name))]
    optional = [one for one in (*places[1:], *keywords) if one.default is None]
    positional = [one for one in optional if one.kind is one.POSITIONAL_ONLY]
    found = [(True, second if one in positional else named(one.name)) for one in optional]
    return [*found, *([(True, second)] if any_place else []), (False, alone)]


def _accepted(fresh: Callable[[], Any], function: Any) -> tuple[str, Callable[[Numbers], Any], Convention, MakeRng]:
    """(words, form of the update, convention, rng) of the first combination that works; a generator that may be left
    out is passed only if it changes the result. Raises `NotTaken`.
    """
    torch = sys.modules.get("torch")
    errors: list[Exception] = []
    size = 16
    conventions = _conventions(function)
    for passes, convention in conventions:
        for of_rng, rng in generators_of(torch, function) if passes else [("", lambda seed: None)]:
            for of_form, form in forms_of_update(torch):
                trial = ReleaseFunction("", (), fresh=lambda c=convention: partial(c, fresh()), rng=rng)  # type: ignore[misc]
                try:
                    first = trial.play(form(direction(size)), 1)[0].flat()
                except OSError as error:  # a file or a network that is not there, whatever the form of its input
                    raise NotTaken(_words([error])) from error
                except Exception as error:
                    errors.append(error)
                    continue
                if len(first) < 2:  # its form alone
                    errors.append(NotTaken("nothing that is returned is a number"))
                    continue
                if passes and len(conventions) > 1 and not _decides(trial, form(direction(size))):
                    break
                return f"{of_form} and {of_rng}" if passes else of_form, form, convention, rng
            else:
                continue
            break
    raise NotTaken(_words(errors))


def _decides(trial: ReleaseFunction, data: Any) -> bool:
    """Whether the generator passed changes what is released, while the process's own begin alike."""
    seen = []
    for own in (1, 2):
        with seeded(1):
            seen.append(played("released", trial.fresh()(copy.deepcopy(data), trial.rng(own))).flat())
    return not np.array_equal(seen[0], seen[1], equal_nan=True)


def _words(errors: Sequence[Exception]) -> str:
    """The error that says most: not the one of a form of input that was not meant."""
    telling = [error for error in errors if not isinstance(error, TypeError | AttributeError | IndexError)]
    if not errors:
        return "it takes none of the inputs that a check tries"
    chosen = telling[0] if telling else errors[0]
    text = " ".join(str(chosen).split())[:300]
    return text if isinstance(chosen, NotTaken) else f"{type(chosen).__name__}: {text}"
