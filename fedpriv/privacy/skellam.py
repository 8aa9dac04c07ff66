"""Bounds of Skellam noise, alone or in a sum: by Renyi divergences of every order, and by a Gaussian close to it.

N. Agarwal, P. Kairouz, Z. Liu, NeurIPS 2021, have one for whole orders; this one holds for all, outside an event of
probability ``delta``, and is the Gaussian's of the same variance but for a factor of about 1 + ln(2d/delta)/(4m).
Skellam numbers add up to Skellam numbers: m is the sum of the variances.

P(x) = exp(-m) I_x(m) on each of d coordinates of whole numbers that two data sets move by v, m >= 3. The bound:

    (a - 1) D_a <= d tau + a (a - 1) curvature/2 sum v_i^2 .

The proof is that of `fedpriv.privacy.binomial`, which asks of the law b only: it is even and log-concave, on |x| <= r
its second differences of -ln b are at most L and its steps ln b(x)/b(x+1) at most D, and its mass beyond r is small.
For P:
- It is even, and log-concave as the convolution of two Poisson laws, one reflected.
- Steps. With r_x = I_(x+1)/I_x, 1/r_(x-1) - r_x = 2x/m. Log-concavity is r_(x+1) <= r_x, so 1/r_x - r_x <= 2(x + 1)/m
  and r_x >= exp(-asinh((x + 1)/m)): D = asinh((r + 1)/m). Then r_x = 1/(2(x + 1)/m + r_(x+1)) is at most
  1/(2(x + 1)/m + exp(-asinh((x + 2)/m))), the slope q of the geometric tails that replace P beyond r + 1.
- Second differences. exp(-L(x)) = r_x/r_(x-1) = r_x (r_x + 2x/m). Claim: 1 - exp(-L(x)) <= w with
  w = (x^2 + m^2 - 1)^(-1/2), for x >= 0, m >= 3; so L <= -ln(1 - (m^2 - 1)^(-1/2)) everywhere. The left side,
  1 - r_x^2 - 2x r_x/m, falls with r_x and is w at p = -x/m + sqrt(x^2/m^2 + 1 - w). So p <= r_x is to be shown. As
  functions of m, r_x' = 1 - r_x^2 - (2x + 1) r_x/m, and p <= r_x stays true from where it holds if
  p' <= 1 - p^2 - (2x + 1) p/m, that is (m p)' <= m w. Since w' = -m w^3, with y = m^2 w^3 this says
  1 - w + y/2 <= sqrt(1 + w^2 - y), which follows from 2y - wy + y^2/4 <= 2w. The left side rises with y, and
  y <= w + w^3; there it says 2w - w^2 + (1 + w^2)^2/4 <= 1, true for w <= 0.4, that is x^2 + m^2 >= 7.25.
  Where it holds to begin with: for x >= 3 near m = 0, as p/m -> (1 - (x^2 - 1)^(-1/2))/(2x) < 1/(2x + 2), the limit of
  r_x/m; for x = 0, 1, 2 at m = 3, where p = 0.8040, 0.5486, 0.4084 and r_x = 0.8100, 0.5679, 0.4275.
- Mass. E exp(t X) = exp(m (cosh t - 1)), so P[X >= R] <= exp(-h(R)), h of `laws.skellam_exponent`. R of the window has
  2 d exp(-h(R)) <= delta, and the geometric tails add 2 exp(-h(r + 1))/(1 - q) at most.

**Nearly Gaussian**, as `fedpriv.privacy.discrete_gaussian` says it and composes it: outside an event of probability
``delta``, V = G |v|^2 and shift = (G - K) |v|^2/2 + k ln(1 + tau), k = min(d, |v|^2), where tau is the mass that the
tails add, K <= second differences of -ln P on |x| <= r <= L, and G = L (exp(L/2) + D^2/3). Proof, with f = -ln of the
law with its tails, d(x) = f(x) - f(x - 1), e(x) = (d(x) + d(x + 1))/2, which is odd:
- In the window the loss of a coordinate that moves by v > 0 is f(y) - f(y - v) = sum_(j<v) d(y - j) <= v d(y) -
  K v (v - 1)/2 <= v e(y) - K v^2/2, y being the other world's noise. So all is shown if E g(e(y)) <= E g(sqrt(G) Z) for
  convex g and normal Z: sums of independent terms keep that order, their variance is V and their mean -K |v|^2/2.
- It holds if A_n = sum_(x>=n) e(x) P(x) <= B(u_n) for all n, with u_n = P[y >= n], B = sqrt(G) phi(Phi^-1), since
  E (e(y) - a)_+ = max_n (A_n - a u_n), and E (sqrt(G) Z - a)_+ = max_u (B(u) - a u). B is concave, B'' B = -G.
- A_n <= exp(L/2) p, p = (P(n - 1) + P(n))/2: for x >= 0, e <= sinh(e), and sinh(e(x)) P(x) is (P(x - 1) - P(x + 1))/2
  times the exponential of half a second difference; sum over x >= n. A_n = A_(1-n), for n <= 0.
- Suppose A_n > B(u_n) somewhere. Let w > 1 be the largest ratio, taken at n >= 1 (else mirror; not in the tails, where
  A_n/u_n is constant, while B is strictly concave with B(0) = 0). The polygon of the points (u_n, A_n), of slopes e(n)
  before and e(n - 1) after the n-th, touches w B there from below. It bends by e(n) - e(n - 1) <= L, and the chords of
  w B by no more: by the integral of w G/B with a hat's weight, of area p and centre c = u_n + (P(n - 1) - P(n))/3. As
  1/B is convex, L >= w G p/B(c). B is below its tangent, whose slope is at most e(n)/w: w B(c) <=
  A_n + e(n) (P(n - 1) - P(n))/3 <= p (exp(L/2) + D^2/3), for P(n - 1) - P(n) = 2 p tanh(d(n)/2) and d, e <= D.
  So w^2 G <= L (exp(L/2) + D^2/3) = G, against w > 1.
- K. Claim: 1 - exp(-second difference) >= w = ((x + 1)^2 + m^2 + 3)^(-1/2) for x >= 0; so K is w at r. As above for L,
  with p >= r_x to be shown, for which (m p)' >= m w is enough: 1 - w + y/2 >= sqrt(1 - C w^2 - y), y = m^2 w^3 and
  C = 2x + 4. Squared: 2y - 2w + (1 + C) w^2 - w y + y^2/4 >= 0. Since y = w - (x^2 + C) w^3 <= w, that is true where
  C >= 2 w (x^2 + C), and 1/w >= sqrt(x^2 + C) >= 2 (x^2 + C)/C, as C^2 >= 4 (x^2 + C). Near m = 0 it holds: p is
  positive for x = 0, and p/m -> (1 - w)/(2x) > 1/(2x + 2) for x > 0.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedpriv.mechanisms.laws import Vector, skellam_exponent

#: The bound on second differences is proven from here on.
LEAST_VARIANCE = 3.0


def skellam_window(variance: float, dimension: int, delta: float) -> int:
    """R: all of ``dimension`` Skellam numbers stay this close to zero, except with probability delta (Chernoff)."""
    wanted = math.log(2 * dimension / delta)
    low, high = 0.0, 1.0
    while skellam_exponent(high, variance) < wanted:
        low, high = high, 2 * high
    while high - low > max(0.5, 1e-12 * high):
        middle = (low + high) / 2
        low, high = (middle, high) if skellam_exponent(middle, variance) < wanted else (low, middle)
    return math.ceil(high)


def skellam_curvature(variance: float, reach: float) -> float:
    """L cosh(D/2) up to ``reach``."""
    second_difference = -math.log1p(-1 / math.sqrt(variance * variance - 1))
    return second_difference * math.cosh(math.asinh((reach + 1) / variance) / 2)


def skellam_renyi(variance: float, dimension: int, l2: float, delta: float, orders: Vector) -> Vector:
    """Renyi divergence at each order (> 1) outside an event of probability ``delta``; infinite for a variance below 3.

    variance: of a sum's whole noise; l2: what two data sets change; both in steps of the grid.
    """
    if variance < LEAST_VARIANCE or not math.isfinite(l2):
        return np.full(len(orders), np.inf)
    reach, excess = _reach(variance, dimension, l2, delta)
    curvature = skellam_curvature(variance, reach)
    found: Vector = orders * (curvature / 2) * l2 * l2 + dimension * excess / (orders - 1)
    return found


def _reach(variance: float, dimension: int, l2: float, delta: float) -> tuple[int, float]:
    """(r, and the mass that geometric tails beyond it add to a coordinate)."""
    reach = skellam_window(variance, dimension, delta) + math.ceil(l2 * (1 + 1e-9))
    slope = 1 / (2 * (reach + 1) / variance + math.exp(-math.asinh((reach + 2) / variance)))
    return reach, 2 * math.exp(-skellam_exponent(reach + 1, variance)) / (1 - slope)


@lru_cache(maxsize=10_000)
def nearly_gaussian(variance: float, dimension: int, l2: float, delta: float) -> tuple[float, float] | None:
    """(1/sqrt(V), shift), with the arguments of `skellam_renyi`; None where no Gaussian is close."""
    if variance < LEAST_VARIANCE or not 0 < l2 < math.inf:
        return None
    reach, excess = _reach(variance, dimension, l2, delta)
    most = -math.log1p(-1 / math.sqrt(variance * variance - 1))
    least = 1 / math.sqrt((reach + 1) ** 2 + variance * variance + 3)
    gaussian = most * (math.exp(most / 2) + math.asinh((reach + 1) / variance) ** 2 / 3)
    shift = (gaussian - least) / 2 * l2 * l2 + min(float(dimension), l2 * l2) * math.log1p(excess)
    return 1 / (math.sqrt(gaussian) * l2), shift
