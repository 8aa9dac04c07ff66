"""Adapter of functions ``release(update, rng)``: an update in, what is released out; and of functions of data.

The update may be an array, a tensor, a list or a dict of these; rng a NumPy or torch generator, a seed, or missing: the
first combination that the function takes without an error is used. A class without arguments whose objects can be
called is such a function with a state of its own. Which forms are asked first, `recognises` says.
"""

from __future__ import annotations

import copy
import inspect
import random
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from fedpriv.checking.findings import words_of
from fedpriv.checking.generators import Memory, copied, seeded, seeds_of
from fedpriv.checking.lines import Lines
from fedpriv.checking.reading import Numbers, Played, is_word, released
from fedpriv.checking.subject import Pair, Probe, Question, Subject
from fedpriv.common.errors import FedprivError

# --- update inputs ----------------------------------------------------------------------------------------------------
# Worst-case pairs and probes of an update: a vector of any length, in the form that a target takes.

#: L2 norm of an update that every clipping has to shorten, and of one that none has to.
LONG, SHORT = 1e4, 1e-3
#: Lengths of the probe.
LENGTHS = (1e-2, 1.0, 1e2, 1e4, 1e6, 1e8)


def direction(dimension: int) -> Numbers:
    """A unit vector [d] whose coordinates have mixed signs and no two equal sizes."""
    rng = np.random.default_rng(dimension)
    vector = rng.choice([-1.0, 1.0], dimension) * np.linspace(0.8, 1.2, dimension)
    return np.asarray(vector / np.linalg.norm(vector))


def axis(dimension: int, place: int = 0) -> Numbers:
    return np.eye(1, dimension, place)[0]


def update_pairs(dimension: int, form: Callable[[Numbers], Any], bound: float | None, unit: str) -> list[Pair]:
    """Neighbours: any update against any other, or against none. bound: no update is longer."""
    u, long = direction(dimension), bound or LONG
    v = u * np.where(np.arange(dimension) % 2, 1.0, -1.0)
    found = [
        ("opposite updates", long * u, -long * u),
        ("opposite updates along one coordinate", long * axis(dimension), -long * axis(dimension)),
        ("no update against one", 0 * u, long * u),
        ("no update against one along one coordinate", 0 * u, long * axis(dimension)),
        ("a short update against a long one in its direction", min(SHORT, long) * u, long * u),
        ("updates in two directions", long * u, long * v),
    ]
    return [
        Pair(name, form(left), form(right), "replace-one" if left.any() else "zero-out", unit)
        for name, left, right in found
    ]


def update_probes(dimension: int, form: Callable[[Numbers], Any], bound: float | None) -> list[Probe]:
    """A vector that grows, one along a coordinate that grows, and long and short vectors with what is no number."""
    u = direction(dimension)
    broken = []
    for value, length in [(one, LENGTHS[-1]) for one in (np.nan, np.inf, -np.inf)] + [
        (one, sign) for one in (np.nan, np.inf) for sign in (1, -1)
    ]:
        one = length * u
        one[0] = value
        broken.append(form(one))
    probes = [Probe("broken numbers", "broken", broken)]
    if bound is None:
        probes += [
            Probe("a longer update", "length", [form(length * u) for length in LENGTHS], LENGTHS),
            Probe(
                "one larger number",
                "length",
                [form(0.01 * u + length * axis(dimension)) for length in LENGTHS],
                LENGTHS,
            ),
        ]
    return probes


def in_layers(vector: Numbers) -> list[Numbers]:
    """[d] as the arrays of a small model: a matrix of two rows, and the rest."""
    half = len(vector) // 4 * 2
    return [vector[:half].reshape(2, -1).copy(), vector[half:].copy()]


