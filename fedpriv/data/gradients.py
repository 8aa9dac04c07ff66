"""Oriented gradients: where a picture's edges are, and which way they turn from dark to light.

Shapes: n pictures, c channels, h x w pixels, cells_h x cells_w cells of a coarse grid.

Every step along an axis is a product with a constant matrix: blur, difference and pooling are linear. The scale goes
with the picture: a picture of twice the size has the same grid, with twice the blur. Products give every row the same
bits wherever it stands.

Moment normalisation: each picture is set upright and scaled by the moments of its own ink (Casey 1970).

A picture's ink is its brightness, in colour the mean of its channels. With (y, x) the middle of the ink, s_yy, s_xx and
s_xy its variances and covariance,

1. rows are moved sideways until the covariance is 0: column x is read at x + (s_xy / s_yy) (y - middle);
2. along both axes the middle goes to the picture's middle, and the standard deviation s half of the way, on a
   logarithmic scale, to a fixed share of the picture's side: position t is read at middle + (t - centre) sqrt(s / s*).

Both read between pixels linearly, and beyond the edge nothing. The rule knows one picture at a time and no others; a
picture without ink stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ORIENTATIONS = 12
#: Standard deviations in pixels at a stride of 4, which pictures of 24 to 45 pixels a side have.
BLUR, POOLING, STRIDE = 0.7, 2.0, 4
#: Cells a side that the stride aims at: 28 and 32 pixels give 7 and 8 cells.
CELLS = 7.5
#: Mean colours a side, and how much coarse gradients and colours weigh beside fine gradients of length one.
COLOUR_GRID = 4
COARSE_WEIGHT, COLOUR_WEIGHT = np.float32(0.5), np.float32(0.2)


def stride_of(side: int) -> int:
    """Pixels from one cell to the next: the power of two, at least 2, that comes nearest to 7.5 cells a side."""
    return max(2, 2 ** round(math.log2(side / CELLS)))


def steepest(images: Floats, sigma: float) -> tuple[Floats, Floats, Floats]:
    """(magnitude, horizontal and vertical part of the unit gradient) [n, h, w], of the channel with the steepest
    gradient at each pixel; images [n, c, h, w].
    """
    height, width = images.shape[2:]
    across = on_both_axes(gaussian_matrix(height, sigma), images, difference_matrix(width, sigma))
    along = on_both_axes(difference_matrix(height, sigma), images, gaussian_matrix(width, sigma))
    magnitude: Floats = np.sqrt(across * across + along * along)
    best = magnitude.argmax(1)[:, None]
    across, along, magnitude = (np.take_along_axis(part, best, 1)[:, 0] for part in (across, along, magnitude))
    across /= magnitude + TINY
    along /= magnitude + TINY
    return magnitude, across, along


def oriented_energies(images: Floats, stride: int, orientations: int = ORIENTATIONS) -> Floats:
    """Energies magnitude * max(0, cos)^4 towards each signed orientation, pooled: [n, orientations, cells_h, cells_w]
    of pictures in 0..1 [n, c, h, w].
    """
    scale = stride / STRIDE
    magnitude, across, along = steepest(images, BLUR * scale)
    rows = pooling_matrix(images.shape[2], stride, POOLING * scale)
    columns = pooling_matrix(images.shape[3], stride, POOLING * scale)
    found = np.empty((len(images), orientations, len(rows), len(columns)), np.float32)
    for number, angle in enumerate(2 * math.pi * np.arange(orientations) / orientations):
        cosine = across * np.float32(math.cos(angle))
        cosine += along * np.float32(math.sin(angle))
        np.maximum(cosine, 0, out=cosine)
        cosine *= cosine
        cosine *= cosine
        cosine *= magnitude
        found[:, number] = on_both_axes(rows, cosine, columns)
    return found


def dims_of(channels: int, height: int, width: int) -> int:
    """Numbers of one picture that `oriented_gradients` gives."""
    stride = stride_of(min(height, width))
    fine = ORIENTATIONS * cells_of(height, stride) * cells_of(width, stride)
    if channels == 1:
        return fine
    coarse = ORIENTATIONS * cells_of(height, 2 * stride) * cells_of(width, 2 * stride)
    return fine + coarse + channels * COLOUR_GRID**2


def oriented_gradients(images: Floats) -> Floats:
    """Square roots of `oriented_energies` at unit length [n, dims], of pictures in 0..1 [n, c, h, w].

    In colour, beside them: the same on a grid of half as many cells, and mean colours on a 4 x 4 grid.
    """
    count, channels, height, width = images.shape
    stride = stride_of(min(height, width))
    fine = unit(np.sqrt(oriented_energies(images, stride)).reshape(count, -1))
    if channels == 1:
        return fine
    coarse = unit(np.sqrt(oriented_energies(images, 2 * stride)).reshape(count, -1))
    colours = on_both_axes(mean_matrix(height, COLOUR_GRID), images - np.float32(0.5), mean_matrix(width, COLOUR_GRID))
    parts = [fine, COARSE_WEIGHT * coarse, COLOUR_WEIGHT * colours.reshape(count, -1)]
    return np.concatenate(parts, axis=1)


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


#: s* as shares of the height and of the width; of 28 pixels these are 5.5 and 4.
TALL, WIDE = 5.5 / 28, 4.0 / 28
#: Most columns that a row is moved for each row, and how far a picture is made smaller or larger at most.
STEEPEST, MOST = 1.0, 2.0
#: Added to standard deviations, in shares of the side: a dot is not made infinitely large.
LEAST = 0.3 / 28
_NOTHING = 1e-6


def normalised(images: Floats) -> Floats:
    """Pictures [n, c, h, w] in 0..1 set upright and scaled."""
    height, width = images.shape[2:]
    upright = sheared(images)
    (down, across), (tall, wide), _ = moments(upright)
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    scaled = upright
    for axis, places, middle, deviation, wanted in (
        (2, rows, down, tall, TALL),
        (3, columns, across, wide, WIDE),
    ):
        side = len(places)
        factor = np.sqrt((deviation + LEAST * side) / (wanted * side)).clip(1 / MOST, MOST)
        centre = (side - 1) / 2
        scaled = read_at(scaled, middle[:, None] + (places - centre) * factor[:, None], axis)
    return with_ink(images, scaled)


def sheared(images: Floats) -> Floats:
    """Pictures whose ink is upright: the covariance of its rows and columns is about 0."""
    height, width = images.shape[2:]
    (down, _), (tall, _), covariance = moments(images)
    slope = (covariance / np.maximum(tall**2, _NOTHING)).clip(-STEEPEST, STEEPEST)
    away = np.arange(height, dtype=np.float32) - down[:, None]
    places = np.arange(width, dtype=np.float32) + (slope[:, None] * away)[:, :, None]
    return with_ink(images, read_at(images, places, 3))


def moments(images: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats], Floats]:
    """((middle's row, its column), their standard deviations, covariance) [n] each, in pixels."""
    ink = images.mean(1)
    height, width = ink.shape[1:]
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    by_row, by_column = ink.sum(2), ink.sum(1)
    total = np.maximum(by_row.sum(1), np.float32(_NOTHING))
    down, across = (by_row * rows).sum(1) / total, (by_column * columns).sum(1) / total
    below, beside = rows - down[:, None], columns - across[:, None]
    tall = np.sqrt((by_row * below**2).sum(1) / total)
    wide = np.sqrt((by_column * beside**2).sum(1) / total)
    covariance = ((ink * beside[:, None, :]).sum(2) * below).sum(1) / total
    return (down, across), (tall, wide), covariance


def read_at(images: Floats, places: Floats, axis: int) -> Floats:
    """Values between pixels along an axis (2: rows, 3: columns), linearly, 0 outside.

    places: float [n, h'] of rows, or [n, w'] or [n, h, w'] of columns, in pixels.
    """
    side = images.shape[axis]
    shape = (
        (len(images), 1, -1, 1)
        if axis == 2
        else (len(images), 1, *([1] if places.ndim == 2 else []), *places.shape[1:])
    )
    places = places.reshape(shape)
    first = np.floor(places)
    share = (places - first).astype(np.float32)
    found = np.zeros((), np.float32)
    for offset, weight in ((0, 1 - share), (1, share)):
        index = (first + offset).astype(np.int64)
        weight = weight * ((index >= 0) & (index < side))
        whole = list(images.shape)
        whole[axis] = index.shape[axis]
        found = found + weight * np.take_along_axis(images, np.broadcast_to(index.clip(0, side - 1), whole), axis)
    result: Floats = np.asarray(found, np.float32)
    return result


def with_ink(images: Floats, changed: Floats) -> Floats:
    """The changed pictures, but those that are all black as they are."""
    dark: NDArray[np.bool_] = images.reshape(len(images), -1).max(1) <= 0
    found: Floats = np.where(dark[:, None, None, None], images, changed)
    return found
