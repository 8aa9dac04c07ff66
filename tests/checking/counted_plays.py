"""A check divides seconds of CPU among its parts; in these tests a play takes a fixed time, so that a loaded machine
plays as often as a quiet one and comes to the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from typing import Any

import pytest

from fedpriv.checking import checks
from fedpriv.checking.subject import Subject

#: Milliseconds of one call, about what it takes on a quiet machine. A test file whose targets are slower says so in its
#: own ``MILLISECONDS_OF_A_PLAY``.
MILLISECONDS = {"StrategySubject": 4.0, "AppSubject": 0.8, "ModSubject": 1.0, "DataFunction": 0.5}
OTHERS, TRIAL = 0.2, 0.05
#: How many calls each way to play makes.
CALLS: dict[str, Callable[..., int]] = {
    "play": lambda data, seed, calls=1: calls,
    "series": lambda data, seed: len(data),
    "trials": lambda data, n, seed: n,
}


class Clock:
    """Seconds that go on with what is played alone. inside: plays that others make are counted once."""

    seconds = 0.0
    inside = False

    def __init__(self, slow: float | None) -> None:
        self.slow = slow

    def counted(self, function: Callable[..., Any], way: str) -> Callable[..., Any]:
        @wraps(function)
        def play(subject: Subject, *inputs: Any, **named: Any) -> Any:
            if self.inside:
                return function(subject, *inputs, **named)
            self.inside = True
            try:
                return function(subject, *inputs, **named)
            finally:
                self.inside = False
                kind = type(subject).__name__
                one = self.slow or MILLISECONDS.get(kind, TRIAL if way == "trials" else OTHERS)
                self.seconds += 1e-3 * one * CALLS[way](*inputs, **named)

        return play


def kinds_of(kind: type[Subject]) -> Iterator[type[Subject]]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds_of(one)


def count_plays(monkeypatch: pytest.MonkeyPatch, slow: float | None) -> None:
    """slow: milliseconds of a play, of targets that take longer."""
    for name, _ in checks.ADAPTERS:
        import_module(name)
    clock = Clock(slow)
    monkeypatch.setattr("fedpriv.checking.subject.clock", lambda: clock.seconds)
    counted = {}  # one for each function: a kind without a series has that of the base class
    for kind in {Subject, *kinds_of(Subject)}:
        for way in CALLS.keys() & vars(kind).keys():
            function = vars(kind)[way]
            counted.setdefault(function, clock.counted(function, way))
            monkeypatch.setattr(kind, way, counted[function])
