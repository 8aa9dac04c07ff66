"""Selection of a vector's coordinates by rank. Shapes: values [..., d]; leading dimensions are independent trials."""

from __future__ import annotations

from torch import Tensor


def top_count(share: float, dimension: int) -> int:
    """The number of coordinates in the top ``share`` in (0, 1]: at least one."""
    return min(dimension, max(1, round(share * dimension)))


def kth_smallest(values: Tensor, rank: int) -> Tensor:
    """lambda [...]: the ``rank``-th smallest coordinate, counted from 1. Raises ValueError for a rank outside 1..d."""
    dimension = values.shape[-1]
    if not 1 <= rank <= dimension:
        raise ValueError(f"rank {rank}: must be from 1 to {dimension}")
    return values.kthvalue(rank, dim=-1).values


def kth_largest(values: Tensor, rank: int) -> Tensor:
    """The ``rank``-th largest coordinate [...], counted from 1."""
    return kth_smallest(values, values.shape[-1] - rank + 1)


def largest(scores: Tensor, count: int) -> Tensor:
    """bool [..., d]: the ``count`` largest scores of each vector. Raises ValueError for a count outside 1..d."""
    chosen = scores >= kth_largest(scores, count).unsqueeze(-1)
    if int(chosen.sum()) == count * chosen[..., 0].numel():
        return chosen
    chosen.fill_(False)  # with ties at the threshold, any count of them
    return chosen.scatter_(-1, scores.topk(count, dim=-1, sorted=False).indices, True)
