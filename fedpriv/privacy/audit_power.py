"""What an audit would show of a mechanism that is exactly at its verified epsilon: below that, silence is no news.

A mechanism that is (e, d)-private for every point of a curve admits no rule with tpr > e^e fpr + d, nor with
1 - fpr > e^e (1 - tpr) + d [Kairouz, Oh and Viswanath, ICML 2015, Theorem 2.1]. The best rule of a mechanism that has
no more privacy than its curve meets the least of these bounds at every fpr [Dong, Roth and Su, JRSS-B 2022, Proposition
6]. `expected_bound` gives that rule an unlucky draw, and the auditor's own arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedpriv.privacy.auditor import epsilon_bound
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import Event

#: (epsilon, delta), each of which the mechanism satisfies.
Curve = Sequence[tuple[float, float]]

#: Points of a curve: of Gaussians alone in closed form, else each by every accountant, which takes up to half a second.
MANY, FEW = 64, 9
#: Thresholds tried.
THRESHOLDS = 512


def verified_curve(events: Sequence[Event], delta: float) -> list[tuple[float, float]]:
    """The verified epsilon of ``events`` at ``delta`` and at other deltas; empty where it is infinite."""
    closed = all(event.gaussian_multiplier is not None for event in events)
    deltas = sorted({delta, *np.geomspace(min(1e-7, delta or 1e-7), 0.5, MANY if closed else FEW).tolist()})
    found = [(compose(events, point).epsilon, point) for point in deltas]
    return [point for point in found if math.isfinite(point[0])]


def best_rates(curve: Curve, fpr: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest true positive rates that the curve allows at these false positive rates."""
    most = np.ones_like(fpr)
    for epsilon, delta in curve:
        if epsilon < 700:  # beyond, e^epsilon is no number, and the line bounds nothing
            most = np.minimum(most, math.exp(epsilon) * fpr + delta)
        most = np.minimum(most, 1 - math.exp(-epsilon) * (1 - delta - fpr))
    return np.maximum(most, fpr)


def expected_bound(curve: Curve, trials: int, delta: float, confidence: float, looks: int = 1) -> float:
    """The audited epsilon that the best rule reaches in at least ``confidence`` of audits of a mechanism that has no
    more privacy than ``curve``; 0 for an empty curve, of which nothing is known.

    trials: measured in each world. looks: bounds among which the error 1 - confidence is divided.
    """
    if not curve:
        return 0.0
    ends = np.geomspace(0.01 / trials, 0.5, THRESHOLDS // 2)
    fpr = np.concatenate([ends, 1 - ends])
    unlucky = (1 - confidence) / 2  # for each of two rates
    false = binom.ppf(1 - unlucky, trials, fpr)
    true = binom.ppf(unlucky, trials, best_rates(curve, fpr))
    bounds, _, _ = epsilon_bound(false, true, trials, delta, 1 - (1 - confidence) / looks)
    return float(bounds.max())
