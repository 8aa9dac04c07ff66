"""The one shape to which every target of a check is reduced, by an adapter.

The layers *replayed* and *sampled* look at this shape alone, never at the names of classes, files or variables. An
adapter is a file of this package with ``recognises(target, question) -> Subject | None``, named in
`fedpriv.checking.adapters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.findings import Finding
from fedpriv.checking.generators import seeds_of
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
