"""One example's worst gradient put through a loop's own optimiser and sampling, many times: the layer *sampled* of loops.

The example's gradient is one coordinate, as long as any (the clip norm is what is left of it). A trial is as many steps
as are tried of the loop's own: in each the sampler's coin decides whether the example is in the batch, the optimiser
clips, adds noise and scales, and what it hands on at this coordinate is observed. The others' gradients are zero, and
the parameters number one: noise is independent between coordinates (`loop_replay` looks for noise that is not).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.checking.loop_record import Numbers, Source

#: Clip norms that the canary's gradient is long.
LONG = 1e3


@dataclass(frozen=True)
class Canary:
    """Whether the example is in the data."""

    present: bool


class CanaryTrials:
    """The optimiser of a loop on one coordinate. steps: of one trial; source: the loader's law."""

    def __init__(self, optimiser: Any, source: Source | None, steps: int, ghost_clip: float | None) -> None:
        import torch

        self.source, self.steps, self.ghost_clip = source, max(1, steps), ghost_clip
        self.parameter = torch.nn.Parameter(torch.zeros(1))
        twin = object.__new__(type(optimiser))  # copy.copy asks Optimizer.__getstate__, which leaves out the noise
        twin.__dict__.update(vars(optimiser))
        twin.original_optimizer = torch.optim.SGD([self.parameter], lr=0.0)
        twin.step_hook = None
        twin._step_skip_queue, twin._is_last_step_skipped = [], False
        if hasattr(twin, "max_grad_norms"):
            twin.max_grad_norms = [twin.max_grad_norm]
        self.twin, self.norm = twin, float(optimiser.max_grad_norm)

    def rows(self, present: bool, n: int) -> Numbers:
        """[n, steps]: what the inner optimiser gets at the canary's coordinate."""
        members = self._members(n)
        found = np.empty((n, self.steps))
        for row in range(n):
            for step in range(self.steps):
                found[row, step] = self._step(present and bool(members[row, step]))
        return found

    def _members(self, n: int) -> np.ndarray:
        """[n, steps]: whether the sampler puts the example into the batch. Drawn as the sampler draws it."""
        import torch

        source = self.source
        if source is not None and source.kind == "poisson" and source.rate is not None:
            drawn: np.ndarray = (torch.rand(n, self.steps) < source.rate).numpy()
            return drawn
        if source is not None and source.kind == "without-replacement" and source.batch_size and source.population:
            batches = max(1, math.ceil(source.population / source.batch_size))
            places = torch.stack([torch.randperm(batches)[0] for _ in range(n)]).numpy()
            return np.arange(self.steps)[None, :] % batches == places[:, None]
        return np.ones((n, self.steps), dtype=bool)

    def _step(self, inside: bool) -> float:
        import torch

        twin, parameter = self.twin, self.parameter
        twin.max_grad_norm = self.norm
        if self.ghost_clip is not None:
            parameter.grad = torch.full((1,), self.ghost_clip if inside else 0.0)
        else:
            value = LONG * self.norm if inside else 0.0
            parameter.grad_sample = torch.full((1, 1), value)  # type: ignore[attr-defined]
        parameter.summed_grad = None  # type: ignore[attr-defined]
        twin.pre_step()
        found = float(parameter.grad)  # type: ignore[arg-type]
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
