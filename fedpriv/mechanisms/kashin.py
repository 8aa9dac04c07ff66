"""Kashin's representation: a unit vector by N > d coefficients none of which is large.

Y. Lyubarskii and R. Vershynin: Uncertainty principles and vector quantization. IEEE Transactions on Information Theory
2010.

A tight frame f_1..f_N of R^d, F F' = I with F [d, N] its vectors, gives u = F a for many a. The shortest, F'u, may have
a large coefficient; Kashin's has none beyond K/sqrt(N), K a constant. It is a point of both {a: F a = u} and the cube
of that side, found by projecting onto them in turn. The last projection is the one onto {F a = u}, so the sum is exact,
and it ends inside a slightly larger cube. K is 1.7, and 2 below 128 dimensions, where chance is unkind more often.

Frame: d random rows of the Hadamard matrix of N = 4 d or more, with random signs: f_i f_i' have equal lengths, and what
is random depends on a public key alone. A vector for which the key's frame were a bad one would have a coefficient that
whoever rounds it cuts off; privacy does not depend on it. Shapes: [..., d] and [..., N], float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedpriv.common.seeds import generator
from fedpriv.mechanisms.unit_projections import Key
from fedpriv.mechanisms.whole_numbers import hadamard, padded

_ROUNDS = 14


def level_of(dimension: int) -> float:
    """K."""
    return 1.7 if dimension >= 128 else 2.0


def frame_size(dimension: int) -> int:
    """N."""
    return padded(4 * dimension)


def _frame(key: Key, dimension: int) -> tuple[Tensor, Tensor]:
    """(rows of the Hadamard matrix int64 [d], their signs [d])."""
    rng = generator(*key, "frame")
    rows = torch.from_numpy(rng.choice(frame_size(dimension), dimension, replace=False, shuffle=False))
    return rows, torch.from_numpy(rng.integers(0, 2, dimension) * 2.0 - 1.0)


def _analysis(vectors: Tensor, rows: Tensor, signs: Tensor) -> Tensor:
    spread = torch.zeros((*vectors.shape[:-1], frame_size(vectors.shape[-1])), dtype=torch.float64)
    spread[..., rows] = vectors * signs
    return hadamard(spread)


def synthesis(coefficients: Tensor, key: Key, dimension: int) -> Tensor:
    """F a [..., d]."""
    rows, signs = _frame(key, dimension)
    return hadamard(coefficients)[..., rows] * signs


def kashin(vectors: Tensor, key: Key) -> Tensor:
    """a [..., N] of unit vectors u [..., d], with F a = u."""
    rows, signs = _frame(key, vectors.shape[-1])
    found = _analysis(vectors, rows, signs)
    most = (level_of(vectors.shape[-1]) - 0.1) / math.sqrt(found.shape[-1])
    for _ in range(_ROUNDS):
        cut = found.clamp(-most, most)
        found = cut + _analysis(vectors - hadamard(cut)[..., rows] * signs, rows, signs)
    return found
