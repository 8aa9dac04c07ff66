"""Laws of whole-number noise: discrete Gaussian, Skellam, binomial. Each section has its proof."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedpriv.mechanisms.laws import Vector, skellam_exponent

# --- discrete gaussian ------------------------------------------------------------------------------------------------

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


# --- skellam ----------------------------------------------------------------------------------------------------------

"""Bounds of Skellam noise, alone or in a sum: by Renyi divergences of every order, and by a Gaussian close to it.

N. Agarwal, P. Kairouz, Z. Liu, NeurIPS 2021, have one for whole orders; this one holds for all, outside an event of
probability ``delta``, and is the Gaussian's of the same variance but for a factor of about 1 + ln(2d/delta)/(4m).
Skellam numbers add up to Skellam numbers: m is the sum of the variances.

P(x) = exp(-m) I_x(m) on each of d coordinates of whole numbers that two data sets move by v, m >= 3. The bound:

    (a - 1) D_a <= d tau + a (a - 1) curvature/2 sum v_i^2 .

The proof is that of the binomial law below, which asks of the law b only: it is even and log-concave, on |x| <= r
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

**Nearly Gaussian**, as of the discrete Gaussian above: outside an event of probability
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
def skellam_nearly_gaussian(variance: float, dimension: int, l2: float, delta: float) -> tuple[float, float] | None:
    """(1/sqrt(V), shift), with the arguments of `skellam_renyi`; None where no Gaussian is close."""
    if variance < LEAST_VARIANCE or not 0 < l2 < math.inf:
        return None
    reach, excess = _reach(variance, dimension, l2, delta)
    most = -math.log1p(-1 / math.sqrt(variance * variance - 1))
    least = 1 / math.sqrt((reach + 1) ** 2 + variance * variance + 3)
    gaussian = most * (math.exp(most / 2) + math.asinh((reach + 1) / variance) ** 2 / 3)
    shift = (gaussian - least) / 2 * l2 * l2 + min(float(dimension), l2 * l2) * math.log1p(excess)
    return 1 / (math.sqrt(gaussian) * l2), shift


# --- binomial ---------------------------------------------------------------------------------------------------------

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