def forms_of_update(torch: Any | None) -> Sequence[tuple[str, Callable[[Numbers], Any]]]:
    """(words, vector [d] -> an update) of every form that is tried, the likeliest first."""
    forms: list[tuple[str, Callable[[Numbers], Any]]] = [("a NumPy array", lambda v: np.array(v))]
    if torch is not None:
        forms.append(("a torch tensor", lambda v: torch.tensor(v, dtype=torch.float32)))
    forms += [
        ("a list of NumPy arrays", lambda v: in_layers(np.array(v, np.float32))),
        ("a dict of NumPy arrays", lambda v: dict(zip(("a", "b"), in_layers(np.array(v, np.float32))))),
    ]
    if torch is not None:
        forms += [
            ("a list of torch tensors", lambda v: [torch.tensor(p, dtype=torch.float32) for p in in_layers(v)]),
            (
                "a dict of torch tensors",
                lambda v: {n: torch.tensor(p, dtype=torch.float32) for n, p in zip("ab", in_layers(v))},
            ),
        ]
    return [*forms, ("a list of numbers", lambda v: [float(x) for x in v]), ("a number", lambda v: float(v[0]))]


# --- nvflare filters --------------------------------------------------------------------------------------------------
# NVFlare filters as one function of a dict of arrays: ``process(shareable, fl_ctx)``, ``process(dxo, shareable,
# fl_ctx)`` or ``process_dxo`` with the same arguments, played by `fedpriv.checking.functions`.


class Filters:
    """Filters in the order in which a client applies them. A call gives the last one's result, None: it is blocked."""

    def __init__(self, filters: list[Any]) -> None:
        self.filters = filters

    def __call__(self, update: dict[str, Any]) -> Any:
        result: Any = SimpleNamespace(data_kind="WEIGHT_DIFF", data=update, meta={"NUM_STEPS_CURRENT_ROUND": 1})
        for one in self.filters:
            method = one.process if inspect.ismethod(getattr(one, "process", None)) else one.process_dxo
            places = [part for part in inspect.signature(method).parameters.values() if part.kind <= 1]
            two = len(places) == 2
            result = _of_the_package(method, result) if two else method(*(result, {}, None)[: len(places)])
        return {**vars(result), "data": result.data} if hasattr(result, "data") else result


def _of_the_package(method: Any, result: Any) -> Any:
    """A filter of the package itself gets the package's own classes, where they are imported."""
    package = sys.modules.get("nvflare.apis.dxo")
    if package is None:
        return method(result, SimpleNamespace())
    context = sys.modules["nvflare.apis.fl_context"].FLContext()
    found = method(package.DXO(result.data_kind, result.data, result.meta).to_shareable(), context)
    return None if found is None else package.from_shareable(found)


def as_function(target: Any) -> Filters | None:
    """A filter, or a list of filters, as a function of a dict of arrays; None for any other target."""
    filters = list(target) if isinstance(target, (list, tuple)) else [target]
    methods = [getattr(one, name, None) for one in filters for name in ("process", "process_dxo")]
    found = [method for method in methods if inspect.ismethod(method) and not inspect.isclass(method.__self__)]
    return Filters(filters) if filters and len({id(one.__self__) for one in found}) == len(filters) else None


#: seed (None: of the operating system) -> what is passed as rng.
MakeRng = Callable[[Any], Any]
#: (the target, update, rng) -> what is released.
Convention = Callable[[Any, Any, Any], Any]


class NotTaken(FedprivError):
    """The target took no input that the check tried."""


def of_ours(method: str) -> NotTaken:
    """A half of a method of `fedpriv.flower`: it answers its other half alone, and its release has an audit."""
    return NotTaken(f"a half of {method} (fedpriv.flower): its release is tried by `fedpriv audit strategy={method}`")


def refuse_ours(mods: Iterable[Any]) -> None:
    """Raises `NotTaken` where a mod is of a method of `fedpriv.flower`."""
    for mod in mods:
        if inspect.isfunction(mod) and hasattr(mod, "method"):
            raise of_ours(mod.method)


