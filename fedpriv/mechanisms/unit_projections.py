"""Public random projections of vectors, from a key that client and server share: they hide nothing.

Shapes: d coordinates, k projections. Vectors are float64 [..., d].
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.seeds import generator

#: What addresses a projection: seed, client, round.
Key = tuple[int | str, ...]


def gaussian_rows(key: Key, count: int, dimension: int) -> Iterator[Tensor]:
    """The rows of A, independent standard normals (float64 [d]), one at a time: A would be large."""
    rng = generator(*key, "projection")
    for _ in range(count):
        yield torch.from_numpy(rng.standard_normal(dimension, dtype=np.float32)).double()


def project(vectors: Tensor, key: Key, count: int) -> Tensor:
    """A x [..., k]."""
    dimension = vectors.shape[-1]
    return torch.stack([vectors @ row for row in gaussian_rows(key, count, dimension)], dim=-1)


def project_back(numbers: Tensor, key: Key, dimension: int) -> Tensor:
    """A^T y [..., d]."""
    total = torch.zeros((*numbers.shape[:-1], dimension), dtype=torch.float64)
    for index, row in enumerate(gaussian_rows(key, numbers.shape[-1], dimension)):
        total.addcmul_(numbers[..., index : index + 1].double(), row)
    return total


def mean_length(count: int) -> float:
    """E|A u| of a unit vector u: the mean of a chi variable with k degrees of freedom."""
    return math.sqrt(2) * math.exp(math.lgamma((count + 1) / 2) - math.lgamma(count / 2))


def drawn_places(key: Key, count: int, size: int) -> NDArray[np.int64]:
    """``count`` different places among 0..size-1 [count]."""
    return generator(*key, "places").choice(size, count, replace=False, shuffle=False)
