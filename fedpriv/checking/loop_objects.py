"""Opacus' objects in a process: which there are, what they are set to, and what lies under their wrappers."""

from __future__ import annotations

import gc
from typing import Any


def living(kind: type) -> list[Any]:
    """Every object of a class, or of a subclass, that this process has. Types alone are looked at: a proxy's class may
    not be asked.
    """
    return [one for one in gc.get_objects() if kind in type(one).__mro__]


def clipping_module(optimiser: Any) -> Any:
    """The module that clips in the backward pass for this optimiser, or None."""
    from opacus.grad_sample import GradSampleHooksFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping

    if not isinstance(optimiser, DPOptimizerFastGradientClipping):
        return None
    own = {id(p) for p in optimiser.params}
    found = living(GradSampleHooksFastGradientClipping)
    return next((one for one in found if any(id(p) in own for p in one.trainable_parameters)), None)


def inner_of(optimiser: Any) -> Any:
    """The optimiser at the bottom of wrappers."""
    found = optimiser.original_optimizer
    for _ in range(8):
        if not hasattr(found, "original_optimizer"):
            break
        found = found.original_optimizer
    return found


def settings_of(optimiser: Any) -> dict[str, Any]:
    """The noise and clip that a DPOptimizer is set to as it adds noise."""
    multiplier = float(optimiser.noise_multiplier)
    effective = getattr(optimiser, "_adjusted_noise_multiplier", multiplier)
    count_std = getattr(optimiser, "unclipped_num_std", None)
    if count_std is not None and effective == multiplier and multiplier > 0:
        effective = (multiplier**-2 - (2 * float(count_std)) ** -2) ** -0.5  # [Andrew et al. 2021, Theorem 1]
    clip = float(optimiser.max_grad_norm)
    rank = int(getattr(optimiser, "rank", 0))
    return {
        "noise_multiplier": multiplier,
        "noise_clip": clip,
        "clip": clip,
        "std": float(effective) * clip,
        "expected_batch_size": optimiser.expected_batch_size,
        "loss_reduction": optimiser.loss_reduction,
        "rank": rank,
        "counted": count_std is not None,
    }


def base_sampler(sampler: Any) -> Any:
    """The sampler at the bottom: pieces of large batches come from one that splits another's."""
    from opacus.utils.batch_memory_manager import BatchSplittingSampler

    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    return sampler
