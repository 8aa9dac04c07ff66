"""Linear steps along one axis of a picture, as matrices: blur, difference, means, pooling. Unit length, and products
of which every row is the same bits wherever it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
TINY = np.float32(1e-12)


def unit(vectors: Floats) -> Floats:
    """Rows [n, d] at unit length; a row of zeros stays zeros."""
    scaled: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), TINY)
    return scaled


def row_products(rows: Floats, matrix: Floats) -> Floats:
    """rows [n, d] times matrix [d, k]: the same bits for a row whichever rows stand beside it, and where.

    A matrix product may add one row's terms in another order than the next row's, and on some processors it does. There
    rows are multiplied one by one, which takes longer.
    """
    together = alike_everywhere(len(rows), *matrix.shape)
    return rows @ matrix if together else np.matmul(rows[:, None], matrix)[:, 0]


@lru_cache(maxsize=32)
def alike_everywhere(
    count: int, length: int, width: int, product: Callable[[Floats, Floats], Floats] = np.matmul
) -> bool:
    """Whether this machine's product of matrices [count, length] and [length, width] gives a row the same bits at
    every place.
    """
    random = np.random.default_rng(0)
    rows = random.standard_normal((count, length), np.float32)
    matrix = random.standard_normal((length, width), np.float32)
    found = product(rows, matrix)
    moved = (product(np.roll(rows, step, 0), matrix) for step in range(1, count))
    return all(np.array_equal(there, np.roll(found, step, 0)) for step, there in enumerate(moved, 1))


def cells_of(length: int, stride: int) -> int:
    """Cells along an axis of ``length`` pixels."""
    return length // stride


def on_both_axes(rows: Floats, images: Floats, columns: Floats) -> Floats:
    """One matrix along the rows' axis and one along the columns' [..., h', w'] of images [..., h, w]."""
    return np.asarray(rows @ images @ columns.T, np.float32)


@lru_cache(maxsize=32)
def gaussian_matrix(length: int, sigma: float) -> Floats:
    """Blurs along an axis [length, length]; beyond the edge a picture goes on as its last pixel."""
    radius = max(1, math.ceil(4 * sigma))
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    matrix = np.zeros((length, length))
    for offset, weight in zip(offsets, weights / weights.sum(), strict=True):
        source = np.clip(np.arange(length) + offset, 0, length - 1)
        np.add.at(matrix, (np.arange(length), source), weight)
    return matrix.astype(np.float32)


@lru_cache(maxsize=32)
def difference_matrix(length: int, sigma: float) -> Floats:
    """Central differences (x[i + 1] - x[i - 1]) / 2 of what `gaussian_matrix` gives [length, length]."""
    blurred, after = gaussian_matrix(length, sigma), np.arange(length)
    up, down = np.minimum(after + 1, length - 1), np.maximum(after - 1, 0)
    halves: Floats = (blurred[up] - blurred[down]) / np.float32(2)
    return halves


@lru_cache(maxsize=32)
def mean_matrix(length: int, cells: int) -> Floats:
    """Means over ``cells`` equal stretches of an axis [cells, length]; a pixel on an edge counts for both in part."""
    edges = np.arange(cells + 1) * length / cells
    pixel = np.arange(length)
    shared = np.minimum(pixel + 1, edges[1:, None]) - np.maximum(pixel, edges[:-1, None])
    return (np.maximum(shared, 0) * cells / length).astype(np.float32)


@lru_cache(maxsize=32)
def pooling_matrix(length: int, stride: int, sigma: float) -> Floats:
    """Gaussian means around the middles of the cells [cells, length]."""
    cells = cells_of(length, stride)
    middles = (length - stride * cells) / 2 + stride * (np.arange(cells) + 0.5) - 0.5
    weights = np.exp(-0.5 * ((np.arange(length) - middles[:, None]) / sigma) ** 2)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
