"""Whole numbers of so many bits one after the other in bytes, without gaps.

Eight numbers are as many bytes as one has bits, so number j of every eight begins at the same bit of a byte: all of
them are read or written as one strided view of words of 64 bits. A word holds a number of at most 57 bits wherever that
begins.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

#: Which bit of a stream comes first: the lowest of the first number in the lowest of the first byte, or the highest.
Order = Literal["<", ">"]

#: Numbers taken at a time; a multiple of 8, so that every part but the last ends on a byte.
AT_ONCE = 2**18
_WORD = 8  # bytes


def packed_size(count: int, bits: int) -> int:
    """Bytes of so many numbers."""
    return -(-count * bits // 8)


def pack(numbers: NDArray[Any], bits: int, order: Order) -> NDArray[np.uint8]:
    """uint8 [..., `packed_size`] of numbers below 2^bits [..., n]; bits: from 1 to 57."""
    if (count := numbers.shape[-1]) > AT_ONCE:
        parts = [pack(numbers[..., start : start + AT_ONCE], bits, order) for start in range(0, count, AT_ONCE)]
        return np.concatenate(parts, axis=-1)
    if not count:
        return np.zeros(numbers.shape, np.uint8)
    rows = numbers.shape[:-1]
    groups = -(-count // 8)
    found = np.zeros((*rows, groups * max(bits, _WORD) + _WORD), np.uint8)
    filled = np.zeros((*rows, groups * 8), np.uint64)
    filled[..., :count] = numbers
    stride = max(bits, _WORD)  # words that are written must not overlap
    for number in range(8):
        first, shift = divmod(number * bits, 8)
        shift = shift if order == "<" else 64 - bits - shift
        words = _words(found, first, groups, stride, order)
        words |= filled[..., number::8] << np.uint64(shift)
    packed = found[..., : groups * stride].reshape(*rows, groups, stride)[..., :bits]
    return np.ascontiguousarray(packed.reshape(*rows, groups * bits)[..., : packed_size(count, bits)])


def unpack(packed: NDArray[np.uint8], bits: int, count: int, order: Order) -> NDArray[np.uint64]:
    """uint64 [count] from the bytes of `pack`."""
    if count > AT_ONCE:
        starts, step = range(0, count, AT_ONCE), packed_size(AT_ONCE, bits)
        parts = [packed[number * step : (number + 1) * step] for number in range(len(starts))]
        sizes = [min(AT_ONCE, count - start) for start in starts]
        return np.concatenate([unpack(part, bits, size, order) for part, size in zip(parts, sizes, strict=True)])
    if not count:
        return np.zeros(0, np.uint64)
    groups = -(-count // 8)
    filled = np.zeros(groups * bits + _WORD, np.uint8)
    filled[: len(packed)] = packed
    found = np.empty((groups, 8), np.uint64)
    for number in range(8):
        first, shift = divmod(number * bits, 8)
        shift = shift if order == "<" else 64 - bits - shift
        found[:, number] = _words(filled, first, groups, bits, order) >> np.uint64(shift)
    found &= np.uint64(2**bits - 1)
    return found.reshape(-1)[:count]


def _words(held: NDArray[np.uint8], first: int, groups: int, stride: int, order: Order) -> NDArray[np.uint64]:
    """Words [..., groups] of bytes [..., n]: the first at byte ``first``, then one every ``stride`` bytes."""
    shape, strides = (*held.shape[:-1], groups), (*held.strides[:-1], stride)
    return np.ndarray(shape, f"{order}u8", held, first, strides)
