"""Masks: key streams of AES-256 in counter mode as vectors of whole numbers, added to a vector in chunks.

A key masks one vector and nothing else, so the counter starts at 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

#: Bytes at a time: the working arrays stay in a core's cache.
CHUNK = 2**16
_BLOCK = 16

#: uint16 [d] up to 16 bits, uint32 up to 32, uint64 above: sums wrap around where the modulus 2^bits divides.
Words = NDArray[Any]


def word_type(bits: int) -> np.dtype[Any]:
    """Of the numbers that masks are added to; a uniform word is uniform modulo 2^bits too."""
    return np.dtype("<u2" if bits <= 16 else "<u4" if bits <= 32 else "<u8")


def add_masks(total: Words, plus: Iterable[bytes], minus: Iterable[bytes] = ()) -> None:
    """Adds the masks of these keys (32 bytes each) to ``total`` [d] in place, and takes others off."""
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    words = CHUNK // total.dtype.itemsize
    zeros, buffer = bytes(CHUNK), np.empty(CHUNK + _BLOCK, np.uint8)
    for start in range(0, total.size, words):
        part = total[start : start + words]
        length = part.size * total.dtype.itemsize
        source = zeros if length == CHUNK else zeros[:length]
        mask = buffer[:length].view(total.dtype)
        for stream, change in streams:
            stream.update_into(source, buffer)
            change(part, mask, out=part)


def _stream(key: bytes) -> Any:
    return Cipher(AES(key), CTR(bytes(_BLOCK))).encryptor()
