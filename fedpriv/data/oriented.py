"""Oriented gradients: where a picture's edges are, and which way they turn from dark to light.

Shapes: n pictures, c channels, h x w pixels, cells_h x cells_w cells of a coarse grid.

Every step along an axis is a product with a constant matrix: blur, difference and pooling are linear. The scale goes
with the picture: a picture of twice the size has the same grid, with twice the blur.
"""

from __future__ import annotations

import math

import numpy as np

from fedpriv.data.axes import (
    TINY,
    Floats,
    cells_of,
    difference_matrix,
    gaussian_matrix,
    mean_matrix,
    on_both_axes,
    pooling_matrix,
    unit,
)

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
