"""A whole Flower ClientApp, played on neighbouring data.

An app reads its own data and takes its own model. A bare one is asked as partitions of a data set, with the model that
`fedpriv.checking.flower_apps` finds. `AppTarget` says more: the model that the server sends, two data sets, and a
function that puts one of them where the app reads it. An app behind a guard of this project answers with the guard's
noise whatever it reads.
"""

from __future__ import annotations

import inspect
import random
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.common import GetParametersIns, Parameters, parameters_to_ndarrays

from fedpriv.checking.findings import Finding, Severity, finding
from fedpriv.checking.flower_messages import (
    CLIENT,
    OLD_ARRAYS,
    OLD_CONFIG,
    SENT,
    Trained,
    at_most,
    numbers_of,
    quiet,
    record,
    sent,
    shared_modules,
)
from fedpriv.checking.flower_mods import known_mods
from fedpriv.checking.functions import NotTaken, of_ours, refuse_ours
from fedpriv.checking.generators import Memory
from fedpriv.checking.reading import Numbers, is_word
from fedpriv.checking.replay import COUNTS
from fedpriv.checking.statistics import bare_names
from fedpriv.checking.subject import Budget, Pair, Question, Recognised, RoundsSubject, Subject, claim_of
from fedpriv.engines.grid import RUN_ID, empty_context

# --- bare apps --------------------------------------------------------------------------------------------------------
# What a bare Flower ClientApp needs to be played: its functions and mods, its model, its configuration.
#
# An app is asked as partitions of one data set, as Flower's simulation does. Its model is looked for in the module that
# defines it: an `ArrayRecord`, a list of arrays, a torch module, or a function or class without arguments that makes
# one; an older client is asked for its parameters. The first that the app trains with is used. The configuration is
# that of the nearest `pyproject.toml`. Nothing is recognised by its name.

Model = dict[str, Any]
#: Seconds of CPU that making a model may take, and folders above a module that are looked through.
SECONDS, FOLDERS = 5.0, 4
_FILE = make_ffn.__code__.co_filename


@dataclass(frozen=True)
class Parts:
    """functions: of an app by type of message ("train", "train.ACTION", "evaluate", "query"), innermost; mods: of each,
    outermost first. old: it is a client_fn, which answers all types.
    """

    functions: Mapping[str, Callable[..., Any]]
    mods: Mapping[str, list[Any]] = field(default_factory=dict)
    old: bool = False

    @property
    def first(self) -> str:
        """The type of message that is a round: training where the app trains."""
        order = ("train", "query", "evaluate")
        return min(self.functions, key=lambda name: (order.index(name.partition(".")[0]), "." in name))

    @property
    def module(self) -> dict[str, Any]:
        """Variables of the module that defines the first function."""
        found: dict[str, Any] = getattr(inspect.unwrap(self.functions[self.first]), "__globals__", {})
        return found


def parts_of(app: ClientApp) -> Parts:
    """Mods of the app and of each function (`@app.train(mods=[...])`) are taken off the functions that they wrap."""
    whole = getattr(app, "_call", None)
    if whole is not None:
        inner, mods = unwrapped(whole)
        found = [one for one in _held(inner) if callable(one)]
        makes: Any = found[0] if found else inner
        return Parts({"train": makes, "evaluate": makes}, {"train": mods, "evaluate": mods}, old=True)
    functions, stacks = {}, {}
    for full, function in getattr(app, "_registered_funcs", {}).items():
        name = full.removesuffix(".default")
        functions[name], stacks[name] = unwrapped(function)
    return Parts(functions, stacks)


def unwrapped(function: Any) -> tuple[Any, list[Any]]:
    """(what Flower's `make_ffn` was given, its mods, outermost first)."""
    mods: list[Any] = []
    while isinstance(function, FunctionType) and function.__code__.co_filename == _FILE and function.__closure__:
        held = dict(zip(function.__code__.co_freevars, _held(function), strict=True))
        function = held["_ffn"]
        mods.append(held["_mod"])
    return function, mods


