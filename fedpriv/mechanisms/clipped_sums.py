"""Clipped sums: how much longer one gradient may be, and a person's rows added up before they are clipped.

The proof of how far one example moves a sum is in `fedpriv.mechanisms.per_example`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.mechanisms.bookkeeping import DRIFT, add_rows, filled, without
from fedpriv.mechanisms.clipping import clip_factors

#: The largest batch whose rounding error fits into `KEPT_BACK`.
LARGEST_BATCH = 2**16

#: Numbers that a physical batch may hold besides the model (256 MiB).
PHYSICAL_NUMBERS = 2**26


def excess(examples: int) -> float:
    """Bound on how far beyond the clip bound one example moves a clipped sum over subsets of ``examples`` examples, in
    units of the clip bound: 0 up to `LARGEST_BATCH`.
    """
    return 2 * max(0, examples - LARGEST_BATCH) * (DRIFT + 2.0**-33)


@dataclass(frozen=True)
class ClippedSum:
    """total: sum over the batch of clipped gradients (float64 [d]); norms before clipping (float64 [b]); mean loss."""

    total: Tensor
    norms: Tensor
    loss: float


def sum_of_units(
    gradients: Callable[[Tensor, Tensor], tuple[dict[str, Tensor], Tensor]],
    inputs: Tensor,
    targets: Tensor,
    bound: float,
    unit: Tensor,
    num_parameters: int,
    physical: int,
) -> ClippedSum:
    """The sum over persons of the mean of their rows' gradients, clipped as one vector; rows with one number in
    ``unit`` (int64 [b]) are of one person. norms: of the persons, in the order of their numbers.

    A person's vector is a float64 tensor of its own rows alone (a row's bits depend on nothing else, as there), it
    is measured and summed as it is: `per_example`'s case 1, whatever the rows are and however many.
    """
    ids, member = torch.unique(unit, return_inverse=True)
    order = torch.argsort(member, stable=True)
    starts = torch.searchsorted(member[order].contiguous(), torch.arange(len(ids) + 1, device=unit.device))
    together = max(1, PHYSICAL_NUMBERS // max(1, 4 * num_parameters))
    total = torch.zeros(num_parameters, dtype=torch.float64, device=targets.device)
    norms, loss, size = [], 0.0, physical
    for first in range(0, len(ids), together):
        last = min(first + together, len(ids))
        sums = torch.zeros(last - first, num_parameters, dtype=torch.float64, device=targets.device)
        for rows in order[int(starts[first]) : int(starts[last])].split(size):
            found, losses = gradients(filled(inputs[rows], size), filled(targets[rows], size))
            flat = torch.cat([part[: len(rows)].flatten(1) for part in found.values()], dim=1)
            sums.index_add_(0, member[rows] - first, flat.double())
            loss += float(losses[: len(rows)].nan_to_num(0.0, 0.0, 0.0).sum())
        sums /= (starts[first + 1 : last + 1] - starts[first:last]).unsqueeze(1)
        lengths = torch.linalg.vector_norm(sums, dim=1)
        add_rows(total, clip_factors(lengths, bound), without(sums, ~torch.isfinite(lengths)))
        norms.append(lengths)
    return ClippedSum(total, torch.cat(norms).cpu(), loss / len(targets))
