"""Seconds of CPU that a check may take, divided among its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds of CPU of this process.
clock = time.process_time


class Budget:
    """CPU seconds of this process from now on."""

    def __init__(self, seconds: float) -> None:
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - clock())

    def share(self, part: float) -> Budget:
        """A budget of this part of what is left."""
        return Budget(self.left * part)


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """A list that holds the CPU seconds of the block once it has ended."""
    began, taken = clock(), [0.0]
    try:
        yield taken
    finally:
        taken[0] = clock() - began
