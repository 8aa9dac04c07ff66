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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.special import bdtrc, expit

from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.privacy.trade_offs import GAUSSIAN, Family, SharperBound, binomial_log_chances


@dataclass(frozen=True)
class CanaryAudit:
    """A lower bound on epsilon at `delta` from one run: `correct` of `guesses` were right, for `canaries` in all.

    attainable: the bound had every guess been right, the largest that so many coins can show. runs: of which each coin
    is in one. sharper: bounds from the same guesses under assumptions, each with `confidence` by itself.
    """

    epsilon_lower: float
    confidence: float
    delta: float
    canaries: int
    guesses: int
    correct: int
    attainable: float
    runs: int = 1
    sharper: tuple[SharperBound, ...] = ()

    def __str__(self) -> str:
        runs = "one run" if self.runs == 1 else f"{self.runs} runs"
        return (
            f"epsilon >= {self.epsilon_lower:.3g} at delta {self.delta:g} ({100 * self.confidence:g}% confidence, "
            f"{runs}, {self.correct} of {self.guesses} guesses right, {self.canaries} coins; a perfect attack would "
            f"have shown {self.attainable:.3g})"
        )

    def verdict(self, epsilon: float) -> str:
        """What the audit says of the statement that the run is (epsilon, `delta`)-private for what a coin turns."""
        if self.epsilon_lower > epsilon:
            return "contradicts"
        return "consistent" if self.attainable >= epsilon else "cannot tell"


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
    took_part: np.ndarray,
    scores: np.ndarray,
    *,
    delta: float,
    confidence: float,
    guesses: Sequence[int],
    present: Sequence[float] | None = None,
    families: Sequence[Family] = (),
) -> CanaryAudit:
    """The best bound among several numbers of guesses: "in" for the highest scores, "out" for the lowest.

    Args:
        took_part: the coins (bool [m]), fair, independent, and unknown to the code that computes the scores.
        scores: the observer's score of each canary (float [m], finite); high: it took part.
        delta: at which epsilon is bounded.
        confidence: probability that the bound holds, for all of `guesses` together (Bonferroni).
        guesses: how many canaries to guess for (each from 1 to m), fixed before the scores are seen.
        present: for each number, the share of its guesses that are "in" (None: half): who may be in any of many batches
            can be seen to be in, hardly to be out.
        families: of each, a bound under its assumption as well [Mahloujifar et al. 2024] (`fedpriv.privacy.canaries`).

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

    def correct(number: int, share: float) -> int:
        ins = math.floor(share * number)
        guessed_in, guessed_out = lowest_first[canaries - ins :], lowest_first[: number - ins]
        return int(took_part[guessed_in].sum() + (~took_part[guessed_out]).sum())

    shares = [0.5] * len(guesses) if present is None else present
    tries = [(number, correct(number, share)) for number, share in zip(guesses, shares, strict=True)]
    found = _best(canaries, tries, delta, confidence)
    sharper = (one_run_bound(canaries, tries, delta=delta, confidence=confidence, family=one) for one in families)
    return replace(found, sharper=tuple(sharper))


def audit_pairs(right: np.ndarray, other: np.ndarray, *, delta: float, confidence: float) -> CanaryAudit:
    """The best bound from m pairs, of each of which a fair coin put one into the data: guesses are "the one with the
    higher score", for those pairs whose scores differ most.

    Turning a coin replaces one example by another, so the bound is for replace-one. right, other: scores [m] of those
    that are in the data and of their partners, computed without the coins; equal scores count as a wrong guess.
    """
    lead = np.asarray(right, float) - np.asarray(other, float)
    order = np.argsort(-np.abs(lead), kind="stable")
    counts = sorted({max(1, len(lead) // part) for part in PARTS})
    return _best(len(lead), [(number, int((lead[order[:number]] > 0).sum())) for number in counts], delta, confidence)


#: Shares of the coins that are guessed: all of them, half, ...
PARTS = (1, 2, 4, 8, 16)


def _best(coins: int, tries: Sequence[tuple[int, int]], delta: float, confidence: float) -> CanaryAudit:
    """The largest bound of several tries, each a number of guesses and how many of them were right (Bonferroni)."""
    error = (1 - confidence) / len(tries)
    most = max(one_run_epsilon(coins, number, number, delta, error) for number, _ in tries)

    def bound(number: int, correct: int) -> CanaryAudit:
        epsilon = one_run_epsilon(coins, number, correct, delta, error)
        return CanaryAudit(epsilon, confidence, delta, coins, number, correct, most)

    return max((bound(*one) for one in tries), key=lambda found: found.epsilon_lower)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest epsilon that `correct` right guesses refute at this error probability [Steinke et al. 2023, App. D].

    0 where not even epsilon = 0 is refuted.
    """

    from scipy.optimize import brentq  # a third of a second to import

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
    tail = bdtrc(correct - 1, guesses, accuracy)
    below = np.cumsum(np.exp(binomial_log_chances(np.arange(correct - 1, -1, -1), guesses, accuracy)))
    slack = np.max(below / np.arange(1, correct + 1), initial=0.0)
    return float(min(1.0, tail + 2 * canaries * delta * slack))


