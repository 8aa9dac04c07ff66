"""The one shape to which every target of a check is reduced, by an adapter.

The layers *replayed* and *sampled* look at this shape alone, never at the names of classes, files or variables. An
adapter is a file of this package with ``recognises(target, question) -> Subject | None``, named in
`fedpriv.checking.checks`.
"""

from __future__ import annotations

import hashlib
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, is_dataclass
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.findings import Finding
from fedpriv.checking.generators import seeded, seeds_of
from fedpriv.privacy.events import Event

Numbers = NDArray[np.float64]
Scope = Literal["call", "run"]


@dataclass(frozen=True)
class Claim:
    """epsilon at ``delta`` of one call, or of a run of ``Question.calls`` calls. source: who says so, in words.

    adjacency: of the claim; None: it is not said, and only pairs that hold under every adjacency of updates (one update
    against none) refute it. unit: what neighbours differ in, a client's whole data or one example; None: not said.
    """

    epsilon: float
    delta: float
    scope: Scope = "call"
    source: str = "the claim given to the check"
    adjacency: str | None = None
    unit: str | None = None

    def covers(self, pair: Pair) -> bool:
        """Whether a pair refutes the claim: replace-one allows zero-out too, not the other way. All examples of a
        client refute a claim that says to be about clients.
        """
        if (self.unit == "example" and pair.unit == "client") or (self.unit != "client" and pair.unit == "data set"):
            return False
        return pair.adjacency != "replace-one" or self.adjacency == "replace-one"


@dataclass(frozen=True)
class Question:
    """What the user asks: the claim, delta and calls of a run, the lengths of updates to try, the seed of the check.

    claim None: nothing is claimed. bound: the L2 norm of an update that the caller guarantees (it is clipped before);
    None: an update may be of any length.
    """

    claim: Claim | None = None
    delta: float | None = None
    calls: int | None = None
    dims: tuple[int, ...] = (16, 256)
    trials: int = 20_000
    confidence: float = 0.95
    seed: int = 0
    bound: float | None = None

    @property
    def at_delta(self) -> float:
        """delta at which every figure of the check is given."""
        return self.delta if self.delta is not None else self.claim.delta if self.claim else 1e-5


@dataclass(frozen=True)
class Played:
    """One call of a target: everything that leaves in it.

    numbers: by name, flat float64 arrays: "released", "arrays.0", "metrics.loss", "num_examples". Texts, names and
    shapes that leave are turned into numbers (a hash) under "form.*"; a number that an observer knows beforehand
    (a round's number, a public constant) is left out. exact: whole numbers of 64 bits, which those have rounded.
    """

    numbers: Mapping[str, Numbers]
    exact: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    def flat(self) -> Numbers:
        """All numbers [k], in the order of their names."""
        parts = [np.ravel(self.numbers[name]) for name in sorted(self.numbers)]
        return np.concatenate(parts) if parts else np.zeros(0)


@dataclass(frozen=True)
class Pair:
    """Neighbouring inputs: ``left`` and ``right`` differ in one unit. data is whatever `Subject.play` takes."""

    name: str
    left: Any
    right: Any
    adjacency: str  # "replace-one" | "zero-out" | "add-or-remove-one"
    unit: str  # "client" | "example" | "data set" (all examples of one client)


@dataclass(frozen=True)
class Probe:
    """An input that is no honest one, or a series of inputs of growing length.

    kind: "length": ``data[i]`` is an input whose contribution is ``lengths[i]`` times a unit one (the same direction),
    in increasing order: a bounded mechanism's outputs stop moving. "broken": the input holds what is no number or is
    infinite: nothing of it may leave, and the call may raise.
    """

    name: str
    kind: Literal["length", "broken"]
    data: Sequence[Any]
    lengths: Sequence[float] = ()


