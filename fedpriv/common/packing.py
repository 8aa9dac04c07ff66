"""Wire format of releases that hold only some of the coordinates.

Shapes: d coordinates, k of them sent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.messages import FloatVector


def pack_selected(values: FloatVector, mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The selected values with their positions: the indices (int32 [k]) or a bitmap [d/8], whichever is shorter, then
    the values (float32 [k]). Which of the two it is follows from k and d.
    """
    indices = np.flatnonzero(mask)
    places = np.packbits(mask) if _as_bitmap(len(indices), mask.size) else indices.astype("<i4").view(np.uint8)
    return np.concatenate([places, values[indices].astype("<f4").view(np.uint8)])


def unpack_selected(packed: NDArray[np.uint8], dimension: int, count: int) -> FloatVector:
    """float32 [d], zero where nothing was sent. Raises ValueError for what `pack_selected` cannot have made."""
    if packed.dtype != np.uint8 or packed.shape != (packed_bytes(dimension, count),):
        expected = f"uint8 [{packed_bytes(dimension, count)}]"
        raise ValueError(f"expected {expected} for {count} of {dimension} values, got {packed.dtype} {packed.shape}")
    places, values = packed[: -4 * count], packed[-4 * count :].copy().view("<f4")
    if _as_bitmap(count, dimension):
        indices = np.flatnonzero(np.unpackbits(places, count=dimension))
    else:
        indices = places.copy().view("<i4").astype(np.int64)
    if len(indices) != count or (np.diff(indices) <= 0).any() or indices[0] < 0 or indices[-1] >= dimension:
        raise ValueError(f"expected {count} places in ascending order below {dimension}")
    vector = np.zeros(dimension, np.float32)
    vector[indices] = values
    return vector


def packed_bytes(dimension: int, count: int) -> int:
    """Length of `pack_selected`."""
    return 4 * count + (-(-dimension // 8) if _as_bitmap(count, dimension) else 4 * count)


def _as_bitmap(count: int, dimension: int) -> bool:
    return 32 * count >= dimension
