"""What a command is at work on, told by whichever room does it to whoever shows it (`fedpriv.report.live.task`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: (words, how many are done, of how many); None where nothing is counted.
Listener = Callable[[str, int | None, int | None], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def doing(words: str, done: int | None = None, of: int | None = None) -> None:
    """Says what begins now, or how far it is. Nobody need listen."""
    if (listener := _listener.get()) is not None:
        listener(words, done, of)


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Context in which ``listener`` hears what this thread is doing; None: nobody does."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
