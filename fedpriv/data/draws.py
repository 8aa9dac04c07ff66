"""Random numbers for dividing data: one generator per (seed, purpose), none of them global."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A generator of its own for every pair, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
