"""Public random projections of vectors, from a key that client and server share: they hide nothing.

Shapes: d coordinates, k projections, d' the smallest power of two that is at least d. Vectors are float64 [..., d].
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.seeds import generator
from fedpriv.mechanisms.whole_numbers import padded, rotate, rotate_back

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


def hadamard_rows(key: Key, count: int, dimension: int) -> tuple[Tensor, NDArray[np.int64]]:
    """(signs [d'], rows [k]) of A = S H D: H the orthonormal Hadamard matrix, S takes k of its rows."""
    rng = generator(*key, "projection")
    size = padded(dimension)
    signs = torch.from_numpy((2 * rng.integers(0, 2, size, dtype=np.int8) - 1).astype(np.float64))
    return signs, rng.choice(size, count, replace=False, shuffle=False)


def project_fast(vectors: Tensor, key: Key, count: int) -> Tensor:
    """S H D x [..., k]."""
    signs, rows = hadamard_rows(key, count, vectors.shape[-1])
    return rotate(vectors, signs)[..., rows]


def project_fast_back(numbers: Tensor, key: Key, dimension: int) -> Tensor:
    """D H S^T y [..., d]."""
    signs, rows = hadamard_rows(key, numbers.shape[-1], dimension)
    spread = torch.zeros((*numbers.shape[:-1], len(signs)), dtype=torch.float64)
    spread[..., rows] = numbers.double()
    return rotate_back(spread, signs, dimension)