@dataclass
class ReleaseFunction(Subject):
    """call: (update, rng) -> what is released. fresh: gives a call without memory of earlier ones. also: of
    `fedpriv.checking.reading.released`. other_size: an update is taken in parts, and has not as many numbers as leave.
    file: of its source.
    """

    kind: ClassVar[str] = "release function"
    fresh: Callable[[], Callable[[Any, Any], Any]] = field(default=lambda: lambda update, rng: update)
    rng: MakeRng = field(default=lambda seed: None)
    also: tuple[str, ...] = ()
    other_size: bool = False
    file: str = ""

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        return self.series([data] * calls, seed)

    def series(self, data: Sequence[Any], seed: int | None) -> list[Played]:
        with seeded(seed):
            call, rngs = self.fresh(), self._rngs(seed, len(data))
            return [self._call(call, one, rng) for one, rng in zip(data, rngs)]

    def lines(self, data: Any, seed: int, values: Mapping[str, Any]) -> dict[str, Any]:
        with Lines(self.file, values) as seen:
            self.play(data, seed)
        return {"numbers": seen.numbers, "draws": seen.draws}

    def _call(self, call: Callable[[Any, Any], Any], data: Any, rng: Any) -> Played:
        return released(partial(call, copy.deepcopy(data), rng), self.also)

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        (seed,) = seeds_of(seed, 1)
        with seeded(seed):
            rngs = self._rngs(seed, n)
            return np.stack([self._call(self.fresh(), data, rng).flat() for rng in rngs])

    def _rngs(self, seed: int | None, n: int) -> list[Any]:
        """Calls share a generator; where seeds are passed, each call has one of its own."""
        rng = self.rng(seed)
        return list(seeds_of(rng, n)) if isinstance(rng, int) else [rng] * n


#: What was tried: (form, the target's error).
Tried = list[tuple[str, Exception]]


def recognises(target: Any, question: Question) -> Subject | None:
    """A subject for each callable that takes an update or data; None: it is not called. The forms of ``question.form``
    alone, or those of the claim's unit first; data first, too, where they may be left out, or where an update is taken
    as a list whose numbers are not those that leave. Raises `NotTaken` with the target's own errors.
    """
    filters = as_function(target)
    target = target if filters is None else filters
    if not callable(target):
        return None
    unit, tried = question.claim and question.claim.unit, Tried()
    order = ["update", "data", "clients", "rows"]
    if filters is not None:
        order = ["update"]
    elif question.form is not None:
        order = [question.form]
    elif unit == "client" and not inspect.isclass(target):
        order = ["clients", "update", "data", "rows"]
    elif unit == "example" or loop_like(target):
        order = ["data", "clients", "update", "rows"]
    of_list: ReleaseFunction | None = None
    for kind in order:
        seek = recognises_update if kind == "update" else partial(recognises_data, kind=kind)
        found: ReleaseFunction | None = seek(target, question, tried=tried)
        if found is None:
            continue
        if kind == order[0] == "update" and len(order) > 1 and found.other_size:
            of_list = found
            continue
        of_list = found if kind != "rows" or of_list is None else of_list
        break
    if of_list is None:
        raise NotTaken(_words(tried))
    of_list.file = source_of(target)
    return of_list


def source_of(target: Any) -> str:
    """The file of a function, or of an object's class; empty where there is none."""
    try:
        return inspect.getsourcefile(inspect.unwrap(target) if inspect.isroutine(target) else type(target)) or ""
    except TypeError:
        return ""


def loop_like(target: Any) -> bool:
    """Whether a function needs no argument and takes one: what it works on may be left out, as a loop's data are."""
    if inspect.isclass(target):
        return False
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return False
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return bool(places) and all(one.default is not one.empty for one in places)


