"""Data that a target draws itself: normal draws of generators with a seed of the client's own, replaced by others.

Examples, tests and simulations often make a client's data from a seed that follows its number. `Draws` notes the seeds
with which generators of NumPy, Python and torch are made while the target runs. A seed that comes again in every call
of one client, and in none of another's, is one of data: it is no noise, and it is nothing that all clients share.
Normal numbers drawn from it have no bound, so any others are data too; all other draws (whole numbers, ranges, orders)
stay.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: How far replaced numbers are from usual ones.
EXTREME = 1e3
#: What becomes of normal draws. "": they stay; "other": those of another client.
CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "large": lambda drawn: EXTREME * drawn,
    "large, opposite": lambda drawn: -EXTREME * drawn,
    "equal": lambda drawn: 0 * drawn + EXTREME,
    "equal, opposite": lambda drawn: 0 * drawn - EXTREME,
    "small": lambda drawn: drawn / EXTREME,
}


def _in_first(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The change, of the first row alone."""

    def changed(drawn: Any) -> Any:
        if getattr(drawn, "ndim", 0) == 0:
            return change(drawn)
        found = drawn.clone() if hasattr(drawn, "clone") else drawn.copy()
        found[0] = change(drawn[0])
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
        self._change, self.noted = change, {}
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
        change = CHANGES[self._change]
        return given, _in_first(change) if self.unit == "example" else change

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
