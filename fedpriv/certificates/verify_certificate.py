# fmt: off
"""Checks a privacy certificate of fedpriv without fedpriv: python verify_certificate.py CERTIFICATE [OLDER] [key=HEX]
key: the public key that must have signed, got on another way than the certificate; OLDER: earlier certificates of its
ledger. Checked: signatures, the ledger's hash chain and head, the table of releases, and every epsilon, composed again
from the ledger's lines: losses on a grid (connect the dots, Doroshenko et al. 2022), convolved by FFT; Gaussians
alone by a closed form; whole-number noise in many dimensions by a theorem. An epsilon is equal (to 1 %), above (sound),
not verified, or FALSE (below the cost). Exit code: 0 verified, 1 false, 2 no certificate, 3 not verified."""
import hashlib, json, math, os, re, sys, time  # noqa: E401, I001
from collections import Counter
from contextlib import suppress
from functools import lru_cache, reduce
from types import SimpleNamespace as Values
import mpmath
import numpy as np
from scipy import fft, signal, spatial, special
INF, LARGEST, MOST_VALUES, MOST_CLIENTS, MOST_CELLS, STOP = math.inf, 64 << 20, 1 << 23, 10**6, 1 << 21, [math.inf]
WORDS, HEAD = ("unit", "adjacency", "observer"), ("id", "count", "head")
WHOLE = {*re.split(" ", "dimension noises k trials bits group_size population sample_size users")}
PLACE = {*re.split(" ", "with_previous before realised adaptive count round attempt client clients sequence sequences")}
NO_BOUND = {"mechanism": "no_bound", "reason": "torn, or noise chosen from earlier outputs"}
SEES_ALL, SEES_LESS = ("server", "server+members", "secure-sum"), ("trusted-server", "public")
THREATS = ("client", "example", "person"), ("replace-one", "zero-out", "add-or-remove-one"), SEES_ALL + SEES_LESS
canonical, NO_WAIT = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode, getattr(os, "O_NONBLOCK", 0)
class Unknown(Exception): pass  # no method for it here, or it would take too long: the figure is not verified
def number(value, least=0, kinds=(int, float), most=1e300):  # finite, or the text "inf". Raises ValueError
    if value == "inf" and float in kinds and most > 1: return INF
    if type(value) not in kinds or not least <= value < most: raise ValueError(f"{value!a:.40} is no number here")
    return value
def strict(text):  # JSON without duplicate keys, NaN or infinity. Raises ValueError, RecursionError
    once = lambda pairs: dict(pairs) if len(dict(pairs)) == len(pairs) else number("a key stands twice")  # noqa: E731
    return json.loads(text, object_pairs_hook=once, parse_constant=number)
def threat_of(row):
    threat = tuple(row[word] for word in WORDS)
    return threat if all(map(tuple.__contains__, THREATS, threat)) else number("no such threat")
