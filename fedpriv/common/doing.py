"""What a command is at work on, told by whichever room does it to whoever shows it (`fedpriv.report.live.task`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
#: Of so many things one is said.
EVERY = 1000

#: (words, how many are done, of how many); None where nothing is counted.
Listener = Callable[[str, int | None, int | None], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def doing(words: str, done: int | None = None, of: int | None = None) -> None:
    """Says what begins now, or how far it is. Nobody need listen."""
    if (listener := _listener.get()) is not None:
        listener(words, done, of)


def counted(words: str, things: Sequence[T]) -> Iterator[T]:
    """The things in turn, saying of every thousandth how far it is."""
    for number, thing in enumerate(things):
        if number % EVERY == 0:
            doing(words, number, len(things))
        yield thing


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Context in which ``listener`` hears what this thread is doing; None: nobody does."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
