"""Randomness that is public by design (cohorts, batches in simulation), always from a key, never global."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray


def generator(*key: int | str) -> np.random.Generator:
    """A generator addressed by a key such as (seed, round, "cohort"); different keys are independent."""
    return generators([key])[0]


def generators(keys: Iterable[tuple[int | str, ...]]) -> list[np.random.Generator]:
    """A generator for each key, as ``np.random.Philox(number)`` with the key's hash as its number."""
    return numbered(np.random.Philox, 2, [hashlib.blake2b(_text(key).encode(), digest_size=16) for key in keys])


def numbered(kind: Callable[[Any], Any], count: int, hashes: Iterable[Any]) -> list[np.random.Generator]:
    """A generator for each hash of 128 bits, as ``kind(number)`` of numpy that takes so many words of a seed."""
    numbers = [one.digest()[::-1] for one in hashes]
    if len(numbers) < 12:  # each alone is faster
        return [np.random.Generator(kind(int.from_bytes(number, "little"))) for number in numbers]
    words = seed_words(np.frombuffer(b"".join(numbers), "<u4").reshape(-1, 4), count)
    return [np.random.Generator(kind(Seed(*seed))) for seed in zip(numbers, words, strict=True)]


def _text(key: tuple[int | str, ...]) -> str:
    return "\x1f".join(f"{type(part).__name__}:{part}" for part in key)


class Seed(ISpawnableSeedSequence):
    """As numpy's seed sequence of a number (its bytes, lowest first), whose first words are known already."""

    def __init__(self, number: bytes, words: NDArray[np.uint64]) -> None:
        self.number, self.words = number, words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return self.words

    def spawn(self, n_children: int) -> list[Any]:
        return self._whole.spawn(n_children)

    @cached_property
    def _whole(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(int.from_bytes(self.number, "little"))


def seed_words(numbers: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
    """What ``np.random.SeedSequence(number).generate_state(count, np.uint64)`` gives, for many numbers of 128 bits
    (uint32 [n, 4], lowest first) at once: uint64 [n, count]. numpy promises never to change this function.
    """
    constant, factor = 0x43B0D7E5, 0x931E8875

    def hashed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
        nonlocal constant
        words = words ^ np.uint32(constant)
        constant = constant * factor % 2**32
        words = words * np.uint32(constant)
        return words ^ (words >> np.uint32(16))

    pool = [hashed(words) for words in numbers.T]
    for source, target in itertools.permutations(range(4), 2):
        mixed = np.uint32(0xCA01F9DD) * pool[target] - np.uint32(0x4973F715) * hashed(pool[source])
        pool[target] = mixed ^ (mixed >> np.uint32(16))
    constant, factor = 0x8B51F9DD, 0x58F38DED
    return np.stack([hashed(pool[word % 4]) for word in range(2 * count)], axis=1).view(np.uint64)


def draw_cohort(seed: int, server_round: int, num_clients: int, size: int, sampling: str) -> list[int]:
    """Sorted ids of a round's cohort, from (seed, round).

    ``fixed``: exactly ``size``, uniformly without replacement. ``poisson``: each with probability size/num_clients.
    Memory and time are proportional to the cohort, not to the population.
    """
    if sampling == "fixed" and size == num_clients:
        return list(range(num_clients))
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
