"""The cap of PrivUnit: its height, its probabilities and its moments, for any dimension and epsilon.

V is uniform on the sphere of R^d, u a unit vector, T = <V, u>; a = (d - 1)/2, and X = (1 - T)/2 ~ Beta(a, a).
A cap is {T >= gamma}, gamma >= 0. Its measure is q; a release lies in it with probability p, where
p (1 - q) / ((1 - p) q) = e^epsilon, and is uniform within the cap and within the rest. With E = e^epsilon - 1:

    M = E[T; T >= gamma] = (1 - gamma^2)^a / ((d - 1) B(1/2, a))
    m = E[T of the release] = M (p/q - (1 - p)/(1 - q)) = M E / (1 + q E)
    E[T^2 of the release] = (1 + gamma (d - 1) m) / d

The last line: with C = 1/B(1/2, a), the derivative of t (1 - t^2)^a is (1 - t^2)^(a - 1) (1 - d t^2), so that
d E[T^2; T >= gamma] = q + C gamma (1 - gamma^2)^a = q + gamma (d - 1) M.

The best gamma is at least 0: M is even in gamma and 1 + q E falls with gamma. There, dM/dgamma = -gamma f and
dq/dgamma = -f, f the density of T, give gamma = m. Any gamma is private; a wrong one costs only length.

Sources: Bhowmick et al., "Protection against reconstruction" (2018); Feldman and Talwar, "Lossless compression of
efficient private local randomizers" (2021); Asi, Feldman and Talwar, "Optimal algorithms for mean estimation under
local differential privacy" (2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.laws import Vector

#: Largest epsilon of one release. Beyond it e^epsilon is not far from leaving float64.
LARGEST_EPSILON = 500.0
_SMALLEST_EPSILON = 1e-6
#: Below e^-680 the incomplete beta function is computed in logarithms.
_LOG_LEAST = -680.0
_SERIES_TERMS = 100_000


@dataclass(frozen=True)
class Cap:
    """The cap of one (dimension, epsilon). half_height: x = (1 - gamma)/2, which keeps its digits where gamma is 1.

    inside: p; outside: 1 - p; log_measure: ln q; mean: m.
    """

    dimension: int
    epsilon: float
    half_height: float
    log_measure: float
    inside: float
    outside: float
    mean: float

    @property
    def gamma(self) -> float:
        return 1.0 - 2.0 * self.half_height

    @property
    def measure(self) -> float:
        """q; 0 where it is too small for a float."""
        return math.exp(self.log_measure)

    @property
    def mean_square(self) -> float:
        """E[T^2] of a release."""
        return (1.0 + self.gamma * (self.dimension - 1) * self.mean) / self.dimension


@lru_cache(maxsize=1024)
def best_cap(dimension: int, epsilon: float) -> Cap:
    """The cap whose releases are shortest. d = 1 is randomised response on the sign.

    Raises OptionError unless dimension >= 1 and 1e-6 <= epsilon <= 500.
    """
    if dimension < 1:
        raise OptionError("dimension", dimension, "must be at least 1")
    if not _SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise OptionError("epsilon", epsilon, f"must be from {_SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}")
    if dimension == 1:
        outside = 1.0 / (1.0 + math.exp(epsilon))
        return Cap(1, epsilon, 0.0, -math.log(2), 1.0 - outside, outside, math.tanh(epsilon / 2))

    from scipy.optimize import minimize_scalar  # seconds to import: only where a cap is looked for

    def length(log_q: float) -> float:
        return -_log_mean(dimension, epsilon, log_q, _half_height(dimension, log_q))

    # q e^epsilon is more than 1/(1 + epsilon) at the best cap of every dimension, and q is at most 1/2
    found = minimize_scalar(length, bounds=(-epsilon - 8.0, -math.log(2)), method="bounded", options={"xatol": 1e-7})
    log_q = float(found.x) if -found.fun >= -length(-math.log(2)) else -math.log(2)
    x = _half_height(dimension, log_q)
    inside_odds = epsilon + log_q - math.log1p(-math.exp(log_q))  # ln p/(1 - p)
    outside = 1.0 / (1.0 + math.exp(inside_odds)) if inside_odds < 700 else math.exp(-inside_odds)
    mean = math.exp(_log_mean(dimension, epsilon, log_q, x))
    return Cap(dimension, epsilon, x, log_q, 1.0 - outside, outside, mean)


def _log_mean(dimension: int, epsilon: float, log_q: float, x: float) -> float:
    """ln m of the cap {X <= x} of measure q."""
    from scipy.special import betaln

    a = (dimension - 1) / 2
    log_e = math.log(math.expm1(epsilon))
    sides = math.log(4 * x) + math.log1p(-x) if x > 0 else math.log(4) + _log_small_height(a, log_q)
    log_m = a * sides - math.log(dimension - 1) - float(betaln(0.5, a))
    joint = log_q + log_e
    return log_m + log_e - (math.log1p(math.exp(joint)) if joint < 700 else joint)


def _log_small_height(a: float, log_q: float) -> float:
    """ln x where x itself underflows: I_x(a, a) = x^a / (a B(a, a)) (1 + O(x))."""
    from scipy.special import betaln

    return (log_q + math.log(a) + float(betaln(a, a))) / a


def _half_height(dimension: int, log_q: float) -> float:
    return float(tail_quantile(dimension, np.array([log_q]))[0])


# --- the law of X = (1 - T)/2 --------------------------------------------------------------------------------


def tail_quantile(dimension: int, log_tail: Vector) -> Vector:
    """x with P(X <= x) = exp(log_tail), for ln of probabilities from 0 down to any depth (float64 [...]); d >= 2.

    Relative error of the probability below 1e-9 (a test holds it against 50 digits).
    """
    from scipy.special import betaincinv

    a = (dimension - 1) / 2
    found: Vector = np.asarray(betaincinv(a, a, np.exp(np.maximum(log_tail, _LOG_LEAST))), dtype=np.float64)
    deep = log_tail < _LOG_LEAST
    if deep.any():
        found[deep] = [_deep_quantile(a, float(value)) for value in log_tail[deep]]
    return found


def _deep_quantile(a: float, log_tail: float) -> float:
    """Newton's method on ln I_x(a, a) as a function of ln x, which is concave: no step passes the root twice."""
    y = _log_small_height(a, log_tail)
    y = min(y, math.log(0.499))
    if y < -300:  # the first term of the series is all of it
        return math.exp(y) if y > -745 else 0.0
    for _ in range(200):
        x = math.exp(y)
        value, slope = _log_tail(a, x)
        step = (log_tail - value) / slope
        y = min(y + step, math.log(0.49999999))
        if abs(step) < 1e-15 * max(1.0, abs(y)):
            break
    return math.exp(y)


def _log_tail(a: float, x: float) -> tuple[float, float]:
    """(ln I_x(a, a), its derivative by ln x) for x < 1/2: x^a (1-x)^a / (a B(a, a)) times F(2a, 1; a + 1; x)."""
    from scipy.special import betaln

    total, term = 1.0, 1.0
    for k in range(_SERIES_TERMS):
        term *= (2 * a + k) / (a + 1 + k) * x
        total += term
        if term < 1e-17 * total:
            break
    log_front = a * (math.log(x) + math.log1p(-x)) - math.log(a) - float(betaln(a, a))
    return log_front + math.log(total), a / ((1 - x) * total)
