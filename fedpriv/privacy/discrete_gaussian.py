"""What a sum of discrete Gaussians hides: by zCDP, and within a hair of the continuous Gaussian of the same noise.

P. Kairouz, Z. Liu, T. Steinke, ICML 2021 (Theorem 1), with the constants of the proof below. Noise of u clients, each
N_Z(0, s^2), P(x) ~ exp(-x^2/(2 s^2)), on each of d coordinates of whole numbers that two data sets move by v. The sum
is

    rho-zCDP with rho = (1/2) sum_i (|v_i|/(sqrt(u) s) + T)^2
                     <= (1/2) (|v|^2/(u s^2) + 2 T |v|_1/(sqrt(u) s) + T^2 d),
    T = 2 sum_(k=1)^(u-1) ln((1 + e_k)/(1 - e_k)),   e_k = 2 sum_(j>=1) exp(-2 pi^2 s^2 j^2 k/(k + 1)).

Proof, for one coordinate.
- Let Q_k = N_Z(0, k s^2). In the convolution of Q_k and Q_1 at x the exponents add up to -x^2/(2(k + 1)s^2) and
  -(y - c)^2/(2 t^2) with t^2 = s^2 k/(k + 1) and some c. By Poisson's summation formula the sum over y of the second is
  sqrt(2 pi) t (1 + 2 sum_j cos(2 pi j c) exp(-2 pi^2 t^2 j^2)), between 1 - e_k and 1 + e_k times a constant. So
  Q_k * Q_1 = Q_(k+1) times a factor that lies, for all x, between a and a (1 + e_k)/(1 - e_k); as both laws have mass
  1, it is also between (1 - e_k)/(1 + e_k) and its inverse.
- A convolution keeps such bounds. So the law P of the sum of u noises is Q_u times a factor within exp(+-T/2).
- Shifted by v, P goes to P: from P_v to Q_v, from Q_v to Q, from Q to P. Divergences of the first and the last are at
  most a (T/2)^2/2 at order a (what lies within a factor exp(c) everywhere is c^2/2-zCDP: Bun and Steinke 2016, Prop.
  3.3), of the middle a v^2/(2 u s^2) (Canonne, Kamath, Steinke 2020, Prop. 5). If D_a(P|Q) <= a p and D_a(Q|R) <= a q
  for all a > 1, then D_a(P|R) <= a (sqrt p + sqrt q)^2: Hoelder's inequality gives, for every w > 1,
  D_a(P|R) <= a p (wa - 1)/(a - 1) + q (wa - 1)/(w - 1) (Mironov 2017, Prop. 11); at w - 1 = z (a - 1)/a this is
  a (p (1 + z) + q (1 + 1/z)), least at z = sqrt(q/p). Twice, this gives the sum above.
- Coordinates are independent, and divergences add up. Whole numbers have |v|_1 <= |v|^2.
A sum with the noise of more clients is this one with further independent noise: post-processing, as is any modulus. So
u is the floor of survivors less the colluders, for T as well.

**Nearly Gaussian.** zCDP gives up a tenth of epsilon when it becomes (epsilon, delta). Instead, of all releases:

    delta(epsilon) <= exp(A) delta_mu(epsilon - A),   mu^2 = sum of V, A = sum of shifts (`shifted_epsilon`),

with delta_mu of `gaussian_dp`. One release with m = |v|/(sqrt(u) s) and s'^2 = u s^2, whatever v is, has

    V = m^2 (1 + t/s'^2),   shift = m^2 t/(2 s'^2) + k (T + ln((1 + e)/(1 - e))),
    e = 2 sum_(j>=1) exp(-2 pi^2 j^2 t s'^2/(s'^2 + t)),   any t > 0,   k = min(d, |v|^2) coordinates that v can change.

Proof. Let h_c(P|Q) = sum (P - c Q)_+, c = exp(epsilon), which is delta(epsilon).
- From the sum to Q_u = N_Z(0, s'^2): a factor within exp(+-T/2) on each of k coordinates, in both worlds, so
  h_c <= exp(kT/2) h_c' of the ideal laws, c' = c exp(-kT). The other coordinates have one law in both.
- Of ideal laws the loss under Q (y is noise of the other world, v a shift) is *linear* in y:
  l = (2 <y, v> - |v|^2)/(2 s'^2), and h_c = E (exp(l) - c)_+: a convex function of y, and increasing in l.
- Let N ~ N(0, t) be independent. E f(X) <= E f(X + N) for convex f (Jensen). For X ~ N_Z(0, s'^2) the density of X + N
  at z is that of N(0, s'^2 + t) times a constant and a sum over x of exp(-(x - c_z)^2/(2 t s'^2/(s'^2 + t))): by
  Poisson's formula, as above, between 1 - e and 1 + e times a constant, so the density is at most (1 + e)/(1 - e) times
  that of N(0, s'^2 + t). On k coordinates: E f(y) <= ((1 + e)/(1 - e))^k E f(g) for f >= 0, g Gaussian.
- Under g the loss is normal with mean -m^2/2 and variance V; it is a normal l' of mean -V/2 and the same variance plus
  a = (V - m^2)/2, and E (exp(l' + a) - c)_+ = exp(a) delta_mu(epsilon - a). A longer v gives more: V and a grow with
  m, and E (exp(l' + a) - c)_+ grows with both.
- Rounds, the last one first: let b be the loss of all that came before a release. Given that, E (exp(b + l) - c)_+ is
  at most a factor times E (exp(b + L) - c')_+, L the normal loss, which is again convex and increasing in b. So V and
  shifts of releases add up, adaptively chosen ones too. As a function of b it is a mean of (exp(b) - c'')_+, so a
  release of another mechanism is at most its dominating pair there: what `histories.refine` composes adds up as well.
The other direction is the same by symmetry: y and -y have one law.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


def closeness(sigma: float, noises: int) -> float:
    """T; infinite where noises are too small for the bound."""
    if sigma == 0:
        return math.inf if noises > 1 else 0.0
    k = np.arange(1, noises)
    square = 2 * math.pi**2 * sigma * sigma * k / (k + 1)
    # beyond j = 8 the terms are far below the one before at every sigma that passes: a geometric rest
    e = 2 * sum(np.exp(-square * j * j) for j in range(1, 9)) + 4 * np.exp(-square * 81)
    if noises > 1 and float(np.max(e)) >= 0.5:
        return math.inf
    return float(2 * np.sum(np.log1p(e) - np.log1p(-e))) if noises > 1 else 0.0


@lru_cache(maxsize=10_000)  # asked at every release of a run
def sum_rho(sigma: float, noises: int, dimension: int, l2: float) -> float:
    """rho of the sum of so many noises of parameter sigma, for an L2 sensitivity of whole numbers, in grid steps."""
    if sigma == 0 or math.isinf(tau := closeness(sigma, noises)):
        return math.inf if l2 else 0.0
    shift = l2 / (math.sqrt(noises) * sigma)
    l1 = min(math.sqrt(dimension) * l2, l2 * l2) / (math.sqrt(noises) * sigma)
    return 0.5 * (shift * shift + 2 * tau * l1 + tau * tau * dimension)


@lru_cache(maxsize=10_000)
def nearly_gaussian(sigma: float, noises: int, dimension: int, l2: float) -> tuple[float, float] | None:
    """(1/sqrt(V), shift) of the sum of so many noises, as `sum_rho`; None where no Gaussian is close."""
    square, tau = noises * sigma * sigma, closeness(sigma, noises)
    if not 0.05 < square < math.inf or not 0 < (m := l2 / math.sqrt(square)) < 1e100 or math.isinf(tau):
        return None
    changed = min(float(dimension), l2 * l2)
    # t: any is sound; near the least of m (2 + m/2) t/s'^2, its cost at a quantile of 4, and 4 k exp(-2 pi^2 t), of e
    more = max(math.log(8 * math.pi**2 * changed * square / (m * (2 + m / 2))), 2.0) / (2 * math.pi**2)
    exponent = 2 * math.pi**2 * more * square / (square + more)
    e = 2 * sum(math.exp(-exponent * j * j) for j in range(1, 9)) + 4 * math.exp(-exponent * 81)
    if e >= 0.5:
        return None
    shift = m * m * more / (2 * square) + changed * (tau + math.log1p(e) - math.log1p(-e))
    return 1 / (m * math.sqrt(1 + more / square)), shift
