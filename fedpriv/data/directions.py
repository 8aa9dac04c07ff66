"""Directions of feature space that a map projects onto: made once per machine, kept with a checksum, and made again
where the file is damaged.

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
from fedpriv.data.axes import Floats, row_products, unit
from fedpriv.data.cache import entry

#: Directions that are kept.
MOST_DIRECTIONS = 599
FILE, SUM = "directions.npz", "sha256.json"

log = logging.getLogger(__name__)

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Directions:
    """mean: mu, float64 [d]; vectors: float64 [d, up to 599]; values: one of each vector, the largest first."""

    mean: Doubles
    vectors: Doubles
    values: Doubles


@dataclass(frozen=True)
class FeatureMap:
    """mean: mu, float32 [d]; matrix: T, float32 [d, k]."""

    mean: Floats
    matrix: Floats

    def __call__(self, features: Floats) -> Floats:
        """z = unit(T'(x - mu)) [n, k] of features x [n, d]."""
        return unit(row_products(features - self.mean, self.matrix))


def weighted(directions: Directions, weights: Doubles) -> FeatureMap:
    """The map onto the leading directions, each times its weight [k]."""
    matrix = directions.vectors[:, : len(weights)] * weights
    return FeatureMap(directions.mean.astype(np.float32), matrix.astype(np.float32))


def with_signs(vectors: Doubles) -> Doubles:
    """Eigenvectors [d, k] whose sign is nobody's choice: the largest component of each is made positive."""
    largest = vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])]
    signed: Doubles = vectors * np.sign(largest)
    return signed


def kept_directions(folder: Path, identity: dict[str, Any], make: Callable[[], Directions]) -> Directions:
    """From ``folder``, where they are made at first. identity: everything that decides what ``make`` gives.

    Raises `DataError` where the folder cannot be written to.
    """

    def write(fresh: Path) -> None:
        made = make()
        np.savez(fresh / FILE, mean=made.mean, vectors=made.vectors, values=made.values)
        digest = hashlib.sha256((fresh / FILE).read_bytes()).hexdigest()
        (fresh / SUM).write_text(json.dumps({"sha256": digest}))

    for _ in range(2):
        found = entry(folder, identity, write)
        directions = _read(found)
        if directions is not None:
            return directions
        log.warning("%s is damaged and is made again", found)
        shutil.rmtree(found, ignore_errors=True)
    raise DataError(f"{folder}: a map is damaged as soon as it is written")


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