def _held(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


# --- the configuration ---------------------------------------------------------------------------------------


def run_config(parts: Parts) -> dict[str, Any]:
    return config_near(parts.module.get("__file__"))


def config_near(place: str | None) -> dict[str, Any]:
    """`tool.flwr.app.config` of the nearest pyproject.toml above an app's file, flat; empty where there is none."""
    for folder in list(Path(place).resolve().parents)[:FOLDERS] if place else ():
        project = folder / "pyproject.toml"
        if project.is_file():
            try:
                found = tomllib.loads(project.read_text())
                return _flat(found["tool"]["flwr"]["app"]["config"])
            except (tomllib.TOMLDecodeError, OSError, KeyError, TypeError):
                return {}
    return {}


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, part in value.items():
        found |= _flat(part, f"{before}{key}.") if isinstance(part, Mapping) else {before + key: part}
    return found


# --- the model -----------------------------------------------------------------------------------------------


def models(parts: Parts) -> Iterator[tuple[str, Model]]:
    """(words, arrays by name) of every model that the app's module has or makes, and last of none at all."""
    values = [value for name, value in list(parts.module.items()) if not name.startswith("__")]
    for value in values:
        if (found := as_model(value)) is not None:
            yield "its module", found
    for value in values:
        if (found := _made(value, parts.module.get("__name__"))) is not None:
            yield "a function or class of its module", found
    if parts.old and (found := _of_client(parts.functions["train"])) is not None:
        yield "its client's parameters", found
    yield "nowhere: it was sent without arrays", {}


def as_model(value: Any) -> Model | None:
    """Arrays by name of what holds a model, or None."""
    torch = sys.modules.get("torch")
    if isinstance(value, ArrayRecord):
        return {name: array.numpy() for name, array in value.items()}
    if isinstance(value, Parameters):
        value = parameters_to_ndarrays(value)
    if torch is not None and isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, Mapping) and value and all(isinstance(one, str) for one in value):
        arrays = {name: _array(part) for name, part in value.items()}
        return None if any(part is None for part in arrays.values()) else arrays
    if isinstance(value, list | tuple) and value and all(isinstance(one, np.ndarray) for one in value):
        return {str(place): array for place, array in enumerate(value)}
    return None


def _of_client(makes: Callable[..., Any]) -> Model | None:
    """What an older client answers when it is asked for its parameters."""
    try:
        with at_most(SECONDS):
            return as_model(_client(makes).get_parameters(GetParametersIns({})).parameters)
    except Exception:  # of foreign code, which may have none
        return None


def _client(makes: Callable[..., Any]) -> Any:
    client = makes(empty_context(RUN_ID, CLIENT, 0, 2))
    return client.to_client() if hasattr(client, "to_client") else client


def _refuse_our_client(makes: Callable[..., Any]) -> None:
    """Raises `NotTaken` where an older app's client is a half of a method of `fedpriv.flower`."""
    made, ours = None, getattr(sys.modules.get("fedpriv.apps.client"), "AppClient", ())
    with suppress(Exception), at_most(SECONDS):  # of foreign code: its plays say so
        made = getattr(_client(makes), "numpy_client", None)
    if isinstance(made, ours):
        raise of_ours(made.method)


def _array(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) else None


def _made(value: Any, module: str | None) -> Model | None:
    """The model that a function or a torch class makes without arguments."""
    torch = sys.modules.get("torch")
    kind = torch is not None and inspect.isclass(value) and issubclass(value, torch.nn.Module)
    package = str(module).partition(".")[0]
    own = getattr(value, "__module__", "").partition(".")[0] == package
    if not own or not (kind or inspect.isfunction(value)):
        return None
    try:
        needed = [one for one in inspect.signature(value).parameters.values() if one.default is one.empty]
        if any(one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in needed):
            return None
        with at_most(SECONDS):
            return as_model(value())
    except Exception:  # of foreign code, which may want what is not there
        return None


# --- seeded data ------------------------------------------------------------------------------------------------------
# Data that a target draws itself: normal draws of generators with a seed of the client's own, replaced by others.
#
# Examples, tests and simulations often make a client's data from a seed that follows its number. `Draws` notes the
# seeds with which generators of NumPy, Python and torch are made while the target runs. A seed that comes again in
# every call of one client, and in none of another's, is one of data: it is no noise, and it is nothing that all clients
# share. Normal numbers drawn from it have no bound, so any others are data too; all other draws (whole numbers, ranges,
# orders) stay.

