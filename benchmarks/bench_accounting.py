"""How exact and how fast the accounting is. Run: python benchmarks/bench_accounting.py (about two minutes).

Prints four tables: closed form against the analytic formula in 60 digits, Poisson-sampled Gaussians against Opacus'
PRV accountant, whole populations, and the check before a release.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]

from fedpriv.privacy.composition import Budget, compose, compose_clients
from fedpriv.privacy.events import CLIENT_TO_SERVER, Event, Gaussian, PoissonGaussian, Threat

DELTA = 1e-5
EXAMPLE = Threat("example", "add-or-remove-one", "server")


def analytic_epsilon(mu: float) -> float:
    """Balle and Wang 2018, Theorem 8, solved by bisection in 60 digits."""
    with mpmath.workdps(60):
        wide = mpmath.mpf(mu)

        def delta(epsilon: Any) -> Any:
            upper, lower = wide / 2 - epsilon / wide, -wide / 2 - epsilon / wide
            return (
                mpmath.erfc(-upper / mpmath.sqrt(2)) - mpmath.exp(epsilon) * mpmath.erfc(-lower / mpmath.sqrt(2))
            ) / 2

        low, high = mpmath.mpf(0), wide**2 / 2 + 10 * wide + 1
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
        return float(high)


def closed_form() -> None:
    print(f"k Gaussian releases, delta {DELTA}: closed form against the analytic formula")
    worst = 0.0
    for multiplier in (0.1, 0.3, 1.0, 3.0, 10.0):
        for count in (1, 10, 100, 1000):
            found = compose([Gaussian(threat=CLIENT_TO_SERVER, multiplier=multiplier, count=count)], DELTA).epsilon
            exact = analytic_epsilon(count**0.5 / multiplier)
            worst = max(worst, abs(found / exact - 1))
            print(f"  multiplier {multiplier:5}  k {count:5}  epsilon {found:14.6f}  analytic {exact:14.6f}")
    print(f"  largest difference {worst:.1e} (target 0.5%)\n")


def second_accountant() -> None:
    from opacus.accountants import PRVAccountant

    warnings.filterwarnings("ignore", message="Optimal order")
    print(f"Poisson-sampled Gaussians, delta {DELTA}: PLD against Opacus PRV (eps_error 0.001)")
    worst = 0.0
    for rate, sigma, steps in (
        (0.01, 4.0, 1000),
        (0.01, 1.0, 1000),
        (0.01, 0.7, 1000),
        (0.05, 2.0, 300),
        (0.1, 1.0, 100),
        (0.2, 1.5, 50),
        (0.001, 0.6, 5000),
        (0.02, 0.8, 10),
    ):
        event = PoissonGaussian(threat=EXAMPLE, multiplier=sigma, sampling_rate=rate, count=steps)
        found, seconds = timed(compose, [event], DELTA)
        other = PRVAccountant()
        other.history = [(sigma, rate, steps)]
        theirs = other.get_epsilon(DELTA, eps_error=0.001)
        worst = max(worst, abs(found.epsilon / theirs - 1))
        print(
            f"  q {rate:5}  sigma {sigma:3}  steps {steps:4}  {found.accountant} {found.epsilon:8.4f}  "
            f"prv {theirs:8.4f}  {100 * (found.epsilon / theirs - 1):+.3f}%  {seconds:.2f} s"
        )
    print(f"  largest difference {100 * worst:.2f}% (target 1%)\n")


def populations() -> None:
    print("10,000 clients x 500 rounds (targets: 2 s with equal histories, 20 s with 1,000 different ones)")
    draw = random.Random(0)
    shapes: dict[str, Callable[[float], Event]] = {
        "Gaussian": lambda x: Gaussian(threat=CLIENT_TO_SERVER, multiplier=1 + x),
        "Poisson": lambda x: PoissonGaussian(threat=EXAMPLE, multiplier=1 + x, sampling_rate=0.01),
    }
    for name, make in shapes.items():
        event = make(0.5)
        equal = {client: [event] * 500 for client in range(10_000)}
        found, seconds = timed(compose_clients, equal, DELTA)
        print(f"  {name:8}  equal histories       {seconds:6.2f} s  maximum {found.maximum:9.4f} ({found.accountant})")
        events = [make(index / 50) for index in range(50)]
        different = [draw.choices(events, k=500) for _ in range(1000)]
        mixed = {client: different[client % 1000] for client in range(10_000)}
        found, seconds = timed(compose_clients, mixed, DELTA)
        print(f"  {name:8}  {found.num_histories} different ones   {seconds:6.2f} s  ", end="")
        print(f"maximum {found.maximum:9.4f} ({found.accountant})  median {found.median:9.4f}")
    print()


def filters() -> None:
    print("May this client release once more? (target: under 1 ms)")
    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=30.0)
    budget = Budget(10.0, DELTA)
    for length in (1, 100, 500):
        spent = [event] * length
        budget.admits(spent, [event])
        _, seconds = timed(budget.admits, spent, [event])
        print(f"  {length:4} releases in the account: {1e6 * seconds:6.1f} us")


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - start


if __name__ == "__main__":
    closed_form()
    second_accountant()
    populations()
    filters()