def recognises_update(target: Any, question: Question, tried: Tried | None = None) -> ReleaseFunction | None:
    """A subject for a callable that takes an update. tried: gets the errors of others, for which None is given; without
    it `NotTaken` is raised.
    """
    errors = Tried() if tried is None else tried
    try:
        fresh, function = fresh_callable(target)
        found = _accepted(fresh, function, question, errors)
    except NotTaken as error:
        if isinstance(error.__cause__, OSError):
            raise
        errors.append(("an update", error))
        found = None
    if found is None:
        if tried is None:
            raise NotTaken(_words(errors))
        return None
    words, form, trial = found
    unit = (question.claim and question.claim.unit) or "client"
    trial.pairs, trial.probes = [], []
    for dimension in (1,) if words.startswith("a number") else question.dims:
        trial.pairs += update_pairs(dimension, form, question.bound, unit)
        trial.probes += update_probes(dimension, form, question.bound)
    trial.name, trial.claim = f"a function of {words}", question.claim
    return trial


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
        found.append(("a torch generator", of_torch))
    if own := sys.modules.get("fedpriv.mechanisms.noise"):
        found.append(("a noise source", lambda seed: own.SeededNoise(_fresh_bits(62) if seed is None else seed)))
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


def _accepted(
    fresh: Callable[[], Any], function: Any, question: Question, tried: Tried
) -> tuple[str, Callable[[Numbers], Any], ReleaseFunction] | None:
    """(words, form of the update, subject) of the first combination that works; a generator that may be left out is
    passed only if it changes the result. Raises `NotTaken`.
    """
    torch = sys.modules.get("torch")
    size = 16
    conventions = _conventions(function)
    for passes, convention in conventions:
        for of_rng, rng in generators_of(torch, function) if passes else [("", lambda seed: None)]:
            for of_form, form in forms_of_update(torch):
                call = lambda c=convention: partial(c, fresh())  # noqa: E731
                trial = ReleaseFunction("", (), fresh=call, rng=rng, also=question.also)
                words = f"{of_form} and {of_rng}" if passes else of_form
                try:
                    first = trial.play(form(direction(size)), 1)[0]
                except OSError as error:  # a file or a network that is not there, whatever the form of its input
                    raise NotTaken(_words([(words, error)])) from error
                except Exception as error:
                    tried.append((words, error))
                    continue
                if not first.tells:
                    tried.append((words, nothing_read(first)))
                    continue
                if passes and len(conventions) > 1 and not _decides(trial, form(direction(size))):
                    break
                left = sum(len(part) for name, part in first.numbers.items() if not is_word(name))
                trial.other_size = isinstance(form(direction(size)), (list, dict)) and left != size
                return words, form, trial
            else:
                continue
            break
    return None


def nothing_read(seen: Played) -> NotTaken:
    what = f"; not read: {', '.join(seen.unread[:3])}" if seen.unread else ""
    return NotTaken(f"nothing that is returned is a number{what}")


def _decides(trial: ReleaseFunction, data: Any) -> bool:
    """Whether the generator passed changes what is released, while the process's own begin alike."""
    seen = []
    for own in (1, 2):
        with seeded(1):
            seen.append(trial._call(trial.fresh(), data, trial.rng(own)).flat())
    return not np.array_equal(seen[0], seen[1], equal_nan=True)


def _words(tried: Tried) -> str:
    """The error that says most first, not the one of a form of input that was not meant; then those of other forms."""
    if not tried:
        return "it takes none of the inputs that a check tries"
    telling = [error for _, error in tried if not isinstance(error, (TypeError, AttributeError, IndexError))]
    by_text: dict[str, list[str]] = {}
    for form, error in tried:
        by_text.setdefault(_said(error), []).append(form)
    first = _said(telling[0] if telling else tried[0][1])
    if len(by_text) == 1:
        return first
    others = "; ".join(
        f"{forms[0]}{f' and {len(forms) - 1} more forms' if len(forms) > 1 else ''}: {text[:120]}"
        for text, forms in list(by_text.items())[:6] if text != first
    )  # fmt: skip
    return f"{first} (with {by_text[first][0]}; {others})"


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] if isinstance(error, NotTaken) else words_of(error)


# --- data inputs ------------------------------------------------------------------------------------------------------
# Neighbouring data sets for functions of data, in the form that a function takes.
#
# Data are rows [n, d] and one target for each [n]. Two bases: *ordinary* rows, and *quiet* ones, which are zero with a
# target of zero, so that the one row that differs is all that a loop learns from, and its part of a gradient keeps its
# direction. Whether a quiet row has no part at all is tried (`is_null`): only then is it "the row zeroed out".

