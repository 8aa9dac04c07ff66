"""Noise from the operating system's own source."""

import math
import os

import numpy as np

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def uniform(count: int) -> np.ndarray:
    words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


def normal(count: int) -> np.ndarray:
    return np.sqrt(-2.0 * np.log(uniform(count))) * np.cos(2.0 * math.pi * uniform(count))


def target(update: np.ndarray) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    return update + 2.0 * normal(update.size).reshape(update.shape)
