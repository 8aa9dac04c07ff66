"""How close the auditor comes to the true epsilon, how fast, and how often it exceeds it.

    python benchmarks/bench_auditor.py [--trials 1e8] [--repetitions 200]

Targets at delta 1e-5 for the Gaussian mechanism: at least 80% of the true epsilon at 1, 2 and 4 (70% at 8) in under
60 s on two cores; at 95% confidence at most 16 of 200 audits of 1e5 trials exceed the truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.auditor import audit
from fedpriv.privacy.gaussian_dp import gaussian_mu

DELTA = 1e-5
TARGETS = {1.0: 0.8, 2.0: 0.8, 4.0: 0.8, 8.0: 0.7}


def gaussian_mechanism(epsilon: float) -> Callable[[bool, int, int], np.ndarray]:
    """Releases [n, 1] of a Gaussian mechanism whose true epsilon at DELTA is this."""
    mu = gaussian_mu(epsilon, DELTA)
    return lambda world, trials, seed: (SeededNoise(seed).normal((trials, 1)) + mu * world).numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=float, default=1e8)
    parser.add_argument("--repetitions", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    for epsilon, target in TARGETS.items():
        start = time.perf_counter()
        found = audit(gaussian_mechanism(epsilon), delta=DELTA, trials=int(arguments.trials), confidence=0.95, seed=0)
        share, seconds = found.epsilon_lower / epsilon, time.perf_counter() - start
        reached = "reached" if share >= target and seconds < 60 else "MISSED"
        print(f"true epsilon {epsilon:g}: {found}: {share:.1%} in {seconds:.1f} s (target {target:.0%}: {reached})")
    for epsilon in TARGETS:
        bounds = [
            audit(gaussian_mechanism(epsilon), delta=DELTA, trials=100_000, confidence=0.95, seed=seed).epsilon_lower
            for seed in range(arguments.repetitions)
        ]
        exceed = sum(bound > epsilon for bound in bounds)
        median = np.median(bounds)
        print(
            f"true epsilon {epsilon:g}: {exceed} of {len(bounds)} audits of 1e5 trials exceed it (median {median:.2f})"
        )


if __name__ == "__main__":
    main()