@dataclass(frozen=True)
class Recognised:
    """One known wrapper, and what one call of it costs as it really runs.

    words: one sentence with its numbers. event: of `fedpriv.privacy.events`, of ONE call (``count`` 1 unless a call
    makes several releases); None: it has no bound, `reason` says why. claimed: what the wrapper or its own accountant
    says at ``delta`` and ``scope``; None: it says nothing. calls: of a run, where the wrapper knows it. findings: what
    differs from the documentation or the accountant, e.g. sampling that runs is not the one accounted.
    """

    words: str
    event: Event | None
    reason: str | None = None
    claimed: float | None = None
    delta: float | None = None
    scope: Scope = "call"
    calls: int | None = None
    findings: Sequence[Finding] = ()


@dataclass
class Subject(ABC):
    """A target as the layers see it. One subject may be played any number of times; plays never see each other.

    name: of the target, for the reader alone. observer: who sees what `play` gives (`fedpriv.privacy.events`).
    stateful: the target is documented to keep a state between calls. counts_differ: two clients of a pair may have
    unequal numbers of examples; else a number of examples that moves is a number like others.
    """

    kind: ClassVar[str] = "target"  # "release function", "Flower client mod", "Opacus training loop", ...

    name: str
    pairs: Sequence[Pair]
    probes: Sequence[Probe] = ()
    recognised: Sequence[Recognised] = ()
    claim: Claim | None = None
    observer: str = "server"
    stateful: bool = False
    counts_differ: bool = False
    notes: Sequence[Finding] = field(default_factory=tuple)

    @abstractmethod
    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        """A FRESH instance; ``calls`` calls one after another on the same data, with its state in between.

        seed: seeds every generator that can be seeded (`fedpriv.checking.generators.seeded`: python, numpy, torch, and
        what is passed as rng), once, before the first call. None: touches none of the process's generators, and what is
        passed as rng is fresh from the operating system. Raises what the target raises.
        """

    def series(self, data: Sequence[Any], seed: int | None) -> list[Played]:
        """As `play`, with an input of its own for each call. Raises NotImplementedError where an adapter has none:
        what needs it is then not checked.
        """
        raise NotImplementedError

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        """[n, k]: everything that leaves in each of n independent single calls, by default a loop over `play`."""
        return np.stack([self.play(data, one)[0].flat() for one in seeds_of(seed, n)])


# --- numbers ----------------------------------------------------------------------------------------------------------
# What a target returns, as named numbers.

#: Deeper structures are one text; records beyond these are not read.
DEEPEST, MOST = 6, 10_000


def hash_number(value: object) -> float:
    """A text or any other object as one number in [0, 1): equal for equal ones."""
    return float(int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:6], "big")) / 2**48


def played(name: str, value: Any, objects: bool = True) -> Played:
    """All numbers of a value under names that begin with ``name``; ``form.NAME`` is its structure as a number.

    A mapping gives the numbers of its values under their keys, a sequence under places, a model, an optimiser or an
    accountant its state, a data frame its values, any other object its attributes (not without ``objects``). None is no
    number. Texts are hashed; what has none of these is known by its class alone.
    """
    found, form = _Found(), list[Any]()
    found.exact, found.objects = {}, objects
    _collect(name, value, found, form, 0)
    found[f"form.{name}"] = np.array([hash_number(form)])
    return Played(dict(found), found.exact)


class _Found(dict[str, Numbers]):
    """Numbers by name, and whole numbers as they are."""

    exact: dict[str, NDArray[np.int64]]
    objects: bool


def _collect(name: str, value: Any, found: _Found, form: list[Any], depth: int) -> None:
    if value is None or len(found) > MOST:
        form.append("none")
        return
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        value = (value.to_dense() if value.is_sparse else value).float().numpy() if _half(value) else value.numpy()
    elif callable(getattr(type(value), "state_dict", None)):
        value = dict(value.state_dict())
    elif hasattr(type(value), "to_numpy") and hasattr(type(value), "iloc"):
        value = value.to_numpy()
    if isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
        array = np.asarray(value)
        if array.dtype.kind == "c":
            array = array.view(array.real.dtype) if array.ndim else np.array([array.real, array.imag])
        if array.dtype.kind in "biuf":
            form.append((array.dtype.kind, array.shape))
            found[name] = array.astype(np.float64).ravel()
            if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
                found.exact[name] = array.astype(np.int64).ravel()  # unsigned ones modulo 2^64
            return
        value = array.tolist()
    if isinstance(value, list | tuple | set | frozenset) and depth < DEEPEST:
        if value and all(isinstance(part, bool | int | float | np.generic) for part in value):
            _collect(name, np.array([float(part) for part in value]), found, form, depth + 1)
            return
        form.append(("sequence", len(value)))
        value = dict(enumerate(value))
    elif isinstance(value, Mapping):
        form.append(("mapping", [str(key) for key in value]))
    elif not isinstance(value, str | bytes) and (found.objects or is_dataclass(value)) and depth < DEEPEST:
        value = _attributes(value) or type(value).__name__
        form.append("record")
    if isinstance(value, Mapping) and depth < DEEPEST:
        for key, part in value.items():
            _collect(f"{name}.{key}", part, found, form, depth + 1)
    elif found.objects or isinstance(value, str | bytes):
        form.append("text")
        found[f"{name}.text"] = np.array([hash_number(value)])


