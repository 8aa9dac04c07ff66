"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.common.printing import say
from fedpriv.common.verbosity import is_quiet

#: Shortest time between plain lines, except before the last.
SECONDS_BETWEEN_LINES = 1.0
#: Plain lines of a run whose times would tell who took part: about so many, of rounds that its length decides alone.
LINES = 100


def figure(value: float | None) -> str:
    """A number for display; infinity is spelled out."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


_prefix: ContextVar[str | None] = ContextVar("prefix", default=None)


@contextmanager
def plain_output(prefix: str | None) -> Iterator[None]:
    """For several runs in one terminal: lines that begin with ``prefix`` instead of a bar (None: no change)."""
    token = _prefix.set(prefix)
    try:
        yield
    finally:
        _prefix.reset(token)


class RunProgress:
    """Shows rounds, accuracy, epsilon so far and time left."""

    def __init__(self, name: str, num_rounds: int, done: int = 0) -> None:
        self.num_rounds, self.done = num_rounds, done
        self.console = Console()
        self.bar: Progress | None = None
        self._began, self._first = time.monotonic(), done
        self._prefix, self._shown = _prefix.get(), -math.inf
        self._quiet = is_quiet()
        if self.console.is_terminal and self._prefix is None and not self._quiet:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[score]}epsilon {task.fields[epsilon]}"),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=self.console)
            self.task = self.bar.add_task(name, total=num_rounds, completed=done, score="", epsilon="-")

    def __enter__(self) -> RunProgress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def round(self, number: int, reached: Mapping[str, float], epsilon: float | None, seconds: float | None) -> None:
        """A round has ended. reached: metrics by name, of a round that was evaluated. seconds: None where they would
        tell who took part.
        """
        if self._quiet:
            return
        score = "".join(f"{name.replace('_', ' ')} {value:.4f}  " for name, value in reached.items())
        if self.bar:
            shown: dict[str, Any] = {"epsilon": figure(epsilon)}
            if reached:
                shown["score"] = score
            self.bar.update(self.task, completed=number, **shown)
            return
        now = time.monotonic()
        timed = seconds is not None
        due = now - self._shown >= SECONDS_BETWEEN_LINES if timed else number % max(1, self.num_rounds // LINES) == 0
        if not due and number < self.num_rounds:
            return
        self._shown = now
        pace = (now - self._began) / max(1, number - self._first)
        left = pace * (self.num_rounds - number)
        took = "" if seconds is None else f"  {seconds:.2f} s  left {left:.0f} s"
        words = f"round {number}/{self.num_rounds}  {score}epsilon {figure(epsilon)}{took}"
        say(f"{self._prefix or ''}{words}", file=sys.stdout, flush=True)