#: Rows of a data set; numbers of a row where nothing says how many; of a wide row.
ROWS, NUMBERS, WIDE = 16, 4, 128
#: Clients, where data are a list of theirs.
CLIENTS = 4
#: Lengths of an extreme row, and of one that no sigmoid saturates; size of an extreme target.
EXTREME, MODERATE, TARGET = 1e3, 30.0, 1e6
#: Lengths of the probes.
GROWING = (1.0, 1e1, 3e1, 1e2, 3e2, 1e3, 1e4, 1e6)
#: What torch says of rows of a wrong length, with the right one.
WANTED = re.compile(r"cannot be multiplied \(\d+x\d+ and (\d+)x\d+\)")
#: Seeds with which it is tried whether a row has a part.
NULL_SEEDS = 4
#: data -> what leaves, of one call with a seed.
Play = Callable[[Any, int], Played]


@dataclass(frozen=True)
class Form:
    """How rows and targets are given. classes: targets are 0 and 1, whole numbers; else any number.

    make: (rows [n, d], targets [n]) -> the arguments. kind: "data"; "clients": its one argument is a list of clients'
    data; "rows": there are no targets.
    """

    words: str
    classes: bool
    make: Callable[[Numbers, Numbers], tuple[Any, ...]]
    kind: str = "data"


def ordinary(numbers: int, rows: int = ROWS) -> tuple[Numbers, Numbers]:
    """Rows [n, d] of normal numbers, and a target of 0 or 1 for each."""
    x = np.random.default_rng(11).normal(size=(rows, numbers))
    return x, (x[:, 0] > 0).astype(np.float64)


def quiet(numbers: int, rows: int = ROWS) -> tuple[Numbers, Numbers]:
    return np.zeros((rows, numbers)), np.zeros(rows)


def pattern(numbers: int) -> Numbers:
    """Ones of mixed signs [d]."""
    return np.where(np.arange(numbers) % 4 == 1, -1.0, 1.0)


def with_row(base: tuple[Numbers, Numbers], row: Numbers, target: float) -> tuple[Numbers, Numbers]:
    """The base with another first row."""
    rows, targets = base[0].copy(), base[1].copy()
    rows[0], targets[0] = row, target
    return rows, targets


def data_pairs(form: Form, numbers: int, question: Question, play: Play, wide: bool) -> list[Pair]:
    """Neighbours that differ in one row. With a claim about one row more or less, pairs of that kind too.

    wide: the function takes rows of `WIDE` numbers as well.
    """
    base, made, found = quiet(numbers), form.make, []
    null = is_null(form, numbers, play)
    for length in (MODERATE, EXTREME) if form.classes else (EXTREME,):
        row = length * pattern(numbers)
        one, other = (1.0, 0.0) if form.classes else (TARGET, -TARGET)
        extreme = with_row(base, row, one)
        how = "a row of moderate length" if length == MODERATE else "an extreme row"
        if null:
            found.append(
                Pair(f"a row of zeros, which has no part, against {how}", made(*base), made(*extreme), "zero-out",
                     "example")
            )  # fmt: skip
        if form.kind != "rows":
            found.append(
                Pair(f"{how} against one of another target", made(*with_row(base, row, other)), made(*extreme),
                     "replace-one", "example")
            )  # fmt: skip
    rows, row = ordinary(numbers), EXTREME * pattern(numbers)
    with_it, opposite = with_row(rows, row, rows[1][0]), with_row(rows, -row, rows[1][0])
    found.append(Pair("an extreme row against its opposite", made(*with_it), made(*opposite), "replace-one", "example"))
    found += telling_rows(form, numbers, play)
    if form.kind == "clients" and question.claim is not None and question.claim.unit == "client":
        found += client_pairs(form, numbers, question.claim.adjacency == "add-or-remove-one")
    if question.claim is not None and question.claim.adjacency == "add-or-remove-one":
        x, y = (part[::-1].copy() for part in with_it)  # the last row: the others stay in their places
        name = "an extreme row in the data or not"
        found.append(Pair(name, made(x[:-1], y[:-1]), made(x, y), "add-or-remove-one", "example"))
        if wide:
            few = quiet(WIDE, 2)
            alone = tuple(part[:1] for part in few)
            name = "two rows of many numbers against one"
            found.append(Pair(name, made(*alone), made(*few), "add-or-remove-one", "example"))
    return found


