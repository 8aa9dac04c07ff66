"""Families of trade-off curves, and the lower bounds on epsilon that they turn errors into.

Let P and Q be the laws of what an observer sees in two neighbouring worlds. A curve F bounds every test of P against Q:
tpr <= F(fpr), in either direction [Dong, Roth and Su, "Gaussian differential privacy", JRSS-B 2022; F = 1 - f]. F is
concave and increasing. A family has one curve for each strength s >= 0, the stronger the larger, and s = 0 is F(x) = x.

**What each bound assumes.** With the stated confidence fpr <= fpr_upper and tpr >= tpr_lower (Clopper and Pearson). If
all tests obey F_s, then tpr_lower <= tpr <= F_s(fpr) <= F_s(fpr_upper). So every s with F_s(fpr_upper) < tpr_lower is
refuted, *whatever the mechanism is*: it does not obey F_s. What follows for epsilon depends on the family:

- `Approximate`: F_s *is* (s, delta)-privacy, hence epsilon >= s at delta. Nothing is assumed.
- `GAUSSIAN`: F_mu(x) = Phi(mu + Phi^-1(x)). That the mechanism is not mu-GDP does not say where its curve exceeds
  F_mu, and its epsilon at delta may be small. **Assumed**: the curve of the pair is F_mu' for some mu'. It is where all
  noise is Gaussian, does not depend on the data, and no sample hides who takes part: the worlds are two Gaussians of
  one covariance, for any number of releases [Corollary 3.3 there]. As F_mu is refuted, mu' > mu, and epsilon at delta
  is that of mu', at least that of mu. Without the assumption it remains a refutation of a *ledger* that states mu-GDP,
  as one of unsampled Gaussians does.

No knowledge of mu goes into a bound. Scalars and arrays alike; strengths are floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrik, betainccinv, betaincinv, betaln, ndtr, ndtri, xlog1py, xlogy

from fedpriv.common.files import json_number
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

Array = NDArray[np.float64]


class Family(Protocol):
    """One curve F_s for each strength s."""

    @property
    def name(self) -> str:
        """In a word or two."""
        ...

    @property
    def assumes(self) -> str:
        """What epsilon's bound rests on, in words; empty: nothing."""
        ...

    def least_fpr(self, strength: float, tpr: float) -> float:
        """The least fpr at which the curve allows this tpr: F_s^-1."""
        ...

    def strength(self, fpr: Array, tpr: Array) -> Array:
        """The least strength whose curve allows these rates, in both directions; 0 where none is needed."""
        ...

    def epsilon(self, strength: float, delta: float) -> float:
        """Of a mechanism whose curve is this one."""
        ...

    def largest(self, refuted: Callable[[float], bool]) -> float:
        """A strength, close to the largest, of which `refuted` is true; 0 where there is none. If it is true of one
        strength, it is true of all smaller ones.
        """
        ...


#: Of a strength that is searched for; and beyond it no curve is tried.
PRECISION, MOST = 1e-6, 1e3


