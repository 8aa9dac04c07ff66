"""Whole numbers modulo 2^bits: what clients send to a secure sum, how it is packed, and what a sum of it stands for.

A residue is an unsigned number below 2^bits, uint32 up to 32 bits and uint64 above. Negative numbers are the upper
half, as in two's complement. Packed, number i takes bits i*bits to (i+1)*bits of a little-endian stream.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

#: Residues of up to 32 bits, or of more.
Residues = NDArray[np.uint32] | NDArray[np.uint64]

#: Numbers packed at a time; a multiple of 8, so that every part but the last ends on a byte.
CHUNK = 2**18


def as_residues(numbers: NDArray[np.uint64], bits: int) -> Residues:
    """Numbers below 2^bits in the type of that many bits."""
    return numbers.astype(np.uint32) if bits <= 32 else numbers


def to_residues(numbers: NDArray[np.int64], bits: int) -> Residues:
    """The numbers [n] modulo 2^bits. [Kairouz et al. 2021, Algorithm 1: modular clipping]"""
    return as_residues(numbers.view(np.uint64) & np.uint64(2**bits - 1), bits)


def centred(residues: Residues, bits: int) -> NDArray[np.int64]:
    """The numbers of [-2^(bits-1), 2^(bits-1)) with these residues; bits above 2^bits are dropped first."""
    half = np.uint64(2 ** (bits - 1))
    kept = (residues.astype(np.uint64) + half) & np.uint64(2**bits - 1)
    numbers: NDArray[np.int64] = kept.view(np.int64) - np.int64(half)
    return numbers


def add_residues(total: NDArray[np.uint64], residues: Residues, bits: int) -> None:
    """total [n] <- total + residues modulo 2^bits, in place."""
    np.add(total, residues, out=total, casting="same_kind")
    np.bitwise_and(total, np.uint64(2**bits - 1), out=total)


def packed_size(count: int, bits: int) -> int:
    """Bytes of so many residues."""
    return -(-count * bits // 8)


def pack_residues(residues: Residues, bits: int) -> NDArray[np.uint8]:
    """uint8 [packed_size]."""
    if bits in (8, 16, 32, 64):
        return residues.astype(f"<u{bits // 8}").view(np.uint8)
    parts = [_pack(residues[start : start + CHUNK], bits) for start in range(0, len(residues), CHUNK)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def unpack_residues(packed: NDArray[np.uint8], bits: int, count: int) -> Residues:
    """Inverse of `pack_residues`. Raises ValueError for another dtype or number of bytes, or filled bits at the end."""
    expected = packed_size(count, bits)
    if packed.dtype != np.uint8 or packed.shape != (expected,):
        raise ValueError(f"expected uint8 [{expected}], got {packed.dtype} {list(packed.shape)}")
    spare = 8 * expected - count * bits
    if spare and packed[-1] >> (8 - spare):
        raise ValueError(f"the last {spare} bits are not zero")
    if bits in (8, 16, 32, 64):
        return as_residues(packed.view(f"<u{bits // 8}").astype(np.uint64), bits)
    found = np.empty(count, np.uint32 if bits <= 32 else np.uint64)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        part = packed[start * bits // 8 : packed_size(start + size, bits)]
        found[start : start + size] = _unpack(part, bits, size)
    return cast(Residues, found)


def _pack(residues: Residues, bits: int) -> NDArray[np.uint8]:
    """Eight numbers at a time are ``bits`` bytes; each byte is cut from the one or more numbers that it lies in."""
    groups = -(-len(residues) // 8)
    columns = np.zeros((8, groups), np.uint64)
    filled = np.zeros(8 * groups, np.uint64)
    filled[: len(residues)] = residues
    columns[:] = filled.reshape(groups, 8).T
    found = np.empty((groups, bits), np.uint8)
    for byte in range(bits):
        first, last = 8 * byte // bits, (8 * byte + 7) // bits
        taken = columns[first] >> np.uint64(8 * byte - first * bits)
        for number in range(first + 1, last + 1):
            taken = taken | (columns[number] << np.uint64(number * bits - 8 * byte))
        found[:, byte] = taken & np.uint64(255)
    return found.reshape(-1)[: packed_size(len(residues), bits)]


def _unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint64]:
    groups = -(-count // 8)
    filled = np.zeros(groups * bits, np.uint8)
    filled[: len(packed)] = packed
    bytes_of = np.ascontiguousarray(filled.reshape(groups, bits).T).astype(np.uint64)
    found = np.empty((groups, 8), np.uint64)
    for number in range(8):
        first, last = number * bits // 8, ((number + 1) * bits - 1) // 8
        taken = bytes_of[first] >> np.uint64(number * bits - 8 * first)
        for byte in range(first + 1, last + 1):
            taken = taken | (bytes_of[byte] << np.uint64(8 * byte - number * bits))
        found[:, number] = taken & np.uint64(2**bits - 1)
    return found.reshape(-1)[:count]