def _half(value: Any) -> bool:
    return bool(value.is_sparse) or str(value.dtype) in ("torch.bfloat16", "torch.float16")


def _attributes(value: Any) -> dict[str, Any]:
    """Of an object, those in slots included; none of a class, a module or a function."""
    if isinstance(value, type | ModuleType) or inspect.isroutine(value):
        return {}
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if name[:2] != "__" and hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


# --- rounds -----------------------------------------------------------------------------------------------------------
# Targets that are played in rounds: one input for each, a state of their own between them.


class RoundsSubject(Subject):
    """A subject that says what leaves in rounds of a fresh instance."""

    @abstractmethod
    def rounds(self, data: Sequence[Any]) -> Iterator[dict[str, Numbers]]:
        """What leaves in each round, of a fresh instance whose generators are seeded by then."""

    def quiet(self) -> AbstractContextManager[None]:
        """Around plays: what the target logs is not written."""
        return nullcontext()

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        return self.series([data] * calls, seed)

    def series(self, data: Sequence[Any], seed: int | None) -> list[Played]:
        with seeded(seed), self.quiet():
            return [Played(numbers) for numbers in self.rounds(data)]

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        """One stream of randomness for all n plays."""
        (seed,) = seeds_of(seed, 1)
        with seeded(seed), self.quiet():
            return np.stack([Played(next(self.rounds([data]))).flat() for _ in range(n)])


def claim_of(recognised: Sequence[Recognised], question: Question, source: str, adjacency: str) -> Claim | None:
    """The user's own claim; otherwise the first of the recognised parts. delta of a pure claim is the question's."""
    if question.claim is not None:
        return question.claim
    for one in recognised:
        if one.claimed is not None and one.delta is not None and one.delta < 1:
            return Claim(one.claimed, one.delta or question.at_delta, one.scope, source, adjacency)
    return None


# --- budget -----------------------------------------------------------------------------------------------------------
# Seconds of CPU that a check may take, divided among its parts.

#: Seconds of CPU of this process.
clock = time.process_time


class Budget:
    """CPU seconds of this process from now on. cut: in words, what was done less often for want of time; a share has
    the list of the whole.
    """

    def __init__(self, seconds: float, cut: list[str] | None = None) -> None:
        self._end = clock() + seconds
        self.cut = [] if cut is None else cut

    @property
    def left(self) -> float:
        return max(0.0, self._end - clock())

    def share(self, part: float) -> Budget:
        """A budget of this part of what is left."""
        return Budget(self.left * part, self.cut)

    def allowed(self, what: str, affordable: float, wanted: int, least: int = 0) -> int:
        """How many of ``wanted`` are made, at least ``least``; fewer than that are told in `cut`."""
        many = max(min(wanted, least), min(wanted, int(affordable)))
        if many < wanted:
            self.cut.append(f"{what}: {many:,} of {wanted:,}")
        return many

    def taken(self) -> tuple[str, ...]:
        """What is in `cut`, which is empty then."""
        found = tuple(dict.fromkeys(self.cut))
        self.cut.clear()
        return found


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """A list that holds the CPU seconds of the block once it has ended."""
    began, taken = clock(), [0.0]
    try:
        yield taken
    finally:
        taken[0] = clock() - began