def largest_refuted(refuted: Callable[[float], bool]) -> float:
    """`Family.largest` of a family with curves for all strengths, from below within `PRECISION`."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < MOST and refuted(high):
        low, high = high, 2 * high
    while high - low > PRECISION * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Approximate:
    """(s, delta)-privacy: F_s(x) = min(e^s x + delta, 1 - e^-s (1 - delta - x))."""

    delta: float
    name: str = "any mechanism"
    assumes: str = ""

    def least_fpr(self, strength: float, tpr: float) -> float:
        steep, flat = math.exp(-strength) * (tpr - self.delta), 1 - self.delta - math.exp(strength) * (1 - tpr)
        return min(1.0, max(0.0, steep, flat))

    def strength(self, fpr: Array, tpr: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = np.log(np.maximum(tpr - self.delta, 0) / fpr)
            flat = np.log(np.maximum(1 - fpr - self.delta, 0) / (1 - tpr))
        return np.maximum(0.0, np.nan_to_num(np.maximum(steep, flat), nan=0.0, posinf=np.inf, neginf=0.0))

    def epsilon(self, strength: float, delta: float) -> float:
        if delta < self.delta:
            raise ValueError(f"the curve is of delta {self.delta:g}, it says nothing at {delta:g}")
        return strength

    def largest(self, refuted: Callable[[float], bool]) -> float:
        return largest_refuted(refuted)


@dataclass(frozen=True)
class GaussianCurves:
    """mu-GDP: F_mu(x) = Phi(mu + Phi^-1(x))."""

    name: str = "Gaussian"
    assumes: str = "all noise is Gaussian, and no sampling hides who takes part"

    def least_fpr(self, strength: float, tpr: float) -> float:
        return float(ndtr(ndtri(tpr) - strength))

    def strength(self, fpr: Array, tpr: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.maximum(0.0, np.nan_to_num(ndtri(tpr) - ndtri(fpr), nan=0.0, posinf=np.inf, neginf=0.0))

    def epsilon(self, strength: float, delta: float) -> float:
        return gaussian_epsilon(strength, delta)

    def largest(self, refuted: Callable[[float], bool]) -> float:
        return largest_refuted(refuted)


GAUSSIAN = GaussianCurves()


@dataclass(frozen=True)
class SharperBound:
    """A lower bound on epsilon at `delta` under an assumption; true, if that is, with probability `confidence`.

    family: its name. assumes: in words. strength: what was shown without the assumption, that no curve of a lesser
    strength bounds the mechanism. attainable: the bound of a perfect attack of as many trials or coins.
    """

    family: str
    assumes: str
    strength: float
    epsilon_lower: float
    delta: float
    confidence: float
    attainable: float

    def to_json(self) -> dict[str, Any]:
        """As in summary.json."""
        figures = {name: json_number(getattr(self, name)) for name in ("strength", "epsilon_lower", "attainable")}
        return {"family": self.family, "assumes": self.assumes, "confidence": self.confidence, **figures}

    def __str__(self) -> str:
        return (
            f"epsilon >= {self.epsilon_lower:.3g} at delta {self.delta:g} if {self.assumes} "
            f"({100 * self.confidence:g}% confidence; a perfect attack would have shown {self.attainable:.3g})"
        )


def binomial_log_chances(number: NDArray[np.int64], trials: int, rate: float) -> Array:
    """log Pr[K = k], K ~ Binomial(trials, rate). scipy.stats has it too, and takes a second to import."""
    ways = -betaln(number + 1, trials - number + 1) - math.log1p(trials)
    found: Array = ways + xlogy(number, rate) + xlog1py(trials - number, -rate)
    return found


def binomial_quantile(chance: float, trials: int, rate: Array | float) -> Array:
    """The least k with Pr[K <= k] >= chance, of each rate."""
    number = np.ceil(bdtrik(chance, trials, rate))
    fewer = np.maximum(number - 1, 0)
    return np.where(np.equal(rate, 0), 0.0, np.where(bdtr(fewer, trials, rate) >= chance, fewer, number))


def rate_bounds(
    false_positives: NDArray[np.int64] | int, true_positives: NDArray[np.int64] | int, trials: int, confidence: float
) -> tuple[Array, Array]:
    """(fpr_upper, tpr_lower), each with half of the error [Clopper and Pearson 1934]."""
    fp, tp, error = np.asarray(false_positives, float), np.asarray(true_positives, float), (1 - confidence) / 2
    with np.errstate(invalid="ignore"):
        fpr_upper = np.where(fp < trials, betainccinv(fp + 1, trials - fp, error), 1.0)
        tpr_lower = np.where(tp > 0, betaincinv(tp, trials - tp + 1, error), 0.0)
    return fpr_upper, tpr_lower


def strength_bound(
    false_positives: NDArray[np.int64] | int,
    true_positives: NDArray[np.int64] | int,
    trials: int,
    confidence: float,
    family: Family = GAUSSIAN,
) -> Array:
    """The strength below which every curve of the family is refuted by a rule's errors, out of `trials` per world."""
    return family.strength(*rate_bounds(false_positives, true_positives, trials, confidence))


def sharper_bound(
    false_positives: int,
    true_positives: int,
    trials: int,
    *,
    delta: float,
    confidence: float,
    looks: int = 1,
    family: Family = GAUSSIAN,
) -> SharperBound:
    """The family's bound on epsilon. looks: bounds of which it may be the largest (Bonferroni)."""
    sure = 1 - (1 - confidence) / looks
    found = float(strength_bound(false_positives, true_positives, trials, sure, family))
    best = float(strength_bound(0, trials, trials, sure, family))
    epsilon, most = (family.epsilon(strength, delta) for strength in (found, best))
    return SharperBound(family.name, family.assumes, found, epsilon, delta, confidence, most)
