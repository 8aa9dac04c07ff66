"""The stroke map: the directions of feature space in which random glyphs differ, and one glyph's writings do not.

As in discriminant analysis (Fisher 1936), with random glyphs for classes in place of anybody's data. With mu the mean,
Cw and Cb the covariance of features within and between glyphs, P = (Cw + 0.3 tr(Cw)/d I)^(-1/2), and U, b the k
leading eigenvectors and eigenvalues of P Cb P, the map is T = P U diag(b / (1 + b))^h: b / (1 + b) is the share of a
direction's variance that tells glyphs apart. A picture becomes z = unit(T'(x - mu)).

Made once per machine, in a few seconds, and kept with a checksum: a damaged file is made again.

Shapes: d features, k dimensions of the map.
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
from fedpriv.data.strokes import DEFORMATIONS, GLYPHS, draw_glyphs

RIDGE = 0.3

log = logging.getLogger(__name__)


def stroke_map(directions: Directions, dims: int, exponent: float) -> FeatureMap:
    """The map onto the ``dims`` leading directions, at most as many as there are."""
    values = directions.values[:dims]
    return weighted(directions, (values / (1 + values)) ** exponent)


def find_directions(features: Doubles, glyphs: int) -> Directions:
    """Of the features [glyphs * writings, d], glyph after glyph."""
    mean = features.mean(0)
    centred = (features - mean).reshape(glyphs, -1, features.shape[1])
    means = centred.mean(1)
    within_glyphs = (centred - means[:, None]).reshape(-1, features.shape[1])
    within = within_glyphs.T @ within_glyphs / len(within_glyphs)
    between = means.T @ means / glyphs
    ridge = RIDGE * np.trace(within) / len(within)
    variances, axes = np.linalg.eigh(within)
    whitening = (axes / np.sqrt(np.maximum(variances, 0) + ridge)) @ axes.T
    values, vectors = np.linalg.eigh(whitening @ between @ whitening)
    kept = min(len(values), glyphs - 1, MOST_DIRECTIONS)
    values, vectors = np.maximum(values[::-1][:kept], 0), vectors[:, ::-1][:, :kept]
    return Directions(mean, whitening @ with_signs(vectors), values)


def make_directions(compute: Callable[[NDArray[np.uint8]], Floats], shape: tuple[int, int, int]) -> Directions:
    """From the features of procedural glyphs, in grey in every channel; compute: of uint8 [n, c, h, w], any n."""
    pictures = np.repeat(draw_glyphs(*shape[1:]), shape[0], axis=1)
    return find_directions(compute(pictures).astype(np.float64), GLYPHS)


def load_directions(
    compute: Callable[[NDArray[np.uint8]], Floats], shape: tuple[int, int, int], identity: dict[str, Any], cache: Path
) -> Directions:
    """From ``cache``, where they are made at first. identity: everything that decides what ``compute`` gives.

    Raises `DataError` where the cache cannot be written to.
    """

    def make() -> Directions:
        log.info("making the stroke map of %d pictures, once per machine", GLYPHS * DEFORMATIONS)
        return make_directions(compute, shape)

    identity = {"stroke map": [GLYPHS, DEFORMATIONS, RIDGE], "shape": list(shape), **identity}
    return kept_directions(cache / "stroke_maps", identity, make)
