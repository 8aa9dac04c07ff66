"""What bounds by trade-off curves show, beside those of (epsilon, delta), and how often they exceed the truth.

    python -m benchmarks.bench_sharper [--audits 3000] [--repetitions 25]

Exact Gaussians of epsilon 1, 4 and 8 at delta 1e-5, 95 % confidence: audits of 10^4 and 10^5 trials in each world, and
coins in one run. Then ``audits`` small audits of sound mechanisms at 90 %: how many bounds lie above the truth, beside
how many may (binomial, at 99.9 %). Medians over ``repetitions`` seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedpriv.privacy.auditor import audit, sampled_score
from fedpriv.privacy.canaries import one_run_bound, one_run_epsilon, one_run_strength
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import Event, PoissonGaussian, Threat
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from fedpriv.privacy.trade_offs import GAUSSIAN, Approximate

DELTA, EPSILONS, COINS, SMALL = 1e-5, (1.0, 4.0, 8.0), (1000, 10_000), 0.9
Draw = Callable[[bool, int, int], NDArray[np.float64]]


def gaussian(mu: float) -> Draw:
    return lambda world, n, key: np.random.default_rng(key).normal(mu * world, size=(n, 1))


def sampled(rounds: int, rate: float, shift: float) -> Draw:
    def draw(world: bool, n: int, key: int) -> NDArray[np.float64]:
        rng = np.random.default_rng(key)
        return rng.standard_normal((n, rounds)) + shift * world * (rng.random((n, rounds)) < rate)

    return draw


def response(epsilon: float) -> Draw:
    share = 1 / (1 + np.exp(epsilon))
    return lambda world, n, key: (np.random.default_rng(key).random((n, 1)) < (1 - share if world else share)) * 1.0


def right_guesses(mu: float, coins: int, guesses: int, seed: int) -> int:
    rng = np.random.default_rng(seed)
    there = rng.random(coins) < 0.5
    scores = np.where(there, mu / 2, -mu / 2) + rng.standard_normal(coins)
    clear = np.argsort(-np.abs(scores))[:guesses]
    return int(((scores[clear] > 0) == there[clear]).sum())


def trials_table(repetitions: int) -> None:
    print("| epsilon | trials | (epsilon, delta) | Gaussian |\n|--:|--:|--:|--:|")
    for epsilon in EPSILONS:
        for trials in (10**4, 10**5):
            draw, seeds = gaussian(gaussian_mu(epsilon, DELTA)), range(repetitions)
            options = {"delta": DELTA, "trials": trials, "confidence": 0.95, "families": [GAUSSIAN]}
            found = [audit(draw, seed=seed, **options) for seed in seeds]  # type: ignore[arg-type]
            plain, sharper = ([one.epsilon_lower for one in found], [one.sharper[0].epsilon_lower for one in found])
            print(f"| {epsilon:g} | {trials:,} | {np.median(plain):.2f} | {np.median(sharper):.2f} |", flush=True)


def coins_table(repetitions: int) -> None:
    print("\n| epsilon | coins | Steinke et al. | f-DP, any mechanism | f-DP, Gaussian |\n|--:|--:|--:|--:|--:|")
    for epsilon in EPSILONS:
        for coins in COINS:
            mu, rows = gaussian_mu(epsilon, DELTA), []
            for part in (1, 2, 4, 8, 16, 32):
                guesses = coins // part
                right = int(np.median([right_guesses(mu, coins, guesses, seed) for seed in range(repetitions)]))
                steinke = one_run_epsilon(coins, guesses, right, DELTA, 0.05)
                anything = one_run_strength(coins, guesses, right, 0.05, Approximate(DELTA))
                bound = one_run_bound(coins, [(guesses, right)], delta=DELTA, confidence=0.95)
                rows.append((steinke, anything, bound.epsilon_lower))
            best = " | ".join(f"{max(one):.2f}" for one in zip(*rows, strict=True))
            print(f"| {epsilon:g} | {coins:,} | {best} |", flush=True)


def small_audits(audits: int) -> None:
    print("\n| sound mechanism | bound | audits | above the truth | allowed |\n|---|---|--:|--:|--:|")
    event = PoissonGaussian(
        threat=Threat("example", "add-or-remove-one", "server"), multiplier=0.8, sampling_rate=0.2, count=5
    )
    cases: list[tuple[str, Draw, float, float, list[Event]]] = [
        ("Gaussian, mu 1", gaussian(1.0), 1.0, 0.0, []),
        ("Gaussian, mu 3", gaussian(3.0), 3.0, 0.0, []),
        ("randomised response, 2", response(2.0), 0.0, 2.0, []),
        ("5 sampled Gaussians", sampled(5, 0.2, 1 / 0.8), 0.0, compose([event], DELTA).epsilon, [event]),
    ]
    allowed = int(binom.ppf(0.999, audits, 1 - SMALL))
    for name, draw, mu, epsilon, events in cases:
        above = {"(epsilon, delta)": 0} | ({"Gaussian": 0} if mu else {})
        for seed in range(audits):
            scores, options = sampled_score(events, 5), {"delta": DELTA, "confidence": SMALL, "families": [GAUSSIAN]}
            found = audit(draw, trials=200, seed=seed, scores=scores, **options)  # type: ignore[arg-type]
            if mu:
                above["Gaussian"] += found.sharper[0].strength > mu
            above["(epsilon, delta)"] += found.epsilon_lower > (gaussian_epsilon(mu, DELTA) if mu else epsilon)
        for bound, many in above.items():
            print(f"| {name} | {bound} | {audits:,} | {many} | {allowed} |", flush=True)
    for mu, guesses in ((0.5, 100), (1.0, 50), (2.0, 25)):
        above_one = 0
        shown = [one_run_strength(200, guesses, right, 1 - SMALL, GAUSSIAN) for right in range(guesses + 1)]
        least = int(np.searchsorted(shown, mu, side="right"))  # right guesses that refute mu
        for seed in range(audits):
            above_one += right_guesses(mu, 200, guesses, seed) >= least
        print(f"| 200 coins, mu {mu:g}, {guesses} guesses | f-DP | {audits:,} | {above_one} | {allowed} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--audits", type=int, default=3000)
    parser.add_argument("--repetitions", type=int, default=25)
    asked = parser.parse_args()
    trials_table(asked.repetitions)
    coins_table(asked.repetitions)
    small_audits(asked.audits)


if __name__ == "__main__":
    main()
