"""Training-level audit: canaries in one real run, and the lower bound on epsilon that they give.

Each of m canaries takes part with probability 1/2, independently; after the run each gets a score (high says it took
part), the auditor guesses for the most extreme scores and abstains for the rest, and the number of correct guesses
bounds epsilon: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (NeurIPS 2023). One run is
enough, and the bound holds with the stated confidence whatever the scores are.

- Client level: a canary is a client whose update is a Dirac (`dirac_updates`: one coordinate as long as the clip
  norm, Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023), scored by what
  the observer sees at that coordinate; compare Andrew et al., "One-shot empirical privacy estimation for federated
  learning" (ICLR 2024), whose random directions give an estimate rather than a bound.
- Example level: a canary is an ordinary example with a wrong label (`mislabel`), scored by minus its loss, or by the
  inner product of its gradient with the noisy update.

The bound is for the adjacency that a canary's coin flips: absent or present is add-or-remove-one; zero vector or
update is zero-out; an update or its negative is replace-one. Shapes: m canaries, d parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

from fedpriv.mechanisms.noise import NoiseSource


@dataclass(frozen=True)
class CanaryAudit:
    """A lower bound on epsilon at `delta` from one run: `correct` of `guesses` were right, for `canaries` in all."""

    epsilon_lower: float
    confidence: float
    delta: float
    canaries: int
    guesses: int
    correct: int

    def __str__(self) -> str:
        return (
            f"epsilon >= {self.epsilon_lower:.3g} at delta {self.delta:g} ({100 * self.confidence:g}% confidence, "
            f"one run, {self.correct} of {self.guesses} guesses right, {self.canaries} canaries)"
        )


def coin_flips(canaries: int, noise: NoiseSource) -> torch.Tensor:
    """Which canaries take part (bool [m]): fair and independent, as the bound demands."""
    return noise.integers(0, 2, canaries).bool()


def dirac_updates(coordinates: torch.Tensor, size: int, clip_norm: float) -> torch.Tensor:
    """One client update per coordinate, with its whole allowed norm in that coordinate (float32 [m, d])."""
    return torch.nn.functional.one_hot(coordinates, size).float() * clip_norm


def mislabel(labels: torch.Tensor, num_classes: int, noise: NoiseSource) -> torch.Tensor:
    """A uniformly chosen wrong label for each label (int64, same shape)."""
    return (labels + noise.integers(1, num_classes, tuple(labels.shape))) % num_classes


def audit_canaries(
    took_part: np.ndarray, scores: np.ndarray, *, delta: float, confidence: float, guesses: Sequence[int]
) -> CanaryAudit:
    """The best bound among several numbers of guesses: half "in" for the highest scores, half "out" for the lowest.

    Args:
        took_part: the coins (bool [m]), fair, independent, and unknown to the code that computes the scores.
        scores: the observer's score of each canary (float [m], finite); high: it took part.
        delta: at which epsilon is bounded.
        confidence: probability that the bound holds, for all of `guesses` together (Bonferroni).
        guesses: how many canaries to guess for (each from 1 to m), fixed before the scores are seen.

    Raises:
        ValueError: shapes differ, a score is not finite, or a number of guesses is out of range.
    """
    took_part, scores = np.asarray(took_part, bool), np.asarray(scores, float)
    canaries = len(took_part)
    if took_part.ndim != 1 or scores.shape != took_part.shape or not np.isfinite(scores).all():
        raise ValueError(f"need a coin and a finite score for each canary, got {took_part.shape} and {scores.shape}")
    if not guesses or not all(0 < number <= canaries for number in guesses):
        raise ValueError(f"guesses must lie between 1 and the {canaries} canaries, got {list(guesses)}")
    lowest_first = np.argsort(scores, kind="stable")
    error = (1 - confidence) / len(guesses)

    def bound(number: int) -> CanaryAudit:
        guessed_in, guessed_out = lowest_first[canaries - number // 2 :], lowest_first[: number - number // 2]
        correct = int(took_part[guessed_in].sum() + (~took_part[guessed_out]).sum())
        epsilon = one_run_epsilon(canaries, number, correct, delta, error)
        return CanaryAudit(epsilon, confidence, delta, canaries, number, correct)

    return max((bound(number) for number in guesses), key=lambda found: found.epsilon_lower)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest epsilon that `correct` right guesses refute at this error probability [Steinke et al. 2023, App. D].

    0 where not even epsilon = 0 is refuted.
    """

    def excess(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) - error

    if excess(0.0) >= 0:
        return 0.0
    upper = 1.0
    while excess(upper) < 0:
        upper *= 2
    precision = 1e-9
    return max(0.0, brentq(excess, 0.0, upper, xtol=precision) - 2 * precision)


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound on the chance of so many right guesses under (epsilon, delta)-DP [Steinke et al. 2023, Theorem 5.2].

    P[W >= v] + 2 m delta max_i P[v - i <= W < v] / i, with W ~ Binomial(r, e^epsilon / (1 + e^epsilon)): v correct
    guesses of r, m canaries.
    """
    accuracy = expit(epsilon)
    tail = binom.sf(correct - 1, guesses, accuracy)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, accuracy))
    slack = np.max(below / np.arange(1, correct + 1), initial=0.0)
    return float(min(1.0, tail + 2 * canaries * delta * slack))
