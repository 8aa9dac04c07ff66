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

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fedpriv.privacy.trade_offs import GAUSSIAN, Family, SharperBound


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
