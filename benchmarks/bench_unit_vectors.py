"""Time of one client's release of a direction, in milliseconds on one core, and against one Gaussian vector.

    python benchmarks/bench_unit_vectors.py

Target, seeded PrivUnit: 0.4 ms at d = 7,850 and 1.2 ms at 80,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from fedpriv.mechanisms.noise import NoiseSource, SeededNoise
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.mechanisms.unit_vectors import unit_mechanism
from fedpriv.training.allocator import keep_freed_memory

TARGETS = {7_850: 0.4, 80_000: 1.2}
EPSILON, REPEATS = 8.0, 25


def milliseconds(work: Callable[[], object]) -> tuple[float, float]:
    """(best, median) of several runs; the first, which computes the parameters, is not counted."""
    work()
    seen = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seen.append(1e3 * (time.perf_counter() - start))
    return min(seen), float(np.median(seen))


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as every worker does
    sources: dict[str, NoiseSource] = {"seeded": SeededNoise(0, "benchmark"), "secure": SecureNoise()}
    print(f"{'ms: best (median), ratio to one Gaussian vector':50s}" + "".join(f"{d:>28,}" for d in TARGETS))
    for kind, source in sources.items():
        for name in ("privunit", "projunit", "sqkr", "gaussian"):
            cells = []
            for dimension, target in TARGETS.items():
                sender, vector = unit_mechanism(name, dimension, EPSILON, std=1.2), torch.randn(dimension)
                best, median = milliseconds(lambda s=sender, v=vector, n=source: s.release(v, ("key",), n))  # type: ignore[misc]
                noise, _ = milliseconds(lambda d=dimension, n=source: n.normal(d))  # type: ignore[misc]
                missed = kind == "seeded" and name == "privunit" and best > target
                cells.append(f"{best:.2f} ({median:.2f}) {best / noise:5.1f}{' MISSED' * missed}")
            print(f"{name + ', ' + kind:50s}" + "".join(f"{cell:>28s}" for cell in cells))


if __name__ == "__main__":
    main()
