"""Distributed loops in one process: torch.distributed as one worker of a group sees it, without any other process.

A loop that starts a group gets this one; one that needs a group finds it. All of a group's operations leave numbers as
they are, as if the other workers had nothing to say. With a group of one worker that is what a run is, so all layers
look at such a run. In a group of `WORKERS` the noise of each worker is seen alone: the sum that leaves has the noise of
all of them together, which has to be what the optimiser is set to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from fedpriv.checking.findings import Finding
from fedpriv.checking.loop_record import LoopRecord, Numbers

#: Workers of the group in which each one's noise is looked at.
WORKERS = 2
#: Noise is too little below this share of one worker's, in standard errors of a ratio of variances; numbers from which
#: it is estimated, in so many executions at most.
FAR_BELOW, ENOUGH, EXECUTIONS = 4.5, 1500, 12


class Group:
    """rank, workers: of the worker that is played. asked: whether the loop started a group, or needed one."""

    def __init__(self, rank: int = 0, workers: int = 1) -> None:
        self.rank, self.workers, self.asked = rank, workers, False

    @contextmanager
    def standing(self) -> Iterator[None]:
        """A loop that starts a group of its own gets this one; where `asked`, it is there from the start."""
        import torch.distributed as dist

        if not dist.is_available() or dist.is_initialized():
            yield
            return
        real = dist.init_process_group

        def start(*args: Any, **kwargs: Any) -> None:
            self.asked = True
            if not dist.is_initialized():
                self._start(real)

        dist.init_process_group = start
        if dist.distributed_c10d.init_process_group is real:
            dist.distributed_c10d.init_process_group = start
        try:
            if self.asked:
                self._start(real)
            yield
        finally:
            dist.init_process_group = dist.distributed_c10d.init_process_group = real
            with suppress(Exception):
                if dist.is_initialized():
                    dist.destroy_process_group()

    def _start(self, real: Callable[..., None]) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        real("fake", rank=self.rank, world_size=self.workers, store=FakeStore())

    def learn(self, error: Exception) -> bool:
        """Whether the error is that there is no group: then there is one from now on."""
        if self.asked or "process group" not in str(error).lower():
            return False
        self.asked = True
        return True


def noise_of_workers(play: Callable[[int, int, int], LoopRecord]) -> Iterator[Finding]:
    """Whether all workers together add as much noise as one alone does. play: (rank, workers, seed) -> a record."""
    alone = _noise(play, 0, 1)
    parts = [_noise(play, rank, WORKERS) for rank in range(WORKERS)]
    if not alone.size or not any(part.size for part in parts):
        return
    total = sum(float(np.mean(np.square(part))) for part in parts if part.size)
    share = total / float(np.mean(np.square(alone)))
    count = min(part.size for part in (alone, *parts) if part.size)
    if share < 1 - FAR_BELOW * (4 / count) ** 0.5:
        yield Finding(
            "replayed", "noise-of-workers-too-small", "fault",
            f"In a group of {WORKERS} workers the noise of all of them together has {share**0.5:.3g} of the standard "
            "deviation that one worker alone adds, and one example moves the sum by as much: what is proved of one "
            "worker does not hold for a group.",
            "Add the whole noise on one worker, or noise of 1 / sqrt(workers) of its deviation on each.",
        )  # fmt: skip


def _noise(play: Callable[[int, int, int], LoopRecord], rank: int, workers: int) -> Numbers:
    """What was added to the sums of gradients [k]; nothing of a worker that adds none."""
    found: Numbers = np.zeros(0)
    for seed in range(EXECUTIONS):
        steps = [np.ravel(step.moved) for step in play(rank, workers, seed).private_steps if step.moved is not None]
        found = np.concatenate([found, *steps])
        if not np.any(found) or found.size >= ENOUGH:
            break
    return found if np.any(found) else np.zeros(0)