def client_pairs(form: Form, numbers: int, removed: bool) -> list[Pair]:
    """Neighbours that differ in all data of the last client; with ``removed`` in whether it takes part at all. The
    others' rows are zero, so that nothing else is learned, or all the opposite of its own, so that a mean over the
    clients moves most.
    """
    last, long = (np.arange(ROWS) % CLIENTS == CLIENTS - 1)[:, None], EXTREME * pattern(numbers)
    found = []
    for words, others in (("among rows of zeros", 0.0 * long), ("among their opposites", -long)):
        targets = np.where(last[:, 0] | others.any(), 1.0, 0.0)
        there = form.make(np.where(last, long, others), targets)
        opposite = form.make(np.where(last, -long, others), targets)
        name = f"a client of extreme rows, {words}, against one of opposite rows"
        found.append(Pair(name, opposite, there, "replace-one", "client"))
        if removed:
            missing = (there[0][:-1],)
            name = f"a client of extreme rows, {words}, there or not"
            found.append(Pair(name, missing, there, "add-or-remove-one", "client"))
    return found


def telling_rows(form: Form, numbers: int, play: Play) -> list[Pair]:
    """A long row against a short one where the others are half long, half short: a rule that looks at the raw gradients
    of all, such as a median of their norms, is tipped by it. Of two places of the half the one that moves more, against
    the smaller of what leaves.
    """
    name, tried = "a long row against a short one among rows of both", []
    for long in (ROWS // 2 - 1, ROWS // 2):
        lengths = np.where(np.arange(ROWS) <= long, EXTREME, 1.0)
        targets = np.where(np.arange(ROWS) <= long, 1.0, 0.0)
        rows = lengths[:, None] * pattern(numbers)
        data = rows, targets
        sides = form.make(*data), form.make(*with_row(data, pattern(numbers), 0.0))
        try:
            one, other = (play(side, 1).flat() for side in sides)
            least = max(min(float(np.linalg.norm(one)), float(np.linalg.norm(other))), 1e-300)
            moved = float(np.linalg.norm(one - other)) / least if one.shape == other.shape else 0.0
        except Exception:  # of the target's own
            continue
        tried.append((moved, Pair(name, *sides, "replace-one", "example")))
    return [max(tried, key=lambda one: one[0])[1]] if tried else []


def is_null(form: Form, numbers: int, play: Play) -> bool:
    """Whether a row of zeros has no part in what leaves: whatever its target is, the same leaves under the same seeds,
    and without it the same too, or all of it in one proportion (a divisor that counts rows). And another row has one.
    """
    base = quiet(numbers)
    targets = (1.0,) if form.classes else (1.0, -30.0)
    apart = False
    try:
        for seed in range(1, NULL_SEEDS + 1):
            first = play(form.make(*base), seed).flat()
            for target in targets:
                if not _same(first, play(form.make(*with_row(base, base[0][0], target)), seed).flat()):
                    return False
            if not _proportional(first, play(form.make(base[0][1:], base[1][1:]), seed).flat()):
                return False
            other = with_row(base, MODERATE * pattern(numbers), 1.0)
            apart = apart or not _same(first, play(form.make(*other), seed).flat())
    except Exception:  # of the target's own
        return False
    return apart


def _same(one: Numbers, other: Numbers) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other))


