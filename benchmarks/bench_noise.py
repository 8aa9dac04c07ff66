"""Throughput of the noise sources on one core, in millions of numbers per second.

    python benchmarks/bench_noise.py

Targets: 20 million secure Gaussians per second and core, from uniforms of at least 53 bits; at most 15 ms for the
releases of 100 clients of 7,850 coordinates: clipped, moved onto the grid, each with its own seeded noise.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedpriv.mechanisms.cohort_noise import CohortNoise
from fedpriv.mechanisms.noise import SeededNoise, add_normal, clip
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.training.allocator import keep_freed_memory

TARGET, MOST_MS = 20.0, 15.0
COHORT = (100, 7_850)


def rate(draw: Callable[[], object], count: int, repeats: int = 7) -> float:
    """Best of several runs, in millions per second."""
    draw()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        draw()
        best = min(best, time.perf_counter() - start)
    return count / best / 1e6


def release_ms() -> float:
    """Milliseconds of a cohort's releases, the best of several; every time with fresh keys."""
    updates, rounds = torch.randn(COHORT), itertools.count()

    def release() -> object:
        number = next(rounds)
        noise = CohortNoise([SeededNoise(0, client, number, 0, "release") for client in range(COHORT[0])])
        return add_normal(clip(updates, 1.0), 4.0, noise)

    return 1e-3 / rate(release, 1)


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as every process that trains does
    seeded, secure = SeededNoise(0, "benchmark"), SecureNoise()
    print(f"{'millions per second, one core':44s}{'80,202':>10s}{'10 million':>12s}")
    measured = {}
    for name, draw in (
        ("seeded Gaussians", lambda n: seeded.normal(n, 0.3)),
        ("secure Gaussians, rounded to a grid", lambda n: secure.normal(n, 0.3)),
        ("secure Gaussians, sum of four draws", lambda n: secure.normal(4 * n, 0.15).view(4, n).sum(0)),
        ("secure: values put on the grid, noise added", lambda n: add_normal(torch.zeros(n), 0.3, secure)),
        ("secure uniforms of 53 bits", lambda n: secure.uniform(n)),
        ("secure Laplace", lambda n: secure.laplace(n)),
    ):
        rates = [rate(lambda n=n, draw=draw: draw(n), n) for n in (80_202, 10_000_000)]  # type: ignore[misc]
        measured[name] = min(rates)
        print(f"{name:44s}{rates[0]:10.1f}{rates[1]:12.1f}")
    for name, algorithm, mode in (
        ("AES-256, counter mode", algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))),
        ("ChaCha20", algorithms.ChaCha20(os.urandom(32), bytes(16)), None),
    ):
        cipher, size = Cipher(algorithm, mode).encryptor(), 2**20
        zeros, stream = bytes(size), bytearray(size)
        speed = rate(lambda cipher=cipher, z=zeros, s=stream: cipher.update_into(z, s), size)  # type: ignore[misc]
        print(f"{name + ', MB/s':44s}{speed:10.0f}")
    taken = release_ms()
    print(f"releases {list(COHORT)}: {taken:.1f} ms, {'within' if taken <= MOST_MS else 'MORE THAN'} {MOST_MS:g}")
    reached = measured["secure Gaussians, rounded to a grid"]
    print(f"target {TARGET:g}: {'reached' if reached >= TARGET else 'MISSED'} ({reached:.1f})")


if __name__ == "__main__":
    main()