#: How far replaced numbers are from usual ones.
EXTREME = 1e3
#: (what was drawn, how many draws of the play came before) -> what is used.
Change = Callable[[Any, int], Any]


def _signs(drawn: Any, number: int, turn: int) -> Any:
    """Equal numbers with a sign for each draw (turn 0: targets opposite to their rows), or for each column as well
    (turn -1: signs opposite to those of 1).
    """
    columns = np.arange(drawn.shape[-1]) if getattr(drawn, "ndim", 0) else np.zeros(())
    signs = np.where(np.cos(turn * (columns + 1.0)) > 0, EXTREME, -EXTREME) * (-1.0) ** (number + (turn < 0))
    return 0 * drawn + (drawn.new_tensor(signs) if hasattr(drawn, "new_tensor") else signs)


#: What becomes of normal draws. "": they stay; "other": those of another client.
CHANGES: Mapping[str, Change] = {
    "large": lambda drawn, number: EXTREME * drawn,
    "large, opposite": lambda drawn, number: -EXTREME * drawn,
    "equal": lambda drawn, number: 0 * drawn + EXTREME,
    "equal, opposite": lambda drawn, number: 0 * drawn - EXTREME,
    "small": lambda drawn, number: drawn / EXTREME,
    **{f"signs {turn}": partial(_signs, turn=turn) for turn in (0, 1, -1, 2, -2, 3, -3)},
}


def _in_first(change: Change) -> Change:
    """The change, of the first row alone; of numbers that are drawn one by one, of the first alone."""

    def changed(drawn: Any, number: int) -> Any:
        if getattr(drawn, "ndim", 0) == 0:
            return drawn if number else change(drawn, number)
        found = drawn.clone() if hasattr(drawn, "clone") else drawn.copy()
        found[0] = change(drawn[0], number)
        return found

    return changed