def _proportional(one: Numbers, other: Numbers) -> bool:
    """Whether all numbers but the form are equal up to one factor."""
    if one.shape != other.shape or not np.isfinite(one).all() or not np.isfinite(other).all():
        return False
    if one @ one == 0 or other @ other == 0:
        return bool(np.array_equal(one, other))
    moved = np.flatnonzero(one != other)
    if not len(moved):
        return True
    factor = float(one[moved] @ other[moved] / (one[moved] @ one[moved]))
    return bool(np.allclose(other[moved], factor * one[moved], rtol=1e-4, atol=0))


def data_probes(form: Form, numbers: int) -> list[Probe]:
    """A row that grows, a target that grows, and rows with what is no number."""
    base, made = ordinary(numbers), form.make
    unit = pattern(numbers) / np.sqrt(numbers)
    grown = [made(*with_row(base, length * unit, 1.0)) for length in GROWING]
    probes = [Probe("a longer row", "length", grown, GROWING)]
    if not form.classes and form.kind != "rows":
        grown = [made(*with_row(quiet(numbers), unit, length)) for length in GROWING]
        probes.append(Probe("a larger target", "length", grown, GROWING))
    broken = []
    for value in (np.nan, np.inf, -np.inf):
        row = EXTREME * unit
        row[0] = value
        broken.append(made(*with_row(base, row, 1.0)))
    return [*probes, Probe("broken numbers", "broken", broken)]


# --- forms --------------------------------------------------------------------------------------------------------


def forms() -> Iterator[Form]:
    """Every form that is tried, the likeliest first: targets as a column of numbers, as numbers, as classes."""
    if "torch" in sys.modules:
        shapes = ("a pair of tensors", "two tensors", "a data set", "a list of clients' pairs",
                  "a list of clients' data sets", "a data loader", "a list of data loaders")  # fmt: skip
        for shape in shapes:
            for kind in ("a column of numbers", "numbers", "classes"):
                make = partial(_tensors, kind=kind, shape=shape)
                of = "clients" if shape.startswith("a list of") else "data"
                yield Form(f"{shape}, rows and {kind}", kind == "classes", make, of)
    yield Form("a pair of arrays, rows and targets", False, lambda x, y: ((x.copy(), y.copy()),))
    yield Form("two arrays, rows and targets", False, lambda x, y: (x.copy(), y.copy()))
    arrays = "a list of clients' arrays"
    yield Form(arrays, False, lambda x, y: ([(a.copy(), b.copy()) for a, b in _clients(x, y)],), "clients")
    yield Form("an array of rows", False, lambda x, y: (x.copy(),), "rows")
    if torch := sys.modules.get("torch"):
        yield Form("a tensor of rows", False, lambda x, y: (torch.tensor(x, dtype=torch.float32),), "rows")


def _clients(rows: Any, targets: Any) -> list[tuple[Any, Any]]:
    """`CLIENTS` clients with a share of the rows each, in turn."""
    return [(rows[rank::CLIENTS], targets[rank::CLIENTS]) for rank in range(CLIENTS)]


def _tensors(rows: Numbers, targets: Numbers, *, kind: str, shape: str) -> tuple[Any, ...]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.tensor(rows, dtype=torch.float32)
    y = torch.tensor(targets, dtype=torch.float32)
    y = y.long() if kind == "classes" else y[:, None] if kind == "a column of numbers" else y
    if shape == "two tensors":
        return x, y
    if shape == "a pair of tensors":
        return ((x, y),)
    if shape == "a list of clients' pairs":
        return (_clients(x, y),)
    if shape == "a list of clients' data sets":
        return ([TensorDataset(*one) for one in _clients(x, y)],)
    if shape == "a list of data loaders":
        return ([DataLoader(TensorDataset(*one), batch_size=2) for one in _clients(x, y)],)
    data = TensorDataset(x, y)
    return (DataLoader(data, batch_size=4),) if shape == "a data loader" else (data,)


