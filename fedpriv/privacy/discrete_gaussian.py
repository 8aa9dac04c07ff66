"""What a sum of discrete Gaussians hides: rho-zCDP of the distributed discrete Gaussian.

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
    square = 2 * math.pi**2 * sigma**2 * k / (k + 1)
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