@dataclass
class Draws:
    """seeds: of data, in the order in which generators are made of them; other: those of another client, in the same
    order. rows: of one row ("example") or of all of them are replaced. noted: seeds of the last run.
    """

    module: dict[str, Any]
    seeds: Sequence[str] = ()
    other: Sequence[Any] = ()
    unit: str = "client"
    noted: dict[str, Any] = field(default_factory=dict)
    _change: str = ""
    _drawn: int = 0
    _places: list[tuple[Any, str, Any]] = field(default_factory=list)

    def survey(self, play: Callable[[int, int], Any]) -> bool:
        """Finds seeds of data. play: (client 0 or 1, seed of the process). Whether there are any."""
        runs = []
        for client, seed in ((0, 1), (0, 2), (1, 3), (1, 4)):
            with self.changed(""):
                play(client, seed)
                runs.append(dict(self.noted))
        first, again, other, other_again = runs
        own = [key for key in first if key in again and key not in other]
        theirs = [value for key, value in other.items() if key in other_again and key not in first]
        if len(own) == len(theirs):
            self.seeds, self.other = own, theirs
        return bool(self.seeds)

    @contextmanager
    def changed(self, change: str) -> Iterator[None]:
        """Generators of data that are made in this block draw changed numbers."""
        self._change, self.noted, self._drawn = change, {}, 0
        self._places = self._places or self._makers()
        before = [(holder, name, _of(holder, name)) for holder, name, _ in self._places]
        for holder, name, value in self._places:
            _put(holder, name, value)
        try:
            yield
        finally:
            for holder, name, value in before:
                _put(holder, name, value)

    # --- generators ------------------------------------------------------------------------------------------

    def _seed(self, given: Any) -> tuple[Any, Callable[[Any], Any] | None]:
        """(the seed to use, what becomes of normal draws) for a generator that is made with ``given``."""
        key = repr(given)
        if given is None or isinstance(given, np.random.BitGenerator | np.random.Generator):
            return given, None
        self.noted.setdefault(key, given)
        if not self._change or key not in self.seeds:
            return given, None
        if self._change == "other":
            return self.other[list(self.seeds).index(key)], None
        return given, self._changed

    def _changed(self, drawn: Any) -> Any:
        number, self._drawn = self._drawn, self._drawn + 1
        change = CHANGES[self._change]
        return (_in_first(change) if self.unit == "example" else change)(drawn, number)

    def _makers(self) -> list[tuple[Any, str, Any]]:
        """(holder, name, value) of everything that makes a generator, in its package and in the target's module."""
        made: list[tuple[Any, str, Any]] = [
            (np.random, "default_rng", self._default_rng()),
            (np.random, "RandomState", self._legacy()),
            (random, "Random", self._python()),
        ]
        if (torch := sys.modules.get("torch")) is not None:
            made += self._torch(torch)
        originals = {id(_of(holder, name)): value for holder, name, value in made}
        own = [
            (self.module, name, originals[id(value)]) for name, value in self.module.items() if id(value) in originals
        ]
        return [*made, *own]

    def _default_rng(self) -> Any:
        real = np.random.default_rng

        def default_rng(seed: Any = None) -> Any:
            seed, change = self._seed(seed)
            made = real(seed)
            return made if change is None else _Changed(made.bit_generator, change)

        return default_rng

    def _legacy(self) -> Any:
        draws = self

        class State(np.random.RandomState):
            def __init__(self, seed: Any = None) -> None:
                seed, self.change = draws._seed(seed)
                super().__init__(seed)

            def standard_normal(self, *given: Any, **named: Any) -> Any:
                return (self.change or _same)(super().standard_normal(*given, **named))

            def normal(self, *given: Any, **named: Any) -> Any:
                return (self.change or _same)(super().normal(*given, **named))

            def randn(self, *given: Any) -> Any:
                return (self.change or _same)(super().randn(*given))

        return State

    def _python(self) -> Any:
        draws = self

        class Python(random.Random):
            change: Any = None

            def __new__(cls, *given: Any) -> Any:
                return super().__new__(cls)

            def __init__(self, seed: Any = None) -> None:
                seed, self.change = draws._seed(seed)
                super().__init__(seed)

            def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
                return float((self.change or _same)(super().gauss(mu, sigma)))

            def normalvariate(self, mu: float = 0.0, sigma: float = 1.0) -> float:
                return float((self.change or _same)(super().normalvariate(mu, sigma)))

        return Python

    def _torch(self, torch: Any) -> list[tuple[Any, str, Any]]:
        draws = self

        class Generator(torch.Generator):  # type: ignore[misc, name-defined]
            change: Any = None

            def manual_seed(self, seed: int) -> Any:
                seed, self.change = draws._seed(seed)
                return super().manual_seed(seed)

        def wrapped(function: Any) -> Any:
            def draw(*given: Any, **named: Any) -> Any:
                change = getattr(named.get("generator"), "change", None)
                return (change or _same)(function(*given, **named))

            return draw

        names = ("randn", "normal")
        return [(torch, "Generator", Generator), *((torch, name, wrapped(getattr(torch, name))) for name in names)]


class _Changed(np.random.Generator):
    """A generator whose normal draws are changed."""

    def __init__(self, bits: Any, change: Callable[[Any], Any]) -> None:
        super().__init__(bits)
        self.change = change

    def standard_normal(self, *given: Any, **named: Any) -> Any:
        return self.change(super().standard_normal(*given, **named))

    def normal(self, *given: Any, **named: Any) -> Any:
        return self.change(super().normal(*given, **named))

    def multivariate_normal(self, *given: Any, **named: Any) -> Any:
        return self.change(super().multivariate_normal(*given, **named))


def _same(drawn: Any) -> Any:
    return drawn


