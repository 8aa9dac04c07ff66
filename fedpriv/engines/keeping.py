"""What a run leaves to the next run of the same process: Ray with its workers, whose start takes longer than many runs.

Only where somebody says that runs follow one another (`kept_between_runs`: a sweep); otherwise a run ends what it
started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Kept(Protocol):
    """Something that waits for the next run."""

    def end(self) -> None: ...


_waiting: list[Kept] = []  # one at most
_depth: list[None] = []  # an entry for each `kept_between_runs`


@contextmanager
def kept_between_runs() -> Iterator[None]:
    """While this lasts, Ray and the workers that a run has started wait, at its end, for the next run of this process
    that wants such workers. Workers in a cluster (`engine.address`) do not wait: others may want their cores.
    """
    _depth.append(None)
    try:
        yield
    finally:
        _depth.pop()
        if not _depth:
            end_kept()


def keeping() -> bool:
    """Whether another run may follow in this process."""
    return bool(_depth)


def keep(pool: Kept) -> None:
    """Keep this pool for the next run; end the previous one."""
    end_kept()
    _waiting.append(pool)


def take_kept() -> Kept | None:
    """Return the kept pool or None. The caller must end it."""
    return _waiting.pop() if _waiting else None


def end_kept() -> None:
    """End the kept pool, if there is one."""
    while _waiting:
        _waiting.pop().end()
