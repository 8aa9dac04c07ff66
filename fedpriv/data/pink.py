"""The pink map: features are whitened, in part, by what they are of coloured noise with a natural spectrum.

Amplitudes of natural pictures fall about as 1/frequency (Field 1987), and most of their variance is brightness, less
of it opponent colours (Ruderman, Cronin and Chiao 1998). Noise drawn by these two rules from a public seed stands for
pictures of the world. With mu and C the mean and covariance of its features, v_i and w_i the eigenvectors and
eigenvalues of C, the largest first, r = 0.2 tr(C)/d and an exponent p, the map onto k directions is

    z = unit(T'(x - mu)),   T = [v_1 (w_1 + r)^-p, ..., v_k (w_k + r)^-p].

p = 1/2 whitens entirely (up to the ridge), p = 1/4 half, p = 0 projects onto the leading directions alone.

Made once per machine, in some seconds, and kept with a checksum.

Shapes: n pictures, c channels, h x w pixels, d features, k dimensions of the map.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.axes import Floats
from fedpriv.data.directions import (
    MOST_DIRECTIONS,
    Directions,
    Doubles,
    FeatureMap,
    kept_directions,
    weighted,
    with_signs,
)
from fedpriv.data.draws import generator

PICTURES, RIDGE, SEED = 4000, 0.2, 0
#: Amplitudes fall as frequency^-FALL.
FALL = 1.2
#: Brightness, red against blue, green against both: orthonormal columns; and their standard deviations.
COLOURS = np.array([[1, 1, 1], [1, 0, -2], [1, -1, 1]]) / np.sqrt([3, 2, 6])
STRENGTHS = (1.0, 0.3, 0.15)
#: A picture's standard deviation, least and most; mean and standard deviation of the light added. Pixels: 0..1.
CONTRAST, LIGHT = (0.12, 0.3), (0.47, 0.1)

log = logging.getLogger(__name__)


def pink_map(directions: Directions, dims: int, exponent: float) -> FeatureMap:
    """The map onto the ``dims`` leading directions, at most as many as there are; exponent: p."""
    return weighted(directions, directions.values[:dims] ** -exponent)


def draw_noise(shape: tuple[int, int, int], pictures: int = PICTURES) -> NDArray[np.uint8]:
    """Pictures [n, c, h, w] of coloured noise; with one channel, of its brightness."""
    channels, height, width = shape
    random = generator(SEED, "pink noise")
    down, across = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    frequency = np.maximum(np.hypot(down, across), 1 / max(height, width))
    drawn = np.empty((pictures, *shape), np.uint8)
    for number in range(pictures):
        white = random.standard_normal((channels, height, width))
        noise = np.fft.ifft2(np.fft.fft2(white) * frequency**-FALL).real
        if channels == 3:
            noise = np.tensordot(COLOURS * STRENGTHS, noise, axes=1)
        contrast, light = random.uniform(*CONTRAST), random.normal(*LIGHT)
        drawn[number] = np.rint(255 * np.clip(light + contrast * noise / noise.std(), 0, 1))
    return drawn


def find_directions(features: Doubles) -> Directions:
    """Of the features [n, d] of noise; values: w + r."""
    mean = features.mean(0)
    centred = features - mean
    variances, vectors = np.linalg.eigh(centred.T @ centred / len(features))
    ridge = RIDGE * variances.mean()
    kept = min(len(variances), MOST_DIRECTIONS)
    values = np.maximum(variances[::-1][:kept], 0) + ridge
    return Directions(mean, with_signs(vectors[:, ::-1][:, :kept]), values)


def load_pink(
    compute: Callable[[NDArray[np.uint8]], Floats], shape: tuple[int, int, int], identity: dict[str, Any], cache: Path
) -> Directions:
    """From ``cache``, where they are made at first. identity: everything that decides what ``compute`` gives.

    Raises `DataError` where the cache cannot be written to.
    """

    def make() -> Directions:
        log.info("making the pink map of %d pictures of noise, once per machine", PICTURES)
        return find_directions(compute(draw_noise(shape)).astype(np.float64))

    numbers = [PICTURES, RIDGE, SEED, FALL, *STRENGTHS, *CONTRAST, *LIGHT]
    return kept_directions(cache / "pink_maps", {"pink map": numbers, "shape": list(shape), **identity}, make)
