"""Randomness that is public by design (cohorts, batches in simulation), always from a key, never global."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def generator(*key: int | str) -> np.random.Generator:
    """A generator addressed by a key such as (seed, round, "cohort"); different keys are independent."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return np.random.Generator(
        np.random.Philox(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()))
    )


def draw_cohort(seed: int, server_round: int, num_clients: int, size: int, sampling: str) -> list[int]:
    """Sorted ids of a round's cohort, from (seed, round).

    ``fixed``: exactly ``size``, uniformly without replacement. ``poisson``: each with probability size/num_clients.
    Memory and time are proportional to the cohort, not to the population.
    """
    rng = generator(seed, server_round, "cohort")
    if sampling == "poisson":
        size = int(rng.binomial(num_clients, size / num_clients))
    if size == num_clients:
        return list(range(num_clients))
    return sorted(int(client) for client in rng.choice(num_clients, size, replace=False, shuffle=False))


def public_mask(seed: int, client: int, server_round: int, dimension: int, count: int) -> NDArray[np.bool_]:
    """bool [d] with ``count`` True, uniform over all such masks: client and server draw the same one. It is public,
    so no guarantee depends on it.
    """
    if count >= dimension:
        return np.ones(dimension, bool)
    keys = generator(seed, client, server_round, "mask").integers(0, 2**64, dimension, dtype=np.uint64)
    mask: NDArray[np.bool_] = keys < np.partition(keys, count)[count]
    if np.count_nonzero(mask) != count:  # equal sort keys: very rare
        mask = np.zeros(dimension, bool)
        mask[np.argsort(keys, kind="stable")[:count]] = True
    return mask


@lru_cache(maxsize=2)  # all clients of a round ask for the same, and the server for each of them
def public_signs(seed: int, server_round: int, dimension: int) -> NDArray[np.float32]:
    """+1 and -1 (float32 [d], not to be written to): one rotation for a round, which the server can undo."""
    bits = generator(seed, server_round, "signs").integers(0, 2, dimension, dtype=np.int8)
    return (2 * bits - 1).astype(np.float32)
