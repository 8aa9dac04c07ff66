"""What it costs to choose the best of several private runs: N. Papernot, T. Steinke, Hyperparameter Tuning with Renyi
Differential Privacy, ICLR 2022.

One trial Q draws its options at random, independently of the data and of other trials, runs, and returns (options,
model, score). The number K of trials is drawn from a law that is fixed before, K trials are carried out, and only the
best of them by score is published. A fixed number k costs up to k + 1 times epsilon (with a sharp threshold as its
score, a counterexample in their section 3.1.3); a random number hides how often was tried, and costs about
2 epsilon + log E[K] terms, whatever E[K] is. Scores must be computed on data that need no protection, or be private as
a part of Q.

Q's Renyi divergence of order l between neighbours is e(l), that of the chosen output e'(l). f: probability generating
function of K. Without ties in the score (they can be broken at random) the output y has the probability
f(Q(<= y)) - f(Q(< y)), which tests/privacy/test_private_selection.py computes exactly and holds against these bounds:

- `NegativeBinomial` (truncated: K >= 1), Theorem 2: for every l > 1 and l^ >= 1
  e'(l) <= e(l) + (1 + eta)(1 - 1/l^) e(l^) + (1 + eta) log(1/gamma)/l^ + log(E[K])/(l - 1).
- `Poisson` (K = 0: nothing is published), Theorem 6: where Q is (e^, d^)-private with e^ = log(1 + 1/(l - 1))
  b(l) = e(l) + E[K] d^ + log(E[K])/(l - 1).
  This bounds the outputs of K >= 1 alone, sum over y of A(y)^l A'(y)^(1-l) <= exp((l - 1) b(l)). "Nothing" has the
  probability e^-E[K] in both worlds and is an output as well, so exp((l - 1) e'(l)) <= e^-E[K] + exp((l - 1) b(l)).
  Without that term b(l) would be too small, even negative, for E[K] < 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special

from fedpriv.mechanisms.laws import ORDERS, Vector, renyi_to_epsilon
from fedpriv.privacy.composition import compose, renyi_curve
from fedpriv.privacy.events import Event

#: Of delta, what pays for the trials' own shares of it, where they have some.
_SHARE_FOR_TRIALS = 0.5


@dataclass(frozen=True)
class NegativeBinomial:
    """P(K = k) proportional to (1 - gamma)^k binom(k + eta - 1, k), k >= 1. eta: 1, geometric; 0, logarithmic."""

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (self.eta > -1 and 0 < self.gamma < 1):
            raise ValueError(f"eta={self.eta}, gamma={self.gamma}: eta must be more than -1, gamma in (0, 1)")

    @property
    def mean(self) -> float:
        if self.eta == 0:
            return (1 / self.gamma - 1) / math.log(1 / self.gamma)
        return self.eta * (1 - self.gamma) / (self.gamma * -math.expm1(self.eta * math.log(self.gamma)))

    def probability(self, trials: Vector) -> Vector:
        """P(K = k) at whole k >= 1."""
        k = np.asarray(trials, dtype=np.float64)
        if self.eta == 0:
            return (1 - self.gamma) ** k / (k * math.log(1 / self.gamma))
        weights = np.exp(special.gammaln(k + self.eta) - special.gammaln(k + 1) + k * math.log1p(-self.gamma))
        found: Vector = weights / (special.gamma(self.eta) * math.expm1(-self.eta * math.log(self.gamma)))
        return found

    def generating(self, at: Vector) -> Vector:
        """f(s) = E[s^K], 0 <= s <= 1."""
        inner = np.log1p(-(1 - self.gamma) * np.asarray(at, dtype=np.float64))
        if self.eta == 0:
            return np.asarray(inner / math.log(self.gamma))
        return np.asarray(np.expm1(-self.eta * inner) / math.expm1(-self.eta * math.log(self.gamma)))

    def curve(self, curve: Vector) -> Vector:
        """e'(l) at each of `ORDERS`, from e(l) [orders]. Theorem 2; l^ = 1 costs no e at all."""
        least = min(
            math.log(1 / self.gamma),
            float(np.min((1 - 1 / ORDERS) * curve + math.log(1 / self.gamma) / ORDERS)),
        )
        found: Vector = curve + (1 + self.eta) * least + math.log(self.mean) / (ORDERS - 1)
        return found

    def draw(self, rng: np.random.Generator) -> int:
        """K, by inversion."""
        uniform, total, k = rng.random(), 0.0, 0
        while True:
            block = np.arange(k + 1.0, k + 1025.0)
            sums = total + np.cumsum(self.probability(block))
            if sums[-1] >= uniform or sums[-1] <= total:
                return int(block[min(int(np.searchsorted(sums, uniform)), len(block) - 1)])
            total, k = float(sums[-1]), k + 1024