def _of(holder: Any, name: str) -> Any:
    return holder[name] if isinstance(holder, dict) else getattr(holder, name)


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


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
    """The data of a partition, changed as `fedpriv.checking.flower_apps` says, and a model whose numbers are all moved
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
        self.notes = [] if target.give else [finding("data-of-partitions")]
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
                names = [name for name in names if name.rpartition(".")[2] not in COUNTS]
            if names:
                severity: Severity = "doubt" if claim is None else "fault"
                yield finding("metrics-bare:answer", severity, kind=kind, names=", ".join(names[:3]), plays=PLAYS)


def _moved(array: Any, by: float) -> Any:
    array = np.asarray(array)
    return (array + array.dtype.type(by)).astype(array.dtype) if by and array.dtype.kind == "f" else array


def known_guard(terms: Any, dimension: int) -> Recognised:
    """What a guard's terms (`fedpriv.guard.release.Terms`) say that one answer about so many numbers costs."""
    words = (
        f"a guard of this project: {terms.shards} shards of unit {terms.unit}, answers clipped to {terms.clip:g}, "
        f"noise {terms.noise_multiplier:g} x the clip norm"
    )
    return Recognised(words, terms.event(dimension))


def bare_app(app: ClientApp, question: Question) -> AppSubject:
    """An app asked as partitions, with the first model that it trains with. Raises `NotTaken` with its own error."""
    parts = parts_of(app)
    if not parts.functions:
        raise NotTaken("the app has no function that answers a message")
    refuse_ours(mod for mods in parts.mods.values() for mod in mods)
    if parts.old:
        _refuse_our_client(parts.functions["train"])
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
    if found and _follows_data(subject, OF_ANOTHER):
        subject.notes = [one for one in subject.notes if one.name != "data-of-partitions"]
        changes = ("", *CHANGES, *(("other",) if of_clients else ()))
        tried = [[Asked(0, moved, change) for change in changes] for moved in (0.0, FAR)]
    else:
        subject.draws, subject.pairs = None, before
        subject.known = _numbers_of_partitions(subject)
        tried = [[Asked(part, moved) for part in range(NUM_PARTITIONS)] for moved in (0.0, FAR, -FAR, 1.0, -1.0)]
    subject.pairs = [*subject.pairs, *_farthest(subject, tried)]


def _farthest(subject: AppSubject, tried: Sequence[Sequence[Asked]]) -> Iterator[Pair]:
    """Of data that are asked with one model, the two whose answers are farthest apart under one seed, if they are
    farther apart than those of the subject's pairs. No more is tried after `SECONDS`.
    """

    def answer(asked: Asked) -> Numbers:
        try:
            numbers = subject.play(asked, 1)[0].numbers
        except Exception:  # of foreign code: the layers say so
            return NOTHING
        return np.concatenate([NOTHING, *(part for name, part in numbers.items() if not is_word(name))])

    def apart(one: Numbers, other: Numbers) -> float:
        with np.errstate(all="ignore"):
            found = float(np.linalg.norm(one - other)) if one.shape == other.shape else 0.0
        return found if np.isfinite(found) else 0.0

    best = max(apart(answer(pair.left), answer(pair.right)) for pair in subject.pairs)
    budget, found, answers = Budget(SECONDS), None, dict[Asked, Numbers]()
    for asked in (asked for group in tried for asked in group if budget.left):
        answers[asked] = answer(asked)
    for one, other in combinations(answers, 2):
        if one.moved == other.moved and apart(answers[one], answers[other]) > best:
            best, found = apart(answers[one], answers[other]), (one, other)
    if found:
        name = f"of {len(answers)} data sets the two that are answered farthest apart"
        yield Pair(name, *found, "replace-one", subject.pairs[-1].unit)


NOTHING = np.zeros(0)


def _numbers_of_partitions(subject: AppSubject) -> frozenset[str]:
    """Records that hold the partition's number, which whoever sends the message knows."""
    plays = {one: subject.play(Asked(one), 1)[0].numbers for two in PARTITIONS for one in two}
    return frozenset(
        name
        for name in plays[0]
        if all(np.array_equal(found.get(name, NOTHING), [one]) for one, found in plays.items())
    )


#: Of `_changed_data`'s pairs those that need another client's seeds: an app's order of its rows may follow one, too.
OF_ANOTHER = 2


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


def _follows_data(subject: AppSubject, after: int = 0) -> bool:
    """Whether any of the pairs after the first so many is told apart under equal seeds."""
    for pair in subject.pairs[after:]:
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
