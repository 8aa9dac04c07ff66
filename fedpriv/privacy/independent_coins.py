"""What right guesses of coins say of epsilon where each coin has a transcript of its own: independent coins.

Canary clients whose noise is their own are such: given the server's requests, what one of them sends depends on its
coin and its noise alone. The one-run bounds (`fedpriv.privacy.canaries`) also allow coins in
one joint release, and pay for it: at 100,000 coins and delta 1e-5 they show 4.2 of a Gaussian's 8, and these 4.9.

Setting: m coins u_i, fair and independent; transcripts Y_i ~ P_(u_i), independent given the coins; all P_0, P_1 obey
one bound. Nothing else is assumed: the P may differ from coin to coin.

**Any mechanism.** Let P_0, P_1 be (epsilon, delta)-indistinguishable in both directions. By Kairouz, Oh and Viswanath
("The composition theorem for differential privacy", ICML 2015, Theorem 3.1) Y_i is a function, randomised by itself, of
an X_i that is with probability delta the coin itself, openly, and else the coin turned with probability 1 - p,
p = e^epsilon / (1 + e^epsilon). Given all X the coins are independent; a guess of an open coin is right with
probability at most 1, of another at most p, whatever the guesses are as functions of all Y. With K ~ Binomial(m, delta)
open coins, the number N of right ones of r guesses obeys, for every rule that guesses r of the coins,

    Pr[N >= c] <= sum_k Pr[K = k] Pr[k + W_(r - k) >= c],   W_n ~ Binomial(n, p).

**Gaussian.** Let P_0, P_1 obey F_mu(x) = Phi(mu + Phi^-1(x)), and let coin i be guessed from Y_i alone: by whether
its score exceeds 0. A right guess has probability (tpr + 1 - fpr) / 2 <= max_x (F_mu(x) + 1 - x) / 2 = Phi(mu / 2), the
maximum at x = Phi(-mu / 2). The m guesses are independent, so N is at most Binomial(m, Phi(mu / 2)) in law, and Clopper
and Pearson's lower end a of its rate gives mu >= 2 Phi^-1(a).

Shapes: m coins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, betaincinv, expit, logit, ndtr, ndtri

from fedpriv.privacy.canaries import CanaryAudit
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.trade_offs import (
    GAUSSIAN,
    SharperBound,
    binomial_log_chances,
    binomial_quantile,
    largest_refuted,
)

#: Chance of more open coins than are counted, which the p-value contains.
UNCOUNTED = 1e-9


def independent_p_value(coins: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest chance of so many right guesses, of ``guesses`` of ``coins``, under (epsilon, delta)-privacy."""
    chances, uncounted = _opened(coins, delta)
    opened = np.arange(len(chances))
    further, rest = correct - opened, np.maximum(guesses - opened, 0)
    reached = np.where(further <= 0, 1.0, bdtrc(np.maximum(further - 1, 0), rest, expit(epsilon)))
    return min(1.0, float(chances @ reached) + uncounted)


@lru_cache(maxsize=16)
def _opened(coins: int, delta: float) -> tuple[NDArray[np.float64], float]:
    """Pr[K = k] for k = 0, 1, ..., and the rest, at most `UNCOUNTED`."""
    if delta == 0:
        return np.ones(1), 0.0
    most = int(binomial_quantile(1 - UNCOUNTED, coins, delta))
    return np.exp(binomial_log_chances(np.arange(most + 1), coins, delta)), float(bdtrc(most, coins, delta))


def independent_epsilon(coins: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The epsilon that so many right guesses refute at this error probability, from below; 0 where none is."""
    return largest_refuted(lambda epsilon: independent_p_value(coins, guesses, correct, epsilon, delta) < error)


def independent_mu(coins: int, correct: int, error: float) -> float:
    """The mu below which every F_mu is refuted by so many right guesses of all coins."""
    if 2 * correct <= coins:
        return 0.0
    return max(0.0, 2 * float(ndtri(betaincinv(correct, coins - correct + 1, error))))


def audit_independent(
    took_part: NDArray[np.bool_],
    scores: NDArray[np.float64],
    *,
    delta: float,
    confidence: float,
    guesses: int,
    gaussian: bool = True,
) -> CanaryAudit:
    """Bounds from coins [m] and their scores [m], finite; high: it took part, and around 0: it cannot be told. Each
    score is computed from its own transcript. guesses: for how many of the coins, those with the highest and the lowest
    scores, (epsilon, delta) is bounded, fixed before. gaussian: whether the Gaussian bound stands beside it.
    """
    if took_part.shape != scores.shape or took_part.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(f"need a coin and a finite score for each canary, got {took_part.shape} and {scores.shape}")
    coins, error = len(took_part), 1 - confidence
    if not 0 < guesses <= coins:
        raise ValueError(f"guesses={guesses}: allowed are 1 to the {coins} coins")
    order, ins = np.argsort(scores, kind="stable"), guesses // 2
    right = int(took_part[order[coins - ins :]].sum() + (~took_part[order[: guesses - ins]]).sum())
    epsilon, most = (independent_epsilon(coins, guesses, number, delta, error) for number in (right, guesses))
    found = CanaryAudit(epsilon, confidence, delta, coins, guesses, right, most)
    if not gaussian:
        return found
    agree = int((took_part & (scores > 0)).sum() + (~took_part & (scores < 0)).sum())
    shown, best = (independent_mu(coins, number, error) for number in (agree, coins))
    figures = (gaussian_epsilon(shown, delta), delta, confidence, gaussian_epsilon(best, delta))
    sharper = SharperBound(GAUSSIAN.name, GAUSSIAN.assumes, shown, *figures)
    return CanaryAudit(epsilon, confidence, delta, coins, guesses, right, most, sharper=(sharper,))


def planned_guesses(coins: int, mu: float, delta: float, error: float) -> int:
    """How many coins to guess so that a Gaussian mechanism of this mu shows most, about: a choice before the run, from
    what is verified. Any choice is sound.
    """
    at = np.linspace(0, 5 + mu, 200)  # of |score|, in units of the noise
    rights, wrongs = ndtr(mu / 2 - at), ndtr(-mu / 2 - at)
    number = np.maximum(1, np.floor(coins * (rights + wrongs)))
    right = np.floor(number * rights / np.maximum(rights + wrongs, 1e-300))
    rate = np.where(right > 0, betaincinv(np.maximum(right, 1), number - right + 1, error), 0.0)
    least = rate - coins * delta / number
    shown = np.where(least > 0.5, logit(np.clip(least, 0.5, 1 - 1e-12)), 0.0)
    return int(number[np.argmax(shown)]) if shown.max() > 0 else max(1, coins // 8)


def expected_independent(coins: int, mu: float, delta: float, confidence: float) -> tuple[float, float]:
    """(epsilon for any mechanism, epsilon if Gaussian) that a Gaussian mechanism of this mu shows in the median."""
    error = 1 - confidence
    guesses = planned_guesses(coins, mu, delta, error)
    at = _root(lambda x: float(ndtr(mu / 2 - x) + ndtr(-mu / 2 - x)) - guesses / coins, 5 + mu)
    rate = float(ndtr(mu / 2 - at) / (ndtr(mu / 2 - at) + ndtr(-mu / 2 - at)))
    right, agree = (int(binomial_quantile(0.5, *law)) for law in ((guesses, rate), (coins, ndtr(mu / 2))))
    shown = independent_epsilon(coins, guesses, right, delta, error)
    return shown, gaussian_epsilon(independent_mu(coins, agree, error), delta)


def _root(falling: Callable[[float], float], high: float) -> float:
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return low