@dataclass(frozen=True)
class Poisson:
    """P(K = k) = mean^k e^-mean / k!"""

    mean: float

    def __post_init__(self) -> None:
        if not 0 < self.mean < math.inf:
            raise ValueError(f"mean={self.mean}: must be more than 0")

    def generating(self, at: Vector) -> Vector:
        return np.exp(self.mean * (np.asarray(at, dtype=np.float64) - 1))

    def curve(self, curve: Vector) -> Vector:
        """e'(l) at each of `ORDERS`, from e(l) [orders]. Theorem 6 and the output of K = 0."""
        close = np.log1p(1 / (ORDERS - 1))  # e^ of each l
        something: Vector = curve + self.mean * _deltas(curve, close) + math.log(self.mean) / (ORDERS - 1)
        with_nothing: Vector = np.logaddexp(-self.mean, (ORDERS - 1) * something) / (ORDERS - 1)
        return np.maximum(with_nothing, 0.0)

    def draw(self, rng: np.random.Generator) -> int:
        """K, which may be 0."""
        return int(rng.poisson(self.mean))


Trials = NegativeBinomial | Poisson


def _deltas(curve: Vector, epsilons: Vector) -> Vector:
    """delta at each epsilon of a Renyi curve: `renyi_to_epsilon` the other way round."""
    finite = np.isfinite(curve)
    orders, held = ORDERS[finite], curve[finite]
    logs = (orders - 1) * (held + np.log1p(-1 / orders) - epsilons[:, None]) - np.log(orders)
    return np.exp(np.minimum(0.0, logs.min(axis=1, initial=0.0)))


def with_mean(law: str, mean: float) -> Trials:
    """The law ``poisson``, ``geometric`` (eta = 1) or ``logarithmic`` (eta = 0) with E[K] = mean.

    Raises ValueError for another law, and for a mean of at most 1 (Poisson: of at most 0).
    """
    if law == "poisson":
        return Poisson(mean)
    etas = {"geometric": 1.0, "logarithmic": 0.0}
    if law not in etas or mean <= 1:
        raise ValueError(f"law={law}, mean={mean}: allowed: poisson, geometric, logarithmic; of more than 1 trial")
    eta = etas[law]
    if eta == 1:
        return NegativeBinomial(1.0, 1 / mean)
    low = optimize.brentq(lambda log: NegativeBinomial(eta, math.exp(log)).mean - mean, -700.0, -1e-9)
    return NegativeBinomial(eta, math.exp(low))


def selection_epsilon(events: Sequence[Event], delta: float, trials: Trials) -> float:
    """epsilon at delta of the best of K runs, each with these ``events`` (all that one unit releases in a run).

    Where events hold only outside an event of small probability d (their share of delta), a run is a mixture of one
    with the Renyi curve and, with probability d, another. No trial is of the second kind but with probability E[K] d,
    in either world: (1 + e^epsilon) E[K] d of delta pay for that, and must be at most half of it. Infinite where they
    are more, or where a release has no bound.
    """
    if not events:
        return 0.0
    if any(event.why_unbounded() for event in events):
        return math.inf
    curve = np.sum([event.count * renyi_curve(event) for event in events], axis=0)
    share = math.fsum(event.count * event.delta_share for event in events)
    left = delta if share == 0 else (1 - _SHARE_FOR_TRIALS) * delta
    epsilon = float(renyi_to_epsilon(trials.curve(curve), left))
    if share and not (math.isfinite(epsilon) and math.log(trials.mean * share) + np.logaddexp(0.0, epsilon) <= (
        math.log(_SHARE_FOR_TRIALS * delta)
    )):  # fmt: skip
        return math.inf
    return epsilon


def composed_epsilon(events: Sequence[Event], delta: float, runs: int) -> float:
    """epsilon at delta of ``runs`` runs with these events, all of which are published."""
    return compose([replace(event, count=runs * event.count) for event in events], delta).epsilon
