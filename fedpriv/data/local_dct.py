"""Local cosine transforms: what textures a picture has where, in the frequencies that pictures of the world have.

Every patch is written in the low frequencies of its discrete cosine transform (Ahmed, Natarajan and Rao 1974); each
coefficient is scaled by its frequency, because the amplitudes of natural pictures fall as 1/frequency (Field 1987),
and divided by the patch's contrast. Positive and negative parts are pooled apart over a coarse grid.

Shapes: n pictures, c channels, h x w pixels, f filters.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedpriv.data.axes import Floats, mean_matrix, on_both_axes, unit

#: Side of a patch, and cells of the grid in each direction.
PATCH, GRID = 6, 4
#: Coefficients of a patch: of brightness (all but its mean), and of each of two opponent colours.
BRIGHTNESS, COLOUR = 24, 6
#: Squared contrast (of pixels in 0..1, summed over a patch) below which a patch counts as flat.
FLAT = 0.1
#: Brightness, red against green, yellow against blue: orthonormal.
OPPONENT = np.array([[1, 1, 1], [1, -1, 0], [1, 1, -2]]) / np.sqrt([[3], [2], [6]])


def dims_of(channels: int) -> int:
    """Numbers of one picture."""
    return 2 * GRID**2 * len(_filters(channels))


@lru_cache(maxsize=4)
def _filters(channels: int) -> Floats:
    """[f, c * PATCH * PATCH], of pictures in opponent colours."""
    index = np.arange(PATCH)
    basis = np.sqrt(2 / PATCH) * np.cos(math.pi * (index + 0.5) * index[:, None] / PATCH)
    basis[0] /= math.sqrt(2)
    order = sorted((math.hypot(u, v), u, v) for u in range(PATCH) for v in range(PATCH))
    found = []
    for channel in range(channels):
        chosen = order[1 : BRIGHTNESS + 1] if channel == 0 else order[:COLOUR]
        for frequency, u, v in chosen:
            one = np.zeros((channels, PATCH, PATCH))
            one[channel] = np.outer(basis[u], basis[v]) * max(frequency, 0.7)  # the mean has no frequency
            found.append(one.ravel())
    return np.array(found, np.float32)


def local_dct(images: Floats) -> Floats:
    """Square roots of the pooled parts, at unit length [n, 2 * f * GRID * GRID], of pictures in 0..1 [n, c, h, w]."""
    count, channels = images.shape[:2]
    if channels == 3:
        images = (OPPONENT.astype(np.float32) @ images.reshape(count, 3, -1)).reshape(images.shape)
    filters = _filters(channels)
    windows = np.lib.stride_tricks.sliding_window_view(images, (PATCH, PATCH), axis=(2, 3))
    rows, columns = windows.shape[2:4]
    shares = mean_matrix(rows, GRID), mean_matrix(columns, GRID)
    found = np.empty((count, 2 * len(filters), GRID, GRID), np.float32)
    for number in range(count):  # one picture's patches at a time: they are 36 times as many numbers
        patches = windows[number].transpose(0, 3, 4, 1, 2).reshape(channels * PATCH**2, rows * columns)
        by_channel = patches.reshape(channels, PATCH**2, -1)
        contrast = ((by_channel - by_channel.mean(1, keepdims=True)) ** 2).sum((0, 1))
        coefficients = (filters @ patches / np.sqrt(contrast + np.float32(FLAT))).reshape(-1, rows, columns)
        parts = np.concatenate([np.maximum(coefficients, 0), np.maximum(-coefficients, 0)])
        found[number] = on_both_axes(shares[0], parts, shares[1])
    return unit(np.sqrt(found).reshape(count, -1))