def read(path):
    with open(path, "rb", opener=lambda at, how: os.open(at, how | NO_WAIT)) as file: content = file.read(LARGEST + 1)
    if len(content) > LARGEST or sum(map(content.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise ValueError(f"more than {LARGEST >> 20} MiB or {MOST_VALUES} values")
    return strict(content.decode())
# --- signatures: Ed25519 (RFC 8032, section 5.1). Verification alone: nothing here is secret
P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D, ROOT = -121665 * pow(121666, -1, P) % P, pow(2, (P - 1) // 4, P)
def add(a, b):  # sum of two points on the curve y^2 - x^2 = 1 + D x^2 y^2
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x, y, by = a[0] * b[1] + b[0] * a[1], a[1] * b[1] + a[0] * b[0], pow(1 - product * product, -1, P)
    return x * (1 - product) * by % P, y * (1 + product) * by % P
def times(scalar, point):
    return reduce(lambda sum, bit: add(add(sum, sum), point) if bit == "1" else add(sum, sum), f"{scalar:b}", (0, 1))
def point_of(text):  # the point that 32 bytes name; None where they name none
    y, sign = int.from_bytes(text, "little") & (2**255 - 1), text[31] >> 7
    x = pow(square := (y * y - 1) * pow(D * y * y + 1, -1, P) % P, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * ROOT % P
    x = P - x if x & 1 != sign else x
    return None if y >= P or x == P or (x * x - square) % P else (x, y)
def signed_by(key, text, signature):  # whether the owner of a public key signed this text; both in hexadecimal digits
    if not (re.fullmatch("[0-9a-f]{64}", str(key)) and re.fullmatch("[0-9a-f]{128}", str(signature))): return False
    public, mark = bytes.fromhex(key), bytes.fromhex(signature)
    a, s, base = point_of(public), int.from_bytes(mark[32:], "little"), point_of(b"\x58" + b"\x66" * 31)
    if a is None or s >= ORDER or times(8, a)[0] == 0: return False  # with a key of small order anybody could sign
    h = int.from_bytes(hashlib.sha512(mark[:32] + public + text.encode()).digest(), "little") % ORDER
    x, y = add(times(s, base), times(h, (P - a[0], a[1])))
    return (y | (x & 1) << 255).to_bytes(32, "little") == mark[:32]
# --- laws of a release's privacy loss L = ln P/Q, one a direction: (least, largest, tails(t) = (P[L > t], Q[L > t]))
Z, above = 9.5, special.ndtr  # normal tails are cut at 9.5 standard deviations, below 1.1e-21; P[N(x, 1) > 0]
def gaussian(m): return [(m * (m / 2 - Z), m * (m / 2 + Z), lambda t: (above(m / 2 - t / m), above(-m / 2 - t / m)))]
def mixed(x, *sides):  # P and Q of numbers above x, each (rate, shift): (1 - rate) N(0, 1) + rate N(shift, 1)
    return [(1 - rate) * above(-x) + rate * above(shift - x) for rate, shift in sides]
def poisson(sigma, rate):  # (1 - rate) N(0, 1) + rate N(1/sigma, 1) against N(0, 1), in both directions
    none, m = math.log1p(-rate), 1 / sigma  # the loss never falls below none; place: where it is t
    def place(t): return sigma * (t - math.log(rate) + special.xlogy(1, np.maximum(-np.expm1(none - t), 0))) + m / 2
    least, most = (np.logaddexp(none, math.log(rate) + z * m - m * m / 2) for z in (-Z, Z + m))
    return [(least, most, lambda t: mixed(place(t), (rate, m), (0, 0))),
            (-most, -least, lambda t: mixed(-place(-t), (0, 0), (rate, -m)))]
def replaced(multiplier, rate):
    """(1 - rate) N(0, 1) + rate N(c, 1) against its reflection: the part that is drawn is another. With u = exp(c x)
    the loss t is where (u + w)/(1/u + w) = exp(t), w = exp(c^2/2) (1 - rate)/rate."""
    c, w = 1 / (2 * multiplier), math.exp(1 / (8 * multiplier**2)) * (1 - rate) / rate
    least, most = (np.log((math.exp(c * x) + w) / (math.exp(-c * x) + w)) for x in (-Z, Z + c))
    def place(t): return (t / 2 + np.arcsinh(w * np.sinh(t / 2))) / c
    return [(least, most, lambda t: mixed(place(t), (rate, c), (rate, -c)))]
def fixed(multiplier, rate):
    """A part that may be drawn, with this rate, is replaced: `poisson` one way above loss 0, the other way below, as
    two data sets may change places (Balle, Barthe and Gaboardi, NeurIPS 2018)."""
    (_, most, up), (least, _, down) = poisson(multiplier, rate)
    return [(least, most, lambda t: np.where(t < 0, down(t), up(t)))]
def laplace(scale):
    def tails(t):
        x, inside = np.clip((1 - scale * t) / 2, 0, 1) / scale, (t >= -1 / scale) & (t < 1 / scale)
        return np.where(inside, 1 - np.exp(-x) / 2, t < 0), np.where(inside, np.exp(x - 1 / scale) / 2, t < 0)
    return [(-1 / scale, 1 / scale, tails)]
def atoms(p, q):  # outcomes with these probabilities; those that have none in P or in Q are left out
    p, q = np.array(sorted((pair for pair in zip(p, q, strict=True) if min(pair) > 0), key=lambda pq: pq[0] / pq[1])).T
    loss, sides = np.log(p / q), [np.r_[np.cumsum(side[::-1])[::-1], 0] for side in (p, q)]
    return [(loss[0], loss[-1], lambda t: [side[np.searchsorted(loss, t, side="right")] for side in sides])]
def dominating(p, q):  # of pairs of laws [pairs, outcomes], both ways: the best (false alarms, power) of tests of any
    order = np.argsort(q / p, axis=1)  # the hull of these points, without (1, 0), is the law's own curve
    y, x = (np.cumsum(np.take_along_axis(side, order, 1), 1)[:, :-1].ravel() for side in (p, q))
    points = np.array([[0, 0], [1, 1], [1, 0], *zip(x, y, strict=True), *zip(1 - y, 1 - x, strict=True)])
    hull = points[sorted({0, 1, *spatial.ConvexHull(points).vertices} - {2}, key=lambda n: tuple(points[n]))]
    return atoms(*np.diff(hull, axis=0).T[::-1])
def moved(law, shift): return atoms(law[shift:], law[:-shift]) if 0 < shift < len(law) else None  # a coordinate's noise
def chord(b, gains):  # D_a at a = b + 1 from above, by ln sum P^a Q^(1 - a) at some b: convex in a, and 0 at b = 0
    return lambda at: np.where(at > b[-1], INF, np.interp(at, np.r_[0, b], np.r_[0, gains])) / at
# --- what is known of ONE release of a mechanism, as fields of `cost`; None: it has no bound
def of_gaussian(e, law=None, least=0):
    rate = e.sample_size / e.population if law is fixed else getattr(e, "sampling_rate", 1)
    seen, swap = e.unit == "client" and e.observer in SEES_ALL, e.adjacency == "replace-one"  # seen: who took part
    if rate > 1 or (law and (seen or swap != (law is fixed))): return None
    if rate == 0: return {"pure": 0}
    if rate == 1: return {"mu2": 1 / e.multiplier / e.multiplier, "rho": 0} if e.multiplier >= 1e-150 else None
    if not least < e.multiplier < 1e6: raise Unknown("sampled noise beyond what is computed here")
    return {"laws": law(e.multiplier, rate), "floor": law is fixed and (lambda: poisson(e.multiplier, rate))}
def of_symbols(epsilon, inside, times=1, share=0):
    least = (inside := 1 / (1 + math.exp(-epsilon)) if inside is None else inside) * math.exp(-epsilon)
    if inside + least > 1 + 1e-9 or times < 1: raise ValueError("no epsilon allows that")
    law, pure = [inside, max(0.0, 1 - inside - least), least], times * epsilon * (inside > 0)
    laws = atoms(law, law[::-1]) if pure > 0 and epsilon < 500 else None
    return {"share": share, "times": times, "pure": pure, "laws": laws} if epsilon < INF else None
def of_pairs(e):
    """CoQ-FL's bits of one coordinate, high with p and the partner's with r: by uniforms of which they share ``bits``
    bits, or each with probability mu by its own. The ends of p, and of r the ends and multiples of 2^-bits, are worst.
    Other members know the shared uniform: below both ends of p, between them, or above."""
    low, mu, cells = 1 / (1 + math.exp(e.epsilon)), e.private_share, 2.0**e.bits
    high, w, b = 1 - low, 1 - (1 - mu) ** 2, np.geomspace(1e-3, 1e3, 121)
    r = np.r_[high, low, np.clip(np.arange(cells) / cells, low, high)]
    def law(p):
        same = np.floor(one := p * cells) == np.floor(other := (1 - r) * cells)
        both = np.where(same, one % 1 * (1 - other % 1) / cells, np.maximum(0, p + r - 1)) * (1 - w) + w * p * r
        return np.stack([both, p - both, r - both, 1 - p - r + both], 1)
    def seen(p, *shared):
        return (np.array([low, high - low, low]) * [yes := mu * p + (1 - mu) * np.array(shared), 1 - yes]).reshape(1, 6)
    if not e.epsilon <= 20 or (e.bits and not 0 < mu <= 1): return None  # bits beyond 20 are all but sent
    if e.bits == 0: return of_symbols(e.epsilon, high, e.dimension)
    by_members = e.observer == "server+members" or e.group_size > 2
    p, q = (seen(high, 1, 1, 0), seen(low, 1, 0, 0)) if by_members else (law(high), law(low))
    ends = ([high, low], [low, high]) if by_members else (p[0], q[0])
    return {"times": e.dimension, "laws": dominating(p, q), "floor": lambda: atoms(*ends), "rho": 0,
            "curve": chord(b, [e.dimension * special.logsumexp(at * np.log(p / q), b=p, axis=1).max() for at in b])}
def of_discrete(e):
    """Kairouz, Liu and Steinke, ICML 2021, Theorem 1, with a bound on tau that holds for every number of noises."""
    near = np.exp(-2 * (math.pi * e.sigma)**2 * np.outer(1 - 1 / np.arange(2, e.noises + 1), np.arange(1, 12) ** 2))
    if e.l2 == 0 or e.sigma == 0 or (near := 2 * near.sum(1)).max(initial=0) >= 0.5: return None if e.l2 else {"rho": 0}
    tau, root = 2 * float(np.sum(np.log1p(near) - np.log1p(-near))), math.sqrt(e.noises) * e.sigma
    reach, l1 = int(10 * root) + int(e.l2) + 1, min(math.sqrt(e.dimension) * e.l2, e.l2**2)
    def floor():  # the exact law of one coordinate; beyond 1e-12 FFT's rounding would count
        law = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * e.sigma**2))
        law = fft.fftshift(fft.irfft(fft.rfft(fft.ifftshift(law / law.sum())) ** e.noises, len(law)))
        return moved(law[law > 1e-12 * law.max()], int(e.l2))
    rho = ((e.l2 / root) ** 2 + 2 * tau * l1 / root + tau * tau * e.dimension) / 2
    return {"rho": rho, "floor": floor if reach < MOST_CELLS // 8 else None, "near": smoothed(root, e, tau)}
def smoothed(root, e, tau):
    """The loss is linear in the noise x, and E f(x) <= E f(x + N(0, t)) for convex f: by Poisson's summation formula a
    Gaussian of variance root^2 + t, but for a factor. (mu^2, what epsilon and ln(delta) move by, share of delta)."""
    t, changed, m2 = np.geomspace(0.3, 9, 300), min(e.dimension, e.l2**2), (e.l2 / root) ** 2
    off = 2 * np.exp(-2 * (math.pi * np.arange(1, 9)[:, None]) ** 2 / (1 / root**2 + 1 / t)).sum(0)
    moved = np.where(off < 0.5, m2 * t / root**2 / 2 + changed * (tau + np.log1p(off) - np.log1p(-off)), INF)
    best = np.argmin(moved + m2 * t / root**2)
    return (m2 * (1 + t[best] / root**2), moved[best], 0) if moved[best] < 100 else None
def of_skellam(e):
    """No second difference of -ln P exceeds c, so ln P(x)^(1 + b) P(x + v)^-b is at most c b (b + 1) v^2/2 more than
    c u (1 - u)/2 + ln P(k)^(1 - u) P(k + 1)^u, with x - b v = k + u. Summed over x, these two are about 0 together."""
    m, u, law, near = e.noises * e.variance, np.arange(17) / 32, None, 1
    if e.l2 == 0 or m < 3: return None if e.l2 else {"rho": 0}
    if 0 < (reach := 10 * math.sqrt(m) + e.l2) < MOST_CELLS // 8:
        law = special.ive(np.abs(np.arange(-int(reach), int(reach) + 1)), m)
        near = [(law[:-1][law[1:] > 0] ** (1 - at) * law[1:][law[1:] > 0] ** at).sum() for at in u]
    c, log = -math.log1p(-1 / math.sqrt(m * m - 1)), math.log(2 * e.dimension / e.delta)
    r = 2 + e.l2 + log / 3 + math.sqrt(log * log / 9 + 2 * m * log)  # Bernstein; proof of the rest: privacy/skellam.py
    least, most = 1 / math.hypot(r + 1, m, 2), c * (math.exp(c / 2) + math.asinh((r + 1) / m) ** 2 / 3)
    tails = math.log1p(2 * math.exp(-r * r / (2 * m + r)) / -math.expm1(-least * r)) * min(e.dimension, e.l2**2)
    known = most * e.l2**2, (most - least) * e.l2**2 / 2 + tails, e.delta
    more = np.max(c * u * (1 - u) / 2 + np.log(near)) + c / 8192 + 1e-12  # between two of u at most c/8192
    return {"rho": c * e.l2**2 / 2, "near": known if known[1] < 100 else None,
            "curve": lambda b: more * min(e.dimension, e.l2**2) / b,
            "floor": law if law is None else lambda: moved(law[law > 0], int(e.l2))}
def of_shuffled(e):  # Feldman, McMillan and Talwar, FOCS 2021, Theorem 3.1; from below: all others' bits are alike
    if e.observer in SEES_ALL[:2]: return None
    grown, low = np.exp(e.epsilon) / e.users, 1 / (1 + np.exp(e.epsilon))
    more, holds = 8 * math.sqrt(grown * math.log(4 / e.delta)) + 8 * grown, 16 * math.log(2 / e.delta) * grown <= 1
    less = min(e.epsilon, math.log1p(math.tanh(e.epsilon / 2) * more)) if holds else e.epsilon
    def floor():  # of the others' bits, and with one that is 1 with probability high or low
        law = special.softmax(np.r_[0, np.cumsum(np.log(e.users / np.arange(1, e.users) - 1) - e.epsilon)])
        law = np.r_[0, law[law > 1e-14 * law.max()], 0]
        return atoms(*(law[1:] * (1 - p) + law[:-1] * p for p in (1 - low, low)))
    known = of_symbols(less, None, e.dimension, e.dimension * e.delta * holds)
    return known | {"floor": floor} if known and 1e-9 < e.epsilon < 500 and e.users < MOST_CELLS else known
def of_binomial(e):
    """Exact moments M(v) of one coordinate that moves by v steps, its noise within ``reach`` of its mean (all are, but
    for delta). Vectors T apart, rounded by the same uniforms, end n + 1 steps apart with probability f, else n. So for
    every w the sum of ln((1 - f) M(n) + f M(n + 1)) is at most w T^2 + d max over t = n + f of (that ln - w t^2)."""
    half, most = e.trials / 2, max(1, round(e.linf / e.step)) if e.step else INF
    if (reach := math.sqrt(half * math.log(2 * e.dimension / e.delta))) + most + 1 >= half: return None
    if most * reach > 1e8 or reach > 1e6: raise Unknown("a binomial beyond what is computed here")
    z = np.arange(math.ceil(half - reach), math.floor(half + reach) + 1)
    law = special.softmax(np.r_[0, np.cumsum(np.log((e.trials - z[:-1]) / (z[:-1] + 1)))])
    loss = -np.cumsum([np.log((e.trials - z - v) / (z + v + 1)) for v in range(most)], 0)  # ln P/Q, moved by v + 1
    b = np.geomspace(1e-2, min(1e4, 200 / loss.max()), 161)
    grown = np.array([0 * b, *([law @ np.expm1(at * one) for at in b] for one in loss)])  # M - 1
    n, m, slope = np.arange(most)[:, None], 1 + grown[:-1], grown[1:] - grown[:-1]
    w = np.geomspace(0.1, 1e4, 400)[:, None, None] * np.log1p(grown[1])
    root = np.sqrt((c := m - slope * n) ** 2 + 2 * slope**2 / w)  # where (m + slope (t - n)) has the derivative 2 w t
    t = np.clip(np.where(c > 0, slope / w / (np.abs(c) + root), (root - c) / (2 * slope)), n, n + 1)
    near = min(e.distance, e.l2) / e.step
    gains = (e.dimension * (np.log(m + slope * (t - n)) - w * t * t).max(1) + w[:, 0] * near**2).min(0)
    return {"rho": 0, "share": e.delta, "curve": chord(b, gains), "floor": lambda: moved(law, min(most, int(near) - 1))}
KNOWN = {  # mechanism -> (its fields, what is known of it)
    "gaussian": ("multiplier", of_gaussian), "discrete_gaussian_sum": ("dimension l2 noises sigma", of_discrete),
    "poisson_gaussian": ("multiplier sampling_rate", lambda e: of_gaussian(e, poisson, 1e-3)),
    "replaced_gaussian": ("multiplier sampling_rate", lambda e: of_gaussian(e, replaced, 0.05)),
    "fixed_size_gaussian": ("multiplier population sample_size", lambda e: of_gaussian(e, fixed, 1e-3)),
    "laplace": ("multiplier", lambda e: {} if e.multiplier < 1e-150 else {
        "pure": 1 / e.multiplier, "laws": laplace(e.multiplier) if 1e-3 < e.multiplier < 1e6 else None}),
    "randomised_response": ("dimension epsilon", lambda e: of_symbols(e.epsilon, None, e.dimension)),
    "approximate_dp": ("delta epsilon", lambda e: of_symbols(e.epsilon, None, 1, e.delta)),
    "unit_cap": ("delta epsilon inside", lambda e: of_symbols(e.epsilon, e.inside, 1, e.delta)),
    "gumbel_top_k": ("epsilon k", lambda e: {"rho": e.k * e.epsilon**2 / 8, "pure": e.k * e.epsilon}),
    "paired_quantisation": ("bits dimension epsilon group_size private_share", of_pairs),
    "binomial": ("delta dimension distance l1 l2 linf step trials", of_binomial),
    "skellam_sum": ("delta dimension l2 noises variance", of_skellam), "zcdp": ("rho", lambda e: {"rho": e.rho}),
    "shuffled": ("delta dimension epsilon users", of_shuffled)}
NOTHING = {"mu2": 0.0, "laws": None, "times": 1, "floor": None, "rho": INF, "curve": None, "share": 0.0, "pure": INF}
@lru_cache(maxsize=10_000)
def cost(text):
    """Of ONE release; None: without a bound. mu2: 1/multiplier^2 of a Gaussian. laws: of each of ``times`` coordinates;
    floor: from below, where it is another. rho: of zCDP, or 0 beside a curve. share: of delta. pure: at delta 0.
    near: as `smoothed`."""
    e = strict(text)
    if (kind := e.pop("mechanism")) == "no_bound": return None
    threat = {word: e.pop(word) for word in WORDS}
    fields, known = KNOWN.get(kind, ("", None))
    if known is None or sorted(e) != fields.split(): raise Unknown(f"no method for {kind!a:.40}")
    e = Values(**{name: number(e[name], 0, (int,) if name in WHOLE else (int, float)) for name in e}, **threat)
    for name, least, most in (("dimension", 1, 10**10), ("noises", 1, 10**5), ("l2", 0, 10**12), ("linf", 0, 10**12),
                              ("trials", 0, 10**12), ("bits", 0, 16)):
        if not least <= getattr(e, name, least) <= most: raise Unknown(f"{name} beyond what is computed here")
    made = Values(**NOTHING | {"near": None} | ((found := known(e)) or {}))
    made.rho = min(made.rho, made.pure * made.pure / 2)
    return made if found and (made.rho < INF or made.pure < INF or made.laws) and made.mu2 < INF else None
def by_formula(mu, delta):  # (from below, from above), of Gaussians: Balle and Wang, ICML 2018, Theorem 8, in 40 digits
    with mpmath.workdps(40):
        mu, low, phi = mpmath.mpf(mu), mpmath.mpf(0), mpmath.ncdf
        def over(e): return phi(mu / 2 - e / mu) - mpmath.exp(e) * phi(-mu / 2 - e / mu) > delta
        if not mu or not over(0): return 0.0, 0.0
        high = mu * mu / 2 + mu * mpmath.sqrt(-2 * mpmath.log(delta))
        for _ in range(100): low, high = (e, high) if over(e := (low + high) / 2) else (low, e)
        return float(low), float(high) * (1 + 1e-12)
def by_order(rho, delta, curves=()):  # from above (Canonne, Kamath and Steinke 2020, Proposition 12), at the best order
    b = np.geomspace(1e-7, 1e12, 200_001)  # order - 1
    total = rho * (b + 1) + sum(n * curve(b) for curve, n in curves) - np.log(delta * (b + 1)) / b + np.log(b / (b + 1))
    return max(0.0, float(np.min(total)))
def on_grid(least, most, tails, step):
    """(index of the least loss, probabilities at multiples of step, that of no bound). What lies between two points is
    divided among them so that P and Q keep their masses: an adversary learns more (connect the dots)."""
    first, last = math.floor(least / step), math.ceil(most / step)
    if last - first > MOST_CELLS or max(-least, most) > 600: raise Unknown("losses too far apart for the grid")
    p_up, q_up = tails(grid := np.arange(first, last + 1) * step)
    p, q = p_up[:-1] - p_up[1:], q_up[:-1] - q_up[1:]
    upper = np.clip((p - np.exp(grid[:-1]) * q) / -np.expm1(-step), 0, np.maximum(p, 0))
    return first, np.maximum(np.r_[1 - p_up[0] + p[0] - upper[0], p[1:] - upper[1:], 0], 0) + np.r_[0, upper], p_up[-1]
def by_grid(parts, delta):
    """Of [(law, times)]. From above: at delta less the errors of cut tails and FFT. From below: a release on the grid
    moves by at most a step, by step^2 exp(step)/8 in the mean (its parts keep E[exp(-L)]), so all together by more than
    ``moved`` only with probability eta (Hoeffding)."""
    count, eta, best, ends = sum(n for _, n in parts), delta / 1000, (0.0, INF), None
    step, tilts = (widest := max(most - least for (least, most, _), _ in parts)) / 64, 2.0 ** np.arange(-8, 14, 0.5)
    while widest / step < MOST_CELLS - 4:
        grids = [(*on_grid(*law, step), n) for law, n in parts]
        ends = ends or [float(np.min([  # Chernoff: how far the sum goes, up and down, but with probability delta/1e6
            (sum(n * special.logsumexp(sign * t * step * (k + np.arange(len(p))), b=p) for k, p, _, n in grids)
             - math.log(delta / 1e6)) / t for t in tilts if sign > 0 or t >= 1])) for sign in (1, -1)]
        low, cells = math.floor(-ends[1] / step), sum(ends) / step + 4  # finer grids spread less: the same ends hold
        if not cells < MOST_CELLS or time.perf_counter() > STOP[0]: break
        size = 1 << math.ceil(math.log2(cells))
        transform, start = np.ones(size // 2 + 1, complex), max(low, 0)
        for k, p, _, n in grids: transform *= fft.rfft(np.bincount((k + np.arange(len(p))) % size, p, size)) ** n
        rounding = 2.3e-16 * math.log2(size) * count * math.sqrt(2 * np.count_nonzero(np.abs(transform) > 1e-16))
        error, found = rounding + 2 * delta / 1e6 + sum(n * sure for _, _, sure, n in grids), []
        p = np.roll(np.maximum(fft.irfft(transform, size), 0), -low)[start - low :]
        over, weighed = np.cumsum(p[::-1])[::-1], signal.lfilter([1], [1, -math.exp(-step)], p[::-1])[::-1]
        for wanted in (delta - error, delta + error + eta):  # delta(e) = over - exp(e - loss) weighed, below this loss
            place = int(np.argmax(over - weighed <= wanted))
            inside = (over[place] - wanted) / weighed[place] if wanted > 0 and weighed[place] else 0
            at = (start + place) * step + math.log(inside) if inside > 0 and start + place else 0.0
            found.append(at if wanted > 0 and over[place] - weighed[place] <= wanted else INF)
        moved = step * math.sqrt(count * math.log(1 / eta) / 2) + count * step * step * math.exp(step) / 8
        best = max(best[0], found[1] - moved), min(best[1], found[0])
        if best[1] - best[0] <= 2e-3 * best[1] or best[1] < 1e-6: break
        step /= 4 if 4 * cells < MOST_CELLS else 2  # a grid within this one
    if best[1] == INF: raise Unknown("too many releases for the grid")
    return best
def epsilon(history, delta):  # of one client's releases, (event, times)
    if any(cost(text) is None for text, _ in history): return INF, INF
    costs = [(one, n) for text, n in history if (one := cost(text)).mu2 or one.rho or one.share or one.curve]
    mu2, paid, pure, rho = (sum(getattr(one, part) * n for one, n in costs) for part in ("mu2", "share", "pure", "rho"))
    if paid >= delta or mu2 > 1e200 or all(one.mu2 for one, _ in costs):
        return (0.0, INF) if paid >= delta or mu2 > 1e200 else by_formula(math.sqrt(mu2), delta)
    def by_grids(left, law_of, square=mu2):  # over directions
        parts = [(law, n * one.times) for one, n in costs[:100] if (law := law_of(one))]
        parts += [(gaussian(math.sqrt(square)), 1)] if square else []
        ways = range(max([0, *(len(law) for law, _ in parts)]))
        found = [by_grid([(law[way % len(law)], n) for law, n in parts], left) for way in ways]
        return tuple(map(max, zip((0.0, 0.0), *found, strict=True)))
    curves, floors = [(one.curve, n) for one, n in costs if one.curve], any(one.floor or one.near for one, _ in costs)
    least, most = 0.0, min(pure, by_order(rho + mu2 / 2, delta - paid, curves) if rho < INF else INF)
    near = [((one.near or (one.mu2, 0, 0)), n) for one, n in costs]
    square, move, share = (sum(part[which] * n for part, n in near) for which in range(3))
    left = (delta - paid - share) * math.exp(-min(move, 700))
    if left > 0 and all(one.near or one.mu2 for one, _ in costs):
        most = min(most, move + by_formula(math.sqrt(square), left)[1])
    with suppress(Unknown):
        least, grid = by_grids(delta, lambda one: one.floor() if one.floor else one.laws)
        if left > 0 and all(one.laws or one.mu2 or one.near for one, _ in costs) and len(costs) <= 100:
            most = min(most, move + by_grids(left, lambda one: one.laws, square)[1] if paid or floors else grid)
    return min(least, most), most
def worst(histories, delta):  # over clients, {(event, times)} of each; of those with Gaussians alone, the largest mu's
    if len({text for history in histories for text, _ in history}) > 5000: raise Unknown("over 5,000 kinds of release")
    mus = {h: sum(one.mu2 * n if (one := cost(text)) and one.mu2 else INF for text, n in h) for h in histories if h}
    alone, rest = {h: mu for h, mu in mus.items() if mu < INF}, []
    for history in sorted((h for h in mus if h not in alone), key=lambda h: (-sum(n for _, n in h), sorted(h))):
        if not any(all(dict(kept).get(text, 0) >= n for text, n in history) for kept in rest):
            rest.append(history)  # what is among another's releases costs no more
        if len(rest) > 64: raise Unknown("more than 64 different histories")
    found = [epsilon(history, delta) for history in [*rest, *sorted(alone, key=alone.get)[-1:]]]
    return tuple(map(max, zip((0.0, 0.0), *found, strict=True)))
def charged(entry, node):  # [(client, (threat, event), times)] of an entry: of a run as booked, of a node as spent
    threat, more = threat_of(entry), [entry.get("client")] * ({"client", "clients"} <= entry.keys())
    clients = (entry.get("clients") or [entry["client"]]) + more
    spent = entry.get("realised", entry) if node else NO_BOUND if entry.get("adaptive") else entry  # by earlier outputs
    spent = spent | dict(zip(WORDS, threat, strict=True))
    event = canonical({name: spent[name] for name in spent.keys() - PLACE})
    return [(number(one, -2, (int,)), (threat, event), number(entry.get("count", 1), 1, (int,))) for one in clients]
def recorded(certificate, say):  # [{(threat, event): times}] of the ledger: of a run's clients, of a node's messages
    node, chain, begun, table, last, back, found = certificate["kind"] == "node", "", False, {}, 0, 0, {}
    ledger, heads, signers, stated = certificate["ledger"], certificate["heads"], [], certificate["releases"]
    for n, line in enumerate(ledger["lines"], 1):
        try:
            named, place = (row := strict(line)).get("before"), number(row.get("time", 0) if node else row["round"])
            charges = [one for entry in (row.get("entries", []) if node else [row]) for one in charged(entry, node)]
            say(named != chain and (begun or named is not None), f"!line {n} does not follow from those before it")
            say(row.get("ledger", ledger["id"]) != ledger["id"], "!the first line names another ledger")
            begun, signers = begun or named is not None, signers + [row.get("signer")] * ("signer" in row)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            say(node, f"!line {n} cannot be read")  # of a run: a crash tore it, and it is a release without a bound
            place, charges = last, [(-2, (None, canonical(NO_BOUND)), 1)]
        for client, charge, times in charges:
            found.setdefault(n if node else client, Counter())[charge] += times
            first = table.setdefault(charge[1], [0, place, place])
            first[0], first[2] = first[0] + times, place
        back = back or n * (node and 0 < place < last)
        number(len(found), most=MOST_CLIENTS + 1)  # of clients, or of messages
        last, chain = max(last, place), hashlib.sha256(f"{chain}{line}\n".encode()).hexdigest()
    say(0, f"note: the clock went back before line {back}: the order is the chain's" if back else "!")
    say(0, "!" if begun or not ledger["lines"] else "note: its lines name no hash: its signature alone holds them")
    say(0, "!" if len({*signers}) < 2 else f"note: another key signed its heads before, {signers[-2]!a:.70}: ask why")
    say(signers and (signers[-1] != certificate["signer"]["key"] or not heads), "!its node's signed head is missing")
    rows = [strict(event) | {"releases": m, "first": first, "last": at} for event, (m, first, at) in table.items()]
    say((chain, len(ledger["lines"])) != (ledger["head"], ledger["count"]), "the ledger's lines end in its head")
    say(sorted(map(canonical, rows)) != sorted(map(canonical, stated)), "the table of releases is the ledger's")
    every = found.pop(-2, Counter())  # released about all clients
    return [account + every for account in (Counter(), *found.values())], {certificate["signer"]["key"], *signers}
def of_threat(accounts, node, asked):  # everybody's releases under a threat, {(event, times)}
    if not node:
        return {frozenset((event, n) for (of, event), n in one.items() if of in (asked, None)) for one in accounts}
    total, seen = Counter(), (asked[2], *["server"] * (asked[2] == "secure-sum"))
    wanted = [(*pair, observer) for observer in seen for pair in (asked[:2], ("client", "replace-one"))]
    for account in filter(None, accounts):
        of = next((of for of in wanted if of in {threat for threat, _ in account}), None)
        if of is None: raise Unknown("a message was booked under other threats")
        total.update({event: n for (threat, event), n in account.items() if threat == of})
    return {frozenset(total.items())}
def check(certificate, key, say):  # says of all that can be checked whether it is wrong; returns its signers' keys
    parts, signer = (certificate, *certificate["heads"]), certificate["signer"]["key"]
    texts = [canonical({name: part[name] for name in part if name != "signature"}) for part in parts]
    node, form = {"run": False, "node": True}[certificate["kind"]], certificate["format"] + "\n"
    signed = form == "fedpriv certificate 1\n" and signed_by(signer, form + texts[0], certificate["signature"])
    say(not signed, f"signed by the key {signer!a:.70}" if signed else "!it was changed after it was signed")
    say(key not in (None, signer), "this is the key that was given" if key else "note: compare this key yourself")
    for head, text in zip(certificate["heads"], texts[1:], strict=True):
        same = [head[name] for name in ("ledger", "lines", "chain")] == [certificate["ledger"][name] for name in HEAD]
        signed = head["key"] == signer and signed_by(signer, "fedpriv ledger head 1\n" + text, head["signature"])
        say(not same or not signed, "the node signed this head when its last message left")
    (accounts, keys), stated = recorded(certificate, say), [threat_of(row) for row in certificate["protections"]]
    whole = {threat for one in accounts for threat, _ in one if threat} <= {*stated} and len({*stated}) == len(stated)
    say(not stated or not (node or whole), "!no epsilon is stated, or a threat has none or two")
    for row, threat in zip(certificate["protections"], stated, strict=True):
        began, claimed, delta = time.perf_counter(), number(row["epsilon"]), number(row["delta"], 1e-300, (float,), 1)
        wrong, least, most, verdict = 3, 0.0, INF, "not verified"
        try:
            least, most = worst(of_threat(accounts, node, threat), delta) if row["accountant"] != "filter" else (0, INF)
            wrong = 1 if claimed < least * (1 - 1e-6) else 3 if claimed < 0.99 * most else 0
            verdict = ("equal" if claimed <= 1.01 * most else "above", "FALSE", "", "not verified")[wrong]
        except Unknown as error:
            wrong, verdict = 3 * (claimed < INF), f"not verified ({error})"
        seconds, figures = time.perf_counter() - began, f"the lines give {least:.6g} to {most:.6g}"
        say(wrong, f"epsilon {claimed:.6g}, delta {delta:.3g}, {threat}: {verdict}; {figures} ({seconds:.1f} s)")
        say(number((row["audit"] or {"epsilon": 0})["epsilon"]) > claimed, "!an audit refutes it")
    return keys
def main(arguments):  # exit code: the worst of what was found
    paths, found = [word for word in arguments if not word.startswith("key=")], [0]
    key = next((word[4:] for word in arguments if word.startswith("key=")), None)
    def say(wrong, words):  # words: what is so, or after a "!" what is wrong
        found.append(wrong := 3 if wrong == 3 else int(bool(wrong)))
        if wrong or not words.startswith("!"): print(("ok:   ", "FALSE:", "", "OPEN: ")[wrong], words.lstrip("!"))
    STOP[0], _ = time.perf_counter() + 900, np.seterr(all="ignore")
    try:
        first, *older = [read(path) for path in paths]
        keys = check(first, key, say)
        for other in older:
            check(other, None, lambda wrong, words: wrong and say(wrong, f"the older one: {words.lstrip('!')}"))
            say(other["signer"]["key"] not in keys, "!the older one has another key, which this ledger does not name")
            lines, same = other["ledger"]["lines"], other["ledger"]["id"] == first["ledger"]["id"]
            goes_on = same and first["ledger"]["lines"][: len(lines)] == lines
            say(not goes_on, "it continues the older one" if goes_on else "another ledger, or one with two heads")
    except Exception as error:  # whatever a hostile file leads to, MemoryError too, is one line
        print(f"no certificate: {type(error).__name__} {str(error)!a:.200}" if paths else __doc__.splitlines()[0])
        return 2
    print(("verified", "FALSE", "", "not verified")[wrong := 1 if 1 in found else max(found)])
    return wrong
if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
