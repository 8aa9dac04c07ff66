"""One example's worst gradient put through a loop's own optimiser and sampling: the layer *sampled* of loops.

The example's gradient is one coordinate, as long as any (the clip norm is what is left of it). A trial is as many steps
as are tried of the loop's own: in each the sampler's coin decides whether the example is in the batch, the optimiser
clips, adds noise and scales, and what it hands on at this coordinate is observed. The others' gradients are zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.checking.loop_record import Numbers, Source

#: Trials made in one call; single ones against which that is tried.
TOGETHER, SINGLE = 256, 400
#: Clip norms that the canary's gradient is long.
LONG = 1e3


@dataclass(frozen=True)
class Canary:
    """Whether the example is in the data."""

    present: bool


class CanaryTrials:
    """The optimiser of a loop, with canaries. steps: of one trial; source: the loader's law.

    Many trials in one call: trial i has parameter i, and an example whose gradient is this coordinate alone. Examples
    are clipped one by one and noise is independent between coordinates, so each coordinate has the law of one trial;
    `agree` tries whether that is so, and if not trials are made one by one.
    """

    def __init__(self, optimiser: Any, source: Source | None, steps: int, ghost_clip: float | None) -> None:
        self.optimiser, self.source, self.steps, self.ghost_clip = optimiser, source, max(1, steps), ghost_clip
        self.norm = float(optimiser.max_grad_norm)
        self._twins: dict[int, tuple[Any, Any]] = {}
        self.together = TOGETHER if self.agree() else 1

    def rows(self, present: bool, n: int) -> Numbers:
        """[n, steps]: what the inner optimiser gets at the canary's coordinate."""
        members = self._members(n) & present
        found = np.empty((n, self.steps))
        for begin in range(0, n, self.together):
            for step in range(self.steps):
                part = slice(begin, begin + self.together)
                found[part, step] = self._step(members[part, step])
        return found

    def agree(self) -> bool:
        """Whether trials made together have the mean and the deviation of trials made one by one."""
        inside = np.ones(SINGLE, dtype=bool)
        single = np.array([self._step(inside[:1])[0] for _ in range(SINGLE)])
        both = self._step(inside)
        scale = max(float(single.std()), 1e-12)
        apart = abs(single.mean() - both.mean()) / scale, abs(np.log(max(float(both.std()), 1e-12) / scale))
        return bool(apart[0] < 6 / np.sqrt(SINGLE) and apart[1] < 6 / np.sqrt(2 * SINGLE))

    def _members(self, n: int) -> np.ndarray:
        """[n, steps]: whether the sampler puts the example into the batch, drawn by the sampler's law."""
        import torch

        source = self.source
        if source is not None and source.kind == "poisson" and source.rate is not None:
            drawn: np.ndarray = (torch.rand(n, self.steps) < source.rate).numpy()
            return drawn
        if source is not None and source.kind == "without-replacement" and source.batch_size and source.population:
            batches = max(1, math.ceil(source.population / source.batch_size))
            passes = math.ceil(self.steps / batches)
            places = torch.randint(batches, (n, passes)).numpy()  # a shuffle puts an example anywhere, each pass anew
            at = np.arange(self.steps)
            found: np.ndarray = places[:, at // batches] == at % batches
            return found
        return np.ones((n, self.steps), dtype=bool)

    def _twin(self, size: int) -> tuple[Any, Any]:
        """(an optimiser with the loop's class, methods and settings, its one parameter of this size)."""
        import torch

        if size not in self._twins:
            parameter = torch.nn.Parameter(torch.zeros(size))
            optimiser = self.optimiser
            twin = object.__new__(type(optimiser))  # copy.copy asks Optimizer.__getstate__, which leaves out the noise
            twin.__dict__.update(vars(optimiser))
            twin.original_optimizer = torch.optim.SGD([parameter], lr=0.0)
            twin.step_hook = None
            if hasattr(twin, "max_grad_norms"):
                twin.max_grad_norms = [self.norm]
            self._twins[size] = twin, parameter
        return self._twins[size]

    def _step(self, inside: np.ndarray) -> Numbers:
        """One step with a canary for each coordinate that is in the batch."""
        import torch

        twin, parameter = self._twin(len(inside))
        twin.max_grad_norm = self.norm
        twin._step_skip_queue, twin._is_last_step_skipped = [], False
        values = torch.from_numpy(inside.astype(np.float32))
        if self.ghost_clip is not None:
            parameter.grad = values * self.ghost_clip
        else:
            parameter.grad_sample = torch.diag(values * (LONG * self.norm))
        parameter.summed_grad = None
        twin.pre_step()
        found: Numbers = parameter.grad.detach().double().numpy().copy()
        twin.zero_grad()
        return found


def trials_of(optimisers: Sequence[Any], source: Source | None, steps: int, clip: float | None) -> CanaryTrials | None:
    """Trials with the first optimiser that a twin can be made of; None: the loop has none."""
    for optimiser in optimisers:
        try:
            made = CanaryTrials(optimiser, source, steps, clip)
            made.rows(True, 1)
        except Exception:  # an optimiser of the loop's own that needs more than the library's
            continue
        return made
    return None
