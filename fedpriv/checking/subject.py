"""The one shape to which every target of a check is reduced, by an adapter.

The layers *replayed* and *sampled* look at this shape alone, never at the names of classes, files or variables. An
adapter is a file of this package with ``recognises(target, question) -> Subject | None``, named in
`fedpriv.checking.checks`.
"""

from __future__ import annotations

import pprint
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedpriv.checking.findings import Finding
from fedpriv.checking.generators import digest_of_states, seeded, seeds_of
from fedpriv.checking.reading import Numbers, Played

if TYPE_CHECKING:
    from fedpriv.privacy.events import Event

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
    None: an update may be of any length. form: of what a function takes, those that are tried; None: all. also: what is
    read beside what a function returns. show: name of a pair whose inputs are wanted as a text.
    """

    claim: Claim | None = None
    delta: float | None = None
    calls: int | None = None
    dims: tuple[int, ...] = (16, 256)
    trials: int = 20_000
    confidence: float = 0.95
    seed: int = 0
    bound: float | None = None
    form: Literal["update", "data", "clients", "rows"] | None = None
    also: tuple[Literal["printed", "files"], ...] = ()
    show: str | None = None

    def covers(self, pair: Pair) -> bool:
        """Whether a figure of a pair is one of the claim, or without a claim of one unit against none."""
        return self.claim.covers(pair) if self.claim else pair.adjacency != "replace-one"

    @property
    def at_delta(self) -> float:
        """delta at which every figure of the check is given."""
        return self.delta if self.delta is not None else self.claim.delta if self.claim else 1e-5


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

    def unseeded(self, data: Any, seed: int) -> tuple[Played, Sequence[str]]:
        """A play that seeds nothing while the process's generators begin at ``seed``; digests of their states."""
        with seeded(seed):
            return self.play(data, None)[0], digest_of_states()

    def text(self, data: Any) -> str:
        """An input, for a person."""
        with np.printoptions(threshold=10_000, precision=17):
            return pprint.pformat(data, width=120)

    def lines(self, data: Any, seed: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of the target's source: "numbers", by name the (file, line) where those of ``values`` are made in a play, and
        "draws", where noise is drawn. Empty where an adapter cannot tell.
        """
        return {}

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        """[n, k]: everything that leaves in each of n independent single calls, by default a loop over `play`."""
        return np.stack([self.play(data, one)[0].flat() for one in seeds_of(seed, n)])


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


class Elsewhere:
    """Seconds of CPU that a target's own process has used for the check."""

    seconds = 0.0


def clock() -> float:
    """Seconds of CPU of this process and of the target's."""
    return time.process_time() + Elsewhere.seconds


#: What a check does, in this order, and the weight of each part in its time: what one leaves, the later ones share.
PARTS: Mapping[str, float] = MappingProxyType({"pairs": 30, "calls": 20, "ends": 8, "runs": 15, "sampled": 27})


class Budget:
    """CPU seconds of this process from now on. cut: in words, what was done less often for want of time; looked: the
    least share of what was wanted that a part did. Shares of a budget have these two of the whole.
    """

    def __init__(self, seconds: float, parts: Sequence[str] = tuple(PARTS), of: Budget | None = None) -> None:
        self._end, self._parts = clock() + seconds, parts
        self.name: str = of.name if of else parts[0]
        self.cut: list[str] = of.cut if of else []
        self.looked: dict[str, float] = of.looked if of else {}

    @property
    def left(self) -> float:
        return max(0.0, self._end - clock())

    @property
    def coverage(self) -> float:
        """The share of a full check that was made: of the parts that were begun, by their weights."""
        return sum(PARTS[one] * share for one, share in self.looked.items()) / sum(PARTS[one] for one in self.looked)

    def part(self, name: str, weight: float | None = None) -> Budget:
        """What is left for a part, among itself and those that follow."""
        later = sum(PARTS[one] for one in self._parts[self._parts.index(name) + 1 :])
        mine = PARTS[name] if weight is None else weight
        found = Budget(self.left * mine / (mine + later), of=self)
        if len(self._parts) == len(PARTS):  # of the whole check
            found.name = name
            self.looked.setdefault(name, 1.0)
        return found

    def share(self, part: float, parts: Sequence[str] = tuple(PARTS)[:1]) -> Budget:
        """A budget of this part of what is left."""
        return Budget(self.left * part, parts, of=self)

    def allowed(self, what: str, affordable: float, wanted: int, least: int = 0) -> int:
        """How many of ``wanted`` are made, at least ``least``; fewer than that are told in `cut`."""
        many = max(min(wanted, least), min(wanted, int(affordable)))
        self.made(what, many, wanted)
        return many

    def made(self, what: str, many: int, wanted: int) -> None:
        if many < wanted:
            self.cut.append(f"{what}: {many:,} of {wanted:,}")
            self.looked[self.name] = min(self.looked.get(self.name, 1.0), many / wanted)

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
