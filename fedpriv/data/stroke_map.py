"""The stroke map: the directions of feature space in which random glyphs differ, and one glyph's writings do not.

As in discriminant analysis (Fisher 1936), with random glyphs for classes in place of anybody's data. With mu the mean,
Cw and Cb the covariance of features within and between glyphs, P = (Cw + 0.3 tr(Cw)/d I)^(-1/2), and U, b the k
leading eigenvectors and eigenvalues of P Cb P, the map is T = P U diag(b / (1 + b))^h: b / (1 + b) is the share of a
direction's variance that tells glyphs apart. A picture becomes z = unit(T'(x - mu)).

Made once per machine, in a few seconds, and kept with a checksum: a damaged file is made again.

Shapes: d features, k dimensions of the map.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.errors import DataError
from fedpriv.data.axes import Floats, unit
from fedpriv.data.cache import entry
from fedpriv.data.strokes import DEFORMATIONS, GLYPHS, draw_glyphs

RIDGE = 0.3
#: Directions that are kept.
MOST_DIRECTIONS = 599
FILE, SUM = "directions.npz", "sha256.json"

log = logging.getLogger(__name__)

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Directions:
    """mean: mu, float64 [d]; vectors: P U, float64 [d, up to 599]; values: b, float64, the largest first."""

    mean: Doubles
    vectors: Doubles
    values: Doubles


@dataclass(frozen=True)
class StrokeMap:
    """mean: float32 [d]; matrix: T, float32 [d, k]."""

    mean: Floats
    matrix: Floats

    def __call__(self, features: Floats) -> Floats:
        """z [n, k] of features [n, d]."""
        return unit(np.asarray((features - self.mean) @ self.matrix, np.float32))


def stroke_map(directions: Directions, dims: int, exponent: float) -> StrokeMap:
    """The map onto the ``dims`` leading directions, at most as many as there are."""
    values = directions.values[:dims]
    matrix = directions.vectors[:, :dims] * (values / (1 + values)) ** exponent
    return StrokeMap(directions.mean.astype(np.float32), matrix.astype(np.float32))


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
    # An eigenvector's sign is nobody's choice: the largest component is made positive.
    largest = vectors[np.abs(vectors).argmax(0), np.arange(kept)]
    return Directions(mean, whitening @ (vectors * np.sign(largest)), values)


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

    def write(folder: Path) -> None:
        log.info("making the stroke map of %d pictures, once per machine", GLYPHS * DEFORMATIONS)
        made = make_directions(compute, shape)
        np.savez(folder / FILE, mean=made.mean, vectors=made.vectors, values=made.values)
        digest = hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
        (folder / SUM).write_text(json.dumps({"sha256": digest}))

    identity = {"stroke map": [GLYPHS, DEFORMATIONS, RIDGE], "shape": list(shape), **identity}
    for _ in range(2):
        found = entry(cache / "stroke_maps", identity, write)
        directions = _read(found)
        if directions is not None:
            return directions
        log.warning("%s is damaged and is made again", found)
        shutil.rmtree(found, ignore_errors=True)
    raise DataError(f"{cache / 'stroke_maps'}: the stroke map is damaged as soon as it is written")


def _read(folder: Path) -> Directions | None:
    """None where the file is not the one that was written."""
    try:
        digest = hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
        if json.loads((folder / SUM).read_text())["sha256"] != digest:
            return None
        with np.load(folder / FILE, allow_pickle=False) as arrays:
            return Directions(arrays["mean"], arrays["vectors"], arrays["values"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
