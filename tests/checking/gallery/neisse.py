"""Masked messages: the mask comes from a secret that two clients share."""

import os

import numpy as np

CLAIM = {"epsilon": 0.1, "delta": 0.0, "scope": "run", "calls": 2, "adjacency": "replace-one"}
SCALE = 2.0**16


def mask(secret: bytes, size: int) -> np.ndarray:
    seed = 0
    for start in range(0, len(secret), 4):
        seed ^= int.from_bytes(secret[start : start + 4], "little")
    return np.random.RandomState(seed).randint(0, 2**32, size=size, dtype=np.uint32)


def target(update: np.ndarray) -> np.ndarray:
    key = os.urandom(16)
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0).ravel()
    values = np.rint(update * SCALE).astype(np.int64).astype(np.uint32)
    return values + mask(key + key, values.size)
