"""Random numbers for partitioning data: one generator per (seed, purpose), no global state."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, purpose: str) -> np.random.Generator:
    """An independent generator for every pair, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
