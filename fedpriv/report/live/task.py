"""A command's progress before and beside rounds: set-up, audits, attacks, sites. Silent for its first seconds.

A bar in a terminal, plain lines elsewhere, both on stderr: what a command prints on stdout is its result.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedpriv.common.doing import heard_by
from fedpriv.common.printing import say
from fedpriv.common.verbosity import is_quiet

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds before anything is shown, and between plain lines.
FIRST, BETWEEN = 3.0, 10.0


@contextmanager
def task(name: str, first: float | None = None) -> Iterator[None]:
    """Context of work that may take a while: what `doing` says in it is shown, from the ``first`` seconds on (`FIRST`).

    A piece that says nothing for long is shown too, with its seconds: a thread looks after it. Inside another task it
    changes nothing.
    """
    if is_quiet() or getattr(_shown_by, "busy", False):
        yield
        return
    shown = _Task(name, FIRST if first is None else first)
    _shown_by.busy = True
    watcher = threading.Thread(target=shown.watch, name="progress", daemon=True)
    watcher.start()
    try:
        with heard_by(shown.told):
            yield
    finally:
        _shown_by.busy = False
        shown.ended.set()
        if os.getpid() == shown.process:  # a forked child has no such thread
            watcher.join()
            shown.close()


_shown_by = threading.local()


@dataclass
class _Task:
    """What is known of a command's work, and the bar or the lines that show it."""

    name: str
    first: float
    words: str = ""
    done: int | None = None
    of: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    process: int = field(default_factory=os.getpid)
    bar: Progress | None = None

    def __post_init__(self) -> None:
        self.began = self.since = time.monotonic()

    def told(self, words: str, done: int | None, of: int | None) -> None:
        """Called by whoever works."""
        if words != self.words:
            self.since = time.monotonic()
        self.words, self.done, self.of = words, done, of

    def watch(self) -> None:
        """Shows, until the end, what was told last."""
        if self.ended.wait(self.first):
            return
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.start()
            number = self.bar.add_task(self.line(), total=None)
        with suppress(OSError, ValueError):  # stderr may be gone before we are
            while True:
                if self.bar:
                    self.bar.update(number, description=self.line(), total=self.of, completed=self.done or 0)
                else:
                    say(f"{self.line()}{self.times()}", file=sys.stderr, flush=True)
                if self.ended.wait(0.2 if self.bar else BETWEEN):
                    return

    def close(self) -> None:
        if self.bar:
            self.bar.stop()

    def line(self) -> str:
        counted = f" {self.done:,} of {self.of:,}" if self.done is not None and self.of else ""
        return f"{self.name}: {self.words or 'begun'}{counted}"

    def times(self) -> str:
        """Seconds so far and, where something is counted, left."""
        now = time.monotonic()
        left = ""
        if self.done and self.of:
            left = f", {(now - self.since) / self.done * (self.of - self.done):.0f} s left"
        return f" ({now - self.began:.0f} s so far{left})"
