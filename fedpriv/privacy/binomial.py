"""Renyi bound of the binomial mechanism at every epsilon.

Noise s(Z - m/2), Z ~ Binomial(m, 1/2), on each of d coordinates of vectors on the grid of width s, which two data
sets move by whole numbers v of steps. The bound: outside an event of probability ``delta``, for every order alpha > 1,

    (alpha - 1) D_alpha <= d tau + alpha (alpha - 1) curvature / 2 * sum v_i^2 .

Proof, for one coordinate. Let b(x) be the law of x = Z - m/2, R the window with 2 d exp(-2 R^2/m) <= delta
(Hoeffding: all d coordinates stay in it except with probability delta), r = R + max |v| < m/2.
- On |x| <= r the second difference of -ln b is ln(1 + (m + 1)/(m^2/4 - x^2)), at least 0 and at most its value L at r.
  Let f = b up to one step beyond r, and geometric tails of the slope reached there: f >= b is even and log-concave
  on the whole lattice, the second differences of -ln f are at most L, and its steps Delta(x) = ln f(x)/f(x+1) at most
  D = ln((m/2 + r + 1)/(m/2 - r)) in size. Its mass is at most 1 + tau, by Hoeffding and a geometric sum.
- Inside the window both worlds' laws are f, shifted: the moment sum P^alpha Q^(1-alpha) is at most
  sum_x f(x) exp((alpha - 1) ln f(x)/f(x+v)) <= exp((alpha - 1) L v(v - 1)/2) G((alpha - 1) v + 1/2), for v > 0 (the
  case v < 0 is its mirror image), with G(t) = sum w(x) exp(t Delta(x)), w(x) = sqrt(f(x) f(x+1)): for
  ln f(x)/f(x+v) is a sum of v steps of which each exceeds the one before by L at most.
- G is even (Delta(-1-x) = -Delta(x)), G(1/2) = sum f, and G'(t) <= t L cosh(D/2) G(t) for t >= 0. For
  w 2 sinh(Delta/2) = f(x) - f(x+1), so with K(z) = (z/2)/sinh(z/2) a summation by parts gives
  G'(t) = sum_x f(x) [K(z) e^(tz)] between z = Delta(x-1) and Delta(x). Written as an integral and averaged with its
  mirror image, the integrand is t K cosh(tz) + K' sinh(tz) <= t cosh(tz), for K <= 1 and K' has the sign of -z;
  cosh is convex, so G' <= (t L/2) sum f(x) (cosh(t Delta(x)) + cosh(t Delta(x-1)))
  = t L sum w cosh(Delta/2) cosh(t Delta) <= t L cosh(D/2) G(t).
- Hence ln G(t) <= ln(1 + tau) + L cosh(D/2) (t^2 - 1/4)/2, which is the bound with curvature = L cosh(D/2).
Moments of independent coordinates, and of adaptive releases, multiply, and the conversion to (epsilon, delta) is
pointwise: neither needs P to be of mass 1. For large m, curvature is 4/m: the Gaussian of the same variance.
"""

from __future__ import annotations

import math

import numpy as np

from fedpriv.mechanisms.laws import Vector


def binomial_window(trials: int, dimension: int, delta: float) -> float:
    """R: all of ``dimension`` binomials stay this close to their mean, except with probability delta (Hoeffding)."""
    return math.sqrt(trials / 2 * math.log(2 * dimension / delta))


def binomial_curvature(trials: int, reach: float) -> float:
    """L cosh(D/2), of -ln of the law up to ``reach`` from the mean; infinite where the support ends before that."""
    half = trials / 2
    if reach + 1 >= half:
        return math.inf
    second_difference = math.log1p((trials + 1) / ((half - reach) * (half + reach)))
    steepest = math.log1p((2 * reach + 1) / (half - reach))
    return second_difference * math.cosh(steepest / 2)


def _excess_mass(trials: int, reach: float) -> float:
    """tau of the proof: twice a geometric sum from P[Z - m/2 >= reach], with the slope of one step before."""
    half = trials / 2
    return 2 * math.exp(-2 * reach * reach / trials) * (half + reach) / max(2 * reach - 1, 1e-9)


def rounded_square(distance: float, dimension: int) -> float:
    """Replaces sum v_i^2 for two vectors that are ``distance`` (L2, in steps) apart before random rounding.

    Rounded with the same uniforms, t_i = n + f apart, they end n + 1 apart with probability f, else n. Divergences are
    jointly convex, so the moments may be averaged over the uniforms, and the average is a product over coordinates. To
    first order (`binomial_renyi` adds the rest) that replaces v_i^2 by q(t_i) = n^2 + f(2n + 1) = t_i^2 + f(1 - f).
    - q(t) <= t^2 + 1/4: the sum is at most T^2 + d/4.
    - With c = T/sqrt(d) <= 1/2, q(t) <= (t^2/c + c)/2: below t = 1 by q(t) = t, above by the line before, as
      1/(2c) - 1 + c/2 >= 1/4. The sum is at most T sqrt(d).
    """
    root = math.sqrt(dimension)
    return distance * distance + dimension / 4 if 2 * distance >= root else distance * root


def binomial_renyi(
    trials: int, dimension: int, l2: float, linf: float, distance: float, delta: float, orders: Vector
) -> Vector:
    """Renyi divergence at each order (> 1) outside an event of probability ``delta``; infinite for too few trials.

    In steps of the grid: l2, linf of what two data sets change after rounding; distance: L2, before rounding (inf:
    unknown).
    """
    if trials == 0 or not math.isfinite(l2 + linf):
        return np.full(len(orders), np.inf)
    reach = binomial_window(trials, dimension, delta) + linf * (1 + 1e-9)
    curvature = binomial_curvature(trials, reach)
    if math.isinf(curvature):
        return np.full(len(orders), np.inf)
    scale = orders * (orders - 1) * (curvature / 2)
    # ln(1 + f(e^a - 1)) <= f (e^a - 1) <= f a (e^A - 1)/A for a = scale (2n + 1) <= A = scale (2 max|v| - 1)
    largest = scale * max(2 * linf * (1 + 1e-9) - 1, 1e-9)
    with np.errstate(over="ignore"):
        growth = np.expm1(largest) / largest
        squares = np.minimum(l2 * l2, growth * rounded_square(distance, dimension))
    found: Vector = orders * (curvature / 2) * squares + dimension * _excess_mass(trials, reach) / (orders - 1)
    return found