# --- one run ----------------------------------------------------------------------------------------------------------

"""What right guesses of coins in one run say of a trade-off curve: f-DP auditing in one run.

Source: Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run" (2024), for binary coins.

**Theorem.** Let u be m fair independent coins, M(u) what the observer sees, r of them guessed from M(u) (which, and
how, depends on M(u) alone), N the number of right guesses, Q_t = Pr[N >= t]. Let F bound all tests between u_j = 0 and
u_j = 1 given all other coins, in both directions. Then for t = r, ..., 1

    Q_(t-1) >= max( Q_t, ( sum_{s >= t} Q_s + m F^-1( (t Q_t + sum_{s > t} Q_s) / m ) ) / (r - t + 1) ).

**Proof.** Fix j, the other coins, and an event A that is decided by them and by M(u). Let a_b = Pr[A, j is guessed
rightly | u_j = b], w_b the same for wrongly. "A, and the guess is 1" is a test of u_j = 1 against 0 with power a_1 and
false alarms w_0, so a_1 <= F(w_0); likewise a_0 <= F(w_1). F is concave, so (a_0 + a_1)/2 <= F((w_0 + w_1)/2), and by
concavity again the same holds averaged over the other coins and over j = 1..m (a coin without a guess has a = w = 0).
Take for A "at least t - 1 of the other guesses are right". Then j is right in A exactly where N >= t and j is right;
wrong in A where N >= t - 1 and j is wrong. Given N there are N right ones and r - N wrong ones:

    R_t <= F(H_(t-1)),  R_t = sum_{l >= t} l Pr[N = l] / m,  H_t = sum_{l >= t} (r - l) Pr[N = l] / m.

Summation by parts gives m R_t = t Q_t + sum_{s > t} Q_s and m H_(t-1) = (r - t + 1) Q_(t-1) - sum_{s >= t} Q_s. []

**P-value.** The right side increases in every Q_s, s >= t. So from Q_c = p and Q_s = 0 for s > c the recursion gives
the least Q_0 of any law with Pr[N >= c] >= p. If it exceeds 1, then Pr[N >= c] < p for every mechanism within F: as
many right guesses refute F with error p.

With `fedpriv.privacy.trade_offs.Approximate` this is a bound for any mechanism, with `GAUSSIAN` one for Gaussian noise.
"""


def refutes(coins: int, guesses: int, correct: int, error: float, least_fpr: Callable[[float], float]) -> bool:
    """Whether so many right guesses have a probability below `error` under the curve whose inverse is `least_fpr`."""
    return _least_total(coins, guesses, correct, error, least_fpr) > 1


def one_run_strength(coins: int, guesses: int, correct: int, error: float, family: Family) -> float:
    """The strength below which every curve of the family is refuted at this error probability; 0 where none is."""
    if correct == 0:
        return 0.0
    return family.largest(lambda strength: refutes(coins, guesses, correct, error, partial(family.least_fpr, strength)))


def one_run_bound(
    coins: int,
    tries: Sequence[tuple[int, int]],
    *,
    delta: float,
    confidence: float,
    family: Family = GAUSSIAN,
) -> SharperBound:
    """The family's bound on epsilon from several tries, each (guesses, how many of them were right), fixed before the
    scores were seen (Bonferroni).
    """
    error = (1 - confidence) / len(tries)
    found = max(one_run_strength(coins, *one, error, family) for one in tries)
    best = max(one_run_strength(coins, number, number, error, family) for number, _ in tries)
    epsilon, most = (family.epsilon(strength, delta) for strength in (found, best))
    return SharperBound(family.name, family.assumes, found, epsilon, delta, confidence, most)


def _least_total(coins: int, guesses: int, correct: int, error: float, least_fpr: Callable[[float], float]) -> float:
    """The least Q_0 of a law with Q_correct = error, or a number above 1 that it exceeds."""
    tail, beyond = error, 0.0  # Q_t, and the sum of Q_s over s > t
    for t in range(correct, 0, -1):
        right = min(1.0, (t * tail + beyond) / coins)
        beyond += tail
        tail = max(tail, (beyond + coins * least_fpr(right)) / (guesses - t + 1))
        if tail > 1:
            return tail
    return tail
