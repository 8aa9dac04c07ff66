"""When a run writes its checkpoints: every n rounds, or as often as a tenth of its time allows.

`checkpoint.every=auto` keeps this rule: what was spent on checkpoints, the one that would be written now and the one
after the last round together take at most a tenth of the time that will then have passed. A checkpoint holds the
memory of every client that ever took part, so its price is taken to grow as their number does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedpriv.config.schema import Config

#: Of a run's time, at most, with `checkpoint.every=auto`.
SHARE = 0.1
#: What the first checkpoint is taken to cost in seconds: it tells what the others will.
FIRST = 0.1


class CheckpointPace:
    """Of one process's part of a run. clock: seconds that only grow."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.perf_counter) -> None:
        self.every, self.last = config.checkpoint.every, config.num_rounds
        self._clients, self._asked = config.num_clients, config.clients_asked
        self._clock, self._began = clock, clock()
        self._spent, self._took, self._at = 0.0, 0.0, 0  # in all; by the newest, after which round

    def due(self, number: int) -> bool:
        """Whether the state after this round is to be kept; that after the last one always is, unless every is 0."""
        if self.every == 0:
            return False
        if number == self.last:
            return True
        if self.every != "auto":
            return number % self.every == 0
        ahead = self._price(number) + self._price(self.last) if self._at else FIRST
        return self._spent + ahead <= SHARE * (self._clock() - self._began + ahead)

    @contextmanager
    def writing(self, number: int) -> Iterator[None]:
        """Around the writing of a checkpoint: what it takes decides about the next ones."""
        began = self._clock()
        yield
        self._took, self._at = self._clock() - began, number
        self._spent += self._took

    def _price(self, number: int) -> float:
        """Of a checkpoint after this round, in seconds, at most: the newest's, times the most clients that can have
        taken part by then over the number that had, which is least where every round drew among all.
        """
        most = min(self._clients, self._asked * number)
        had = self._clients * (1 - (1 - self._asked / self._clients) ** self._at)
        return self._took * most / had
