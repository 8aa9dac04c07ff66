"""Randomness that is public by design (cohorts, batches in simulation), always from a key, never global."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(*key: int | str) -> np.random.Generator:
    """A generator addressed by a key such as (seed, round, "cohort"); different keys are independent."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return np.random.Generator(
        np.random.Philox(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()))
    )


def draw_cohort(seed: int, server_round: int, num_clients: int, size: int, sampling: str) -> list[int]:
    """Sorted ids of the clients asked in a round, from (seed, round).

    ``fixed``: exactly ``size``, uniformly without replacement. ``poisson``: each with probability size/num_clients.
    Memory and time are proportional to the cohort, not to the population.
    """
    rng = generator(seed, server_round, "cohort")
    if sampling == "poisson":
        size = int(rng.binomial(num_clients, size / num_clients))
    if size == num_clients:
        return list(range(num_clients))
    return sorted(int(client) for client in rng.choice(num_clients, size, replace=False, shuffle=False))


def participations(seed: int, num_rounds: int, num_clients: int, size: int, sampling: str) -> list[int]:
    """How often each client is asked in the whole run: public, and known before it starts."""
    counts = np.zeros(num_clients, dtype=int)
    for server_round in range(1, num_rounds + 1):
        counts[draw_cohort(seed, server_round, num_clients, size, sampling)] += 1
    return counts.tolist()
