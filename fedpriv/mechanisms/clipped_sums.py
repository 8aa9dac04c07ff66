"""Clipped sums: how much longer one gradient may be, and a person's rows averaged before they are clipped.

The proof of how far one example moves a sum is in `fedpriv.mechanisms.per_example`. Its symbols are used here.

**How much one person moves the sum.** Neighbours: a data set with and without one person, that is with and without all
rows of one unit at one site (of a person with rows at several: `fedpriv.privacy.sum_grid`). Each site's Poisson sample
draws persons, each with all of its rows or none; their number at a site is public, their numbers of rows are not used.
Person k with rows r = 1..m has the exact vector c_k = (1/m) sum_r v_r of the float32 gradients v_r as they are (of a
Linear layer: v_r = g_r x_r^T). A row's bits depend on its own example alone (there: 4), so c_k is a function
of this person's rows and of theta: who else is in the data changes it by nothing. Its mass is A_k = (1/m) sum_r |v_r|.

The float64 sum of the rows, in any order and by any kernel, is c'_k with |c'_k - c_k| <= gamma(m + 4) A_k. Measured is

    L^2 = |c'_k|^2 + (s A_k)^2,   s = gamma(m + 8) / (DRIFT / 4),

and c'_k enters with weight w' = min(1, B/L), B = bound (1 - KEPT_BACK). Let w be the weight by exact c_k and A_k. With
e = |c'_k - c_k|, |w' - w| |c_k| <= e w', since |L' - L| <= e and |c_k| <= L; so |w' c'_k - w c_k| <= 2 w' e, and
w' e <= (B/L) gamma A_k <= B DRIFT / 4. Over n persons these errors and that of the float64 sum over persons,
gamma(n) sum_k w_k |c_k| <= n 2^-33 B, stay below n (DRIFT + 2^-33) B: the err(D) of an example, with persons in the
place of examples. And |w_k c_k| <= B whatever the rows are, and however many. So one person moves the computed sum by
less than (1 - 2^-12) bound up to `LARGEST_BATCH` persons, and by `excess` more beyond: twice the rows of a person, or a
thousand huge ones, change nothing of that. A person with a row whose gradient is not finite has no finite L, and
contributes nothing. A GPU's sums in changing order are covered: the proof does not ask for equal bits of c'_k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.bookkeeping import DRIFT, ROUNDOFF, add_rows, filled, without
from fedpriv.mechanisms.noise import clip_factors

#: The largest batch whose rounding error fits into `KEPT_BACK`.
LARGEST_BATCH = 2**16

#: Numbers that a physical batch may hold besides the model (256 MiB), and on a GPU (4 GiB).
PHYSICAL_NUMBERS = 2**26
NUMBERS_ON_GPU = 2**30

#: The most examples that a GPU computes at a time.
BLOCK_ON_GPU = 512


#: Numbers that `computes_apart` computes.
LOOKS = 2**25


def block_on_gpu(expected: int) -> int:
    """Rows of a block for batches of a public expected size on a GPU, where one block costs hardly more than half of
    one: most Poisson batches fit into one.
    """
    return min(BLOCK_ON_GPU, -(-(expected + 2 * math.isqrt(expected)) // 16) * 16)


def made_up(*shape: int, vocabulary: int | None, random: torch.Generator) -> Tensor:
    """Random examples: numbers, or token ids, the last of which are padding where there is room for it."""
    if vocabulary is None:
        return torch.randn(*shape, generator=random)
    ids = torch.randint(min(1, vocabulary - 1), vocabulary, shape, generator=random)
    ids[..., (3 * shape[-1] + 3) // 4 :] = 0
    return ids


def excess(examples: int) -> float:
    """Bound on how far beyond the clip bound one example moves a clipped sum over subsets of ``examples`` examples, in
    units of the clip bound: 0 up to `LARGEST_BATCH`.
    """
    return 2 * max(0, examples - LARGEST_BATCH) * (DRIFT + 2.0**-33)


def computes_apart(
    draw: Callable[[], tuple[Tensor, Tensor]],
    parts: Callable[[Tensor, Tensor], Sequence[Tensor]],
    total: Callable[[Tensor, Tensor], Tensor],
    numbers: int,
) -> bool:
    """Whether no row's bits depend on its place in a block, on the other rows, or on how many there are.

    Args:
        draw: made-up examples and targets, one more than a block has rows.
        parts: what a block computes, tensors [block, ...], of which each row is of one example: the same in any other
            place of the block, beside others and beside equal ones.
        total: the sum [d] of gradients clipped to 1, as a run computes it, over any number of examples: over all that
            were drawn it is the sum over all but the first, which then have another place, and over the first alone.
        numbers: that a block computes: how often it is looked at follows, 2 to 8 times.
    """
    exactly = partial(torch.allclose, rtol=0.0, atol=0.0, equal_nan=True)
    for _ in range(min(8, max(2, LOOKS // numbers))):
        inputs, targets = draw()
        rows, of = inputs[1:], targets[1:]
        found, moved = parts(rows, of), parts(rows.roll(1, 0), of.roll(1, 0))
        equal = parts(rows[:1].expand_as(rows).contiguous(), of[:1].expand_as(of).contiguous())
        for own, turned, same in zip(found, moved, equal, strict=True):
            if not exactly(turned.roll(-1, 0), own) or not exactly(same, own[:1].expand_as(own)):
                return False
    apart = total(inputs, targets) - total(rows, of) - total(inputs[:1], targets[:1])
    return float(torch.linalg.vector_norm(apart)) <= len(targets) * 2.0**-47


def not_apart(what: str, device: torch.device) -> OptionError:
    words = f"on {device} one row's gradient depends on which others there are; allowed: another model, or device"
    return OptionError("model", what, words)


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
    ``unit`` (int64 [b]) are of one person. norms: of the persons, in the order of their numbers. Any model's gradients
    are formed, row by row.
    """
    members = Members.of(unit)
    together = max(1, PHYSICAL_NUMBERS // max(1, 4 * num_parameters))
    total = torch.zeros(num_parameters, dtype=torch.float64, device=targets.device)
    norms, loss, size = [], 0.0, physical
    for first in range(0, len(members.counts), together):
        last = min(first + together, len(members.counts))
        means = torch.zeros(last - first, num_parameters, dtype=torch.float64, device=targets.device)
        mass = torch.zeros(last - first, dtype=torch.float64, device=targets.device)
        for rows in members.order[int(members.starts[first]) : int(members.starts[last])].split(size):
            found, losses = gradients(filled(inputs[rows], size), filled(targets[rows], size))
            flat = torch.cat([part[: len(rows)].flatten(1) for part in found.values()], dim=1).double()
            own = members.member[rows] - first
            means.index_add_(0, own, flat)
            mass.index_add_(0, own, torch.linalg.vector_norm(flat, dim=1))
            loss += float(losses[: len(rows)].nan_to_num(0.0, 0.0, 0.0).sum())
        counts = members.counts[first:last]
        means /= counts.unsqueeze(1)
        lengths = measured(torch.linalg.vector_norm(means, dim=1), mass / counts, counts)
        add_rows(total, clip_factors(lengths, bound), without(means, ~torch.isfinite(lengths)))
        norms.append(lengths)
    return ClippedSum(total, torch.cat(norms).cpu(), loss / len(targets))


def measured(lengths: Tensor, mass: Tensor, rows: Tensor) -> Tensor:
    """L (float64 [k]) of persons' means with computed lengths |c'| and mass A [k], of so many rows each (int64 [k])."""
    slack = (rows.double() + 8) * ROUNDOFF / (1 - (rows.double() + 8) * ROUNDOFF) / (DRIFT / 4)
    return torch.sqrt(lengths.square() + (slack * mass).square())


@dataclass(frozen=True)
class Members:
    """Rows by person. member: int64 [b], persons numbered from 0; order: rows, person after person; starts: int64
    [persons + 1], where each person's rows begin in it; counts: of rows [persons].
    """

    member: Tensor
    order: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, unit: Tensor) -> Members:
        ids, member = torch.unique(unit, return_inverse=True)
        order = torch.argsort(member, stable=True)
        starts = torch.searchsorted(member[order].contiguous(), torch.arange(len(ids) + 1, device=unit.device))
        return cls(member, order, starts, starts.diff())

    def alike(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(persons [k], their rows [k, m] and -1 where there are fewer), m a power of two: of like numbers of rows."""
        widths = 2 ** torch.ceil(torch.log2(self.counts.double())).long()
        for width in widths.unique().tolist():
            persons = torch.nonzero(widths == width)[:, 0]
            places = torch.arange(width, device=persons.device)
            there = places < self.counts[persons].unsqueeze(1)
            rows = self.order[(self.starts[persons].unsqueeze(1) + places).clamp(max=len(self.order) - 1)]
            yield persons, rows.masked_fill(~there, -1)