def mixing(call: Callable[[], Any]) -> int:
    """How many numbers all tensors have that a call makes: targets of a wrong shape are broadcast against predictions,
    which makes more.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    from torch.overrides import TorchFunctionMode

    found, tensor = [0], torch.Tensor

    class Counts(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            if isinstance(made, tensor):
                found[0] += made.numel()
            return made

    with Counts():
        call()
    return found[0]


# --- data function ----------------------------------------------------------------------------------------------------
# Adapter of functions ``train(data)``: a small data set in, what is published out, by a loop written without Opacus.
#
# It is asked where a function takes no update. Data are rows and targets: a pair, two arguments, a data set or loader
# of torch, or a list of these, one for each client: the first form that the function takes
# (`fedpriv.checking.functions`). A generator or a seed may be its last argument. Nothing is known of the loop's inside:
# its output alone is replayed and sampled.

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
            return [self._call(self.fresh(), data, self.rng(seed))]

    def one(self, data: Any, seed: int) -> Played:
        return self.play(data, seed)[0]


def recognises_data(
    target: Any, question: Question, kind: str | None = None, tried: Tried | None = None
) -> ReleaseFunction | None:
    """A subject for a callable that takes a data set, or None where it takes none of those that are tried. kind: of
    `Form`, those alone. tried: gets the target's errors.
    """
    try:
        fresh, function = fresh_callable(target)
    except NotTaken:
        return None
    wanted, tried = [NUMBERS], [] if tried is None else tried
    for numbers in wanted:
        for form in forms():
            if kind not in (None, form.kind):
                continue
            for of_rng, rng in _rngs(function, len(form.make(*ordinary(numbers)))):
                call = lambda rng_too=bool(of_rng): partial(_called, fresh(), rng_too)  # noqa: E731
                trial = DataFunction(f"a function of {form.words}", (), fresh=call, rng=rng, also=question.also)
                if not _takes(trial, form, numbers, wanted, tried):
                    continue
                form = _unmixed(trial, form, numbers)
                large = [with_row(quiet(numbers), pattern(numbers), one) for one in (TARGET, -TARGET)]
                if not all(_plays(trial, form.make(*data)) for data in large):
                    form = replace(form, classes=True)  # its numbers are names of classes
                trial.name = f"a function of {form.words}" + (f" and {of_rng}" if of_rng else "")
                trial.claim = question.claim
                wide = _takes(trial, form, WIDE, []) and _plays(trial, form.make(*quiet(WIDE, 1)))
                trial.pairs = data_pairs(form, numbers, question, trial.one, wide)
                trial.probes = data_probes(form, numbers)
                return trial
        if numbers == wanted[-1] == NUMBERS and kind != "clients":
            wanted += OTHER_NUMBERS
    return None


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
    if parameters and len(places) < arguments and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return
    if len(needed) <= arguments:
        yield "", lambda seed: None
    if len(places) > arguments and len(needed) in (arguments, arguments + 1):
        optional = places[arguments].default is None or places[arguments].default is places[arguments].empty
        if optional:
            yield from generators_of(sys.modules.get("torch"), function)


def _takes(trial: DataFunction, form: Form, numbers: int, wanted: list[int], tried: Tried | None = None) -> bool:
    """Whether a call gives numbers. wanted: gets the length of rows that an error of the target asks for; tried: the
    error.
    """
    try:
        return trial.one(form.make(*ordinary(numbers)), 1).tells
    except Exception as error:  # of the target's own, for data that it was not meant for
        if tried is not None:
            tried.append((trial.name.removeprefix("a function of "), error))
        found = WANTED.search(str(error))
        if found and int(found[1]) not in wanted and wanted:
            wanted.append(int(found[1]))
        return False


def _plays(trial: DataFunction, data: Any) -> bool:
    try:
        return trial.one(data, 1).tells
    except Exception:
        return False


def _unmixed(trial: DataFunction, form: Form, numbers: int) -> Form:
    """The same form with targets as plain numbers where a column of them is broadcast against predictions."""
    plain = next((one for one in forms() if one.words == form.words.replace("a column of numbers", "numbers")), form)
    if plain.words == form.words or not _takes(trial, plain, numbers, []):
        return form
    mixed = [mixing(partial(trial.one, one.make(*ordinary(numbers)), 1)) for one in (form, plain)]
    return plain if mixed[1] < mixed[0] else form
