"""Seconds of CPU that a check may take, divided among its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

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
