"""Checks a privacy certificate of fedpriv, without fedpriv: python verify_certificate.py CERTIFICATE [OLDER...] [key=...]

key: the public key that must have signed (64 hexadecimal digits, or a PEM file such as identity.pub), which you got on
another way than the certificate; without it you learn only which key signed. OLDER: earlier certificates of the same
ledger, which the first must continue. Checked: signatures, the ledger's hash chain and its signed head, the table of
releases, and every epsilon, computed again from the ledger's lines. Each release's privacy loss is put on a grid
(connect the dots, Doroshenko et al. 2022) and convolved by FFT; Gaussians alone have a closed form. For whole-number
noise in many dimensions and other mechanisms known by zCDP, the theorem's bound is evaluated again; the exact law of one
coordinate is the bound from below. An epsilon is equal (to 1 %), above (more than needed: sound), not verified or FALSE.

Exit code: 0 verified, 1 false, 2 not a certificate, 3 not verified. Needs Python 3.11, numpy, scipy and mpmath.
"""

# fmt: off
import hashlib
import json
import math
import os
import re
from functools import lru_cache
from types import SimpleNamespace

import mpmath
import numpy as np
from scipy import fft, signal, special

INF, LARGEST, MOST_VALUES, MOST_CLIENTS, MOST_CELLS = math.inf, 64 << 20, 1 << 23, 10**6, 1 << 21
THREATS = [("client", "example", "person"), ("replace-one", "zero-out", "add-or-remove-one")]
THREATS += [("server", "server+members", "secure-sum", "trusted-server", "public")]

class Unknown(Exception):
    """There is no method here, or it would take too long: the figure is not verified."""

# --- reading a file that may be hostile ---------------------------------------------------------------------------

def unique(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)

def number(value, least=0, kinds=(int, float)):
    """A finite number, or infinity written as the text "inf". Raises ValueError."""
    if value == "inf" and float in kinds:
        return INF
    if type(value) not in kinds or not least <= value < 1e300:
        raise ValueError(f"{value!a:.40} is no number of at least {least}")
    return value

strict = json.JSONDecoder(object_pairs_hook=unique, parse_constant=lambda name: number(float(name))).decode
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode

def read(path):
    """A certificate: its fields are there and of their kinds. Raises ValueError, RecursionError, OSError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST or sum(map(content.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise ValueError(f"more than {LARGEST >> 20} MiB or {MOST_VALUES} values")
    found, shape = strict(content.decode()), dict(format=str, kind=str, issued=str, subject=dict, protections=list)
    shape |= dict(releases=list, assumptions=list, digests=dict, ledger=dict, heads=list, signer=dict, signature=str)
    kinds = {name: type(value) for name, value in found.items()} if type(found) is dict else {}
    inner = {name: type(value) for name, value in found["ledger"].items()} if kinds == shape else {}
    if inner != dict(id=str, count=int, head=str, lines=list) or found["format"] != "fedpriv certificate 1":
        raise ValueError("its format or its fields are others")
    return found

# --- signatures: Ed25519 (RFC 8032, section 5.1). Verification alone: nothing here is secret -----------------------

P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D, ROOT = -121665 * pow(121666, -1, P) % P, pow(2, (P - 1) // 4, P)

def add(a, b):
    """Sum of two points (X, Y, Z, T): x = X/Z, y = Y/Z, xy = T/Z."""
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    return (f - e) * (h - g) % P, (h + g) * (f + e) % P, (h - g) * (h + g) % P, (f - e) * (f + e) % P

def times(scalar, point):
    found = (0, 1, 1, 0)
    while scalar:
        found = add(found, point) if scalar & 1 else found
        point, scalar = add(point, point), scalar >> 1
    return found

def point_of(text):
    """The point that 32 bytes name; None where they name none."""
    y, sign = int.from_bytes(text, "little") & (2**255 - 1), text[31] >> 7
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * ROOT % P
    x = P - x if x & 1 != sign else x
    return None if y >= P or (x * x - square) % P or x == P else (x, y, 1, x * y % P)

def signed_by(key, text, signature):
    """Whether the owner of a public key signed this text; key and signature in hexadecimal digits."""
    if not (re.fullmatch("[0-9a-f]{64}", str(key)) and re.fullmatch("[0-9a-f]{128}", str(signature))):
        return False
    public, mark = bytes.fromhex(key), bytes.fromhex(signature)
    a, s, base = point_of(public), int.from_bytes(mark[32:], "little"), point_of(b"\x58" + b"\x66" * 31)
    if a is None or s >= ORDER or times(8, a)[0] == 0:  # with a key of small order anybody could sign
        return False
    h = int.from_bytes(hashlib.sha512(mark[:32] + public + text.encode()).digest(), "little") % ORDER
    r = add(times(s, base), times(h, (P - a[0], a[1], a[2], P - a[3])))
    x, y = (part * pow(r[2], -1, P) % P for part in r[:2])
    return (y | (x & 1) << 255).to_bytes(32, "little") == mark[:32]

# --- laws of a release's privacy loss L = ln P/Q: (least, largest, tails) with tails(t) = P[L > t], Q[L > t], P[L <= t],
# Q[L <= t] for an array t. A release has one law for each direction in which two data sets can be told apart ---------

Z = 9.5  # standard deviations at which normal tails are cut, below 1.1e-21

def gaussian(mu):
    def tails(t):
        p, q = mu / 2 - t / mu, -mu / 2 - t / mu
        return special.ndtr(p), special.ndtr(q), special.ndtr(-p), special.ndtr(-q)

    return [(mu * (mu / 2 - Z), mu * (mu / 2 + Z), tails)]

def poisson(sigma, rate):
    """N(0, sigma^2) against (1 - rate) N(0, sigma^2) + rate N(1, sigma^2), in both directions."""
    none = math.log1p(-rate)  # the loss of the mixture against the other never falls below it

    def at(t):  # where the loss is t, in units of sigma
        with np.errstate(all="ignore"):
            found = sigma * (t - math.log(rate) + np.log1p(-np.exp(none - t))) + 1 / (2 * sigma)
        return np.where(t > none, found, -INF)

    def tails(t, removed):
        z, m = at(t if removed else -t), 1 / sigma
        alone, far = (special.ndtr(-z), special.ndtr(z)), (special.ndtr(m - z), special.ndtr(z - m))
        (up, low), mixed = alone, [(1 - rate) * one + rate * other for one, other in zip(alone, far, strict=True)]
        return (mixed[0], up, mixed[1], low) if removed else (low, mixed[1], up, mixed[0])

    least, most = (np.logaddexp(none, math.log(rate) + z / sigma - 1 / (2 * sigma**2)) for z in (-Z, Z + 1 / sigma))
    return [(least, most, lambda t: tails(t, True)), (-most, -least, lambda t: tails(t, False))]

def laplace(scale):
    def tails(t):
        x, inside = np.clip((1 - scale * t) / 2, 0, 1) / scale, (t >= -1 / scale) & (t < 1 / scale)
        p = np.where(inside, 1 - np.exp(-x) / 2, t < -1 / scale)
        q = np.where(inside, np.exp(x - 1 / scale) / 2, t < -1 / scale)
        return p, q, 1 - p, 1 - q

    return [(-1 / scale, 1 / scale, tails)]

def atoms(p, q):
    """Outcomes with these probabilities; those that have none in P or in Q are left out."""
    p, q = np.array(sorted((pair for pair in zip(p, q, strict=True) if min(pair) > 0), key=lambda pq: pq[0] / pq[1])).T
    loss, low = np.log(p / q), [np.r_[0, np.cumsum(side)] for side in (p, q)]
    sides = [np.r_[np.cumsum(side[::-1])[::-1], 0] for side in (p, q)] + low
    return [(loss[0], loss[-1], lambda t: [side[np.searchsorted(loss, t, side="right")] for side in sides])]

def one_axis(law, noises, shift):
    """From below: whole-number noise of one client, ``law``, in a sum of so many, on the one coordinate that moves."""
    law = np.maximum(fft.fftshift(fft.irfft(fft.rfft(fft.ifftshift(law / law.sum())) ** noises, len(law))), 0)
    law = law[law > 1e-12 * law.max()]  # beyond it FFT's rounding counts
    return atoms(law[shift:], law[:-shift]) if 0 < shift < len(law) else None

# --- what one release costs ----------------------------------------------------------------------------------------

WORDS, WHOLE = ("unit", "adjacency", "observer"), ("dimension", "noises", "k")
FIELDS = dict(gaussian="multiplier", laplace="multiplier", poisson_gaussian="multiplier sampling_rate", zcdp="rho")
FIELDS |= dict(randomised_response="epsilon dimension", unit_cap="epsilon inside delta", no_bound="reason")
FIELDS |= dict(approximate_dp="epsilon delta", gumbel_top_k="k epsilon")
FIELDS |= dict(discrete_gaussian_sum="sigma noises dimension l2", skellam_sum="variance noises dimension l2 delta")

@lru_cache(maxsize=10_000)
def cost(text):
    """Of ONE release; None: without a bound. mu2: 1/multiplier^2 of a Gaussian. laws: of each of ``times`` coordinates.
    floor: from below, where laws are not known. rho, extra: (a - 1) D_a <= a (a - 1) rho + extra, D_a Renyi's divergence
    of every order a > 1. share: what it uses up of delta. pure: its epsilon at delta 0. Raises ValueError, Unknown.
    """
    e = json.loads(text)
    kind, unit, adjacency, observer = (e.pop(name) for name in ("mechanism", *WORDS))
    if any(word not in allowed for word, allowed in zip((unit, adjacency, observer), THREATS, strict=True)):
        raise ValueError("no such threat")
    if kind == "no_bound":
        return None
    if kind not in FIELDS or set(e) != set(FIELDS[kind].split()):
        raise Unknown(f"no method for {kind!a:.40}")
    e = SimpleNamespace(**{name: number(e[name], 0, (int,) if name in WHOLE else (int, float)) for name in e})
    made = SimpleNamespace(mu2=0.0, laws=None, times=1, floor=None, rho=INF, extra=0.0, share=0.0, pure=INF)
    if kind == "poisson_gaussian":
        sees = unit == "client" and observer not in ("trusted-server", "public")  # who took part: no amplification
        if adjacency == "replace-one" or sees or not e.sampling_rate <= 1:
            return None
        if 0 < e.sampling_rate < 1 and 1e-3 < e.multiplier < 1e6:
            made.laws = poisson(e.multiplier, e.sampling_rate)
        elif e.sampling_rate == 0:
            made.rho = made.pure = 0
    if kind == "gaussian" or (kind == "poisson_gaussian" and e.sampling_rate and not made.laws):  # sampled: from above
        made.mu2, made.rho = (INF if e.multiplier < 1e-150 else 1 / e.multiplier / e.multiplier), 0
        return made if made.mu2 < INF else None
    if kind == "laplace" and e.multiplier >= 1e-150:
        made.pure, made.laws = 1 / e.multiplier, laplace(e.multiplier) if 1e-3 < e.multiplier < 1e6 else None
    if kind in ("randomised_response", "unit_cap", "approximate_dp") and e.epsilon < INF:
        inside, made.times = getattr(e, "inside", 1 / (1 + math.exp(-e.epsilon))), getattr(e, "dimension", 1)
        least, made.share = inside * math.exp(-e.epsilon), getattr(e, "delta", 0)
        if inside + least > 1 + 1e-9 or made.times < 1:
            raise ValueError("no epsilon allows that")
        law, made.pure = [inside, max(0.0, 1 - inside - least), least], made.times * e.epsilon * (inside > 0)
        made.laws = atoms(law, law[::-1]) if made.pure > 0 and e.epsilon < 500 else None
    if kind in ("gumbel_top_k", "zcdp"):
        made.rho, made.pure = (e.rho, INF) if kind == "zcdp" else (e.k * e.epsilon**2 / 8, e.k * e.epsilon)
        made.floor = gaussian(math.sqrt(2 * e.rho)) if kind == "zcdp" and 0 < e.rho < 100 else None
    if kind.endswith("_sum"):
        if not 1 <= e.noises <= 10**5 or not 1 <= e.dimension <= 10**10:
            raise Unknown("a sum beyond what is computed here")
        (of_discrete_gaussians if kind.startswith("discrete") else of_skellams)(e, made)
    made.rho = min(made.rho, made.pure * made.pure / 2)
    return made if made.rho < INF or made.pure < INF or made.laws else None

def of_discrete_gaussians(e, made):
    """Kairouz, Liu and Steinke, ICML 2021, Theorem 1, with a bound on tau that holds for every number of noises."""
    near = np.exp(-2 * math.pi**2 * e.sigma**2 * np.outer(1 - 1 / np.arange(2, e.noises + 1), np.arange(1, 12) ** 2))
    if e.l2 == 0 or e.sigma == 0 or (near := 2 * near.sum(1)).max(initial=0) >= 0.5:
        made.rho = INF if e.l2 else 0
        return
    tau, root = 2 * float(np.sum(np.log1p(near) - np.log1p(-near))), math.sqrt(e.noises) * e.sigma
    l1 = min(math.sqrt(e.dimension) * e.l2, e.l2**2)
    made.rho = ((e.l2 / root) ** 2 + 2 * tau * l1 / root + tau * tau * e.dimension) / 2
    if (reach := int(10 * root + e.l2) + 1) < MOST_CELLS // 8:
        made.floor = one_axis(np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * e.sigma**2)), e.noises, int(e.l2))

def of_skellams(e, made):
    """Renyi's divergence of Skellam noise outside an event of probability delta (fedpriv/privacy/skellam.py: proof)."""
    m, made.share, reach = e.noises * e.variance, e.delta, 1
    rate = lambda r: r * math.asinh(r / m) - m * (math.sqrt(1 + (r / m) ** 2) - 1)  # noqa: E731  P[X >= r] <= exp(-rate)
    if not 3 <= m < 1e15 or not 0 < e.delta < 1:
        return
    while rate(reach) < math.log(2 * e.dimension / e.delta):
        reach += max(1, reach // 1000)
    reach += math.ceil(e.l2)
    slope = 1 / (2 * (reach + 1) / m + math.exp(-math.asinh((reach + 2) / m)))
    curvature = -math.log1p(-1 / math.sqrt(m * m - 1)) * math.cosh(math.asinh((reach + 1) / m) / 2)
    made.rho, made.extra = curvature * e.l2**2 / 2, e.dimension * 2 * math.exp(-rate(reach + 1)) / (1 - slope)

# --- composition: (least, largest) epsilon at delta ----------------------------------------------------------------

def by_formula(mu, delta):
    """Of Gaussians: Balle and Wang, ICML 2018, Theorem 8, in 40 digits."""
    with mpmath.workdps(40):
        mu, low, phi = mpmath.mpf(mu), mpmath.mpf(0), mpmath.ncdf
        high = mu * mu / 2 + mu * mpmath.sqrt(-2 * mpmath.log(delta))
        for _ in range(100 if mu and phi(mu / 2) - phi(-mu / 2) > delta else 0):
            e = (low + high) / 2
            low, high = (e, high) if phi(mu / 2 - e / mu) - mpmath.exp(e) * phi(-mu / 2 - e / mu) > delta else (low, e)
        return (float(low), float(high) * (1 + 1e-12)) if low else (0.0, 0.0)

def by_order(rho, extra, delta):
    """From above, of what zCDP bounds (Canonne, Kamath and Steinke 2020, Proposition 12), at the best order."""
    b = np.geomspace(1e-7, 1e12, 200_001)  # order - 1
    return max(0.0, float(np.min(rho * (b + 1) + (extra - np.log(delta * (b + 1))) / b + np.log(b / (b + 1)))))

def on_grid(law, step):
    """(index of the least loss, probabilities at multiples of step, that of no bound): what lies between two points is
    divided so that P and Q keep their masses, which tells an adversary more (connect the dots).
    """
    least, most, tails = law
    first, last = math.floor(least / step), math.ceil(most / step)
    if last - first > MOST_CELLS or max(-least, most) > 700:
        raise Unknown("losses too far apart for the grid")
    grid = np.arange(first, last + 1) * step
    p_up, q_up, p_low, q_low = tails(grid)
    p = np.where(p_up[:-1] < 0.5, p_up[:-1] - p_up[1:], p_low[1:] - p_low[:-1])
    q = np.where(q_up[:-1] < 0.5, q_up[:-1] - q_up[1:], q_low[1:] - q_low[:-1])
    upper = np.clip((p - np.exp(grid[:-1]) * q) / -np.expm1(-step), 0, np.maximum(p, 0))
    return first, np.r_[p_low[0] + p[0] - upper[0], p[1:] - upper[1:], 0] + np.r_[0, upper], float(p_up[-1])

def by_grid(parts, delta):
    """Of [(law, times)]. From above: the grid's own epsilon, at delta less the errors of cut tails and of FFT. From
    below: a release moves by at most a step on the grid, by step^2 exp(step)/8 in the mean (its divided parts keep
    E[exp(-L)]), so all together by more than ``moved`` only with probability eta (Hoeffding).
    """
    count, eta, best = sum(number for _, number in parts), delta / 1000, (0.0, INF)
    step, tilts = max(most - least for (least, most, _), _ in parts) / 64, (np.geomspace(1e-3, 1e4, 50),) * 2
    for _ in range(12):
        grids = [(*on_grid(law, step), number) for law, number in parts]
        reach = []  # Chernoff: how far the sum goes, up and down, but with probability delta/1e6
        for sign, tilt in zip((1, -1), tilts, strict=True):
            logs = [
                sum(n * special.logsumexp(sign * t * step * (k + np.arange(len(p))), b=p) for k, p, _, n in grids)
                for t in tilt
            ]
            ends = (np.array(logs) - math.log(delta / 1e6)) / tilt
            reach.append((float(ends.min()), tilt[ends.argmin() : ends.argmin() + 1]))
        (up, _), (down, _) = reach
        tilts, low = tuple(tilt for _, tilt in reach), math.floor(-down / step)
        if not (up + down) / step < MOST_CELLS - 4:
            break
        size = 1 << math.ceil(math.log2((up + down) / step + 4))
        transform = np.ones(size // 2 + 1, complex)
        for first, p, _, n in grids:
            transform *= fft.rfft(np.bincount((first + np.arange(len(p))) % size, p, size)) ** n
        rounding = 2.3e-16 * math.log2(size) * count * math.sqrt(2 * np.count_nonzero(np.abs(transform) > 1e-16))
        error = rounding + 2 * delta / 1e6 + sum(n * sure for _, _, sure, n in grids)
        start = max(low, 0)
        p = np.roll(np.maximum(fft.irfft(transform, size), 0), -low)[start - low :]
        above, weighed = np.cumsum(p[::-1])[::-1], signal.lfilter([1], [1, -math.exp(-step)], p[::-1])[::-1]
        found = []  # delta(e) = above - exp(e - loss) weighed, between the loss before and this one
        for wanted in (delta - error, delta + error + eta):
            place = int(np.argmax(above - weighed <= wanted))
            inside = (above[place] - wanted) / weighed[place] if wanted > 0 and weighed[place] else 0
            at = (start + place) * step + math.log(inside) if inside > 0 and start + place else 0.0
            found.append(at if wanted > 0 and above[place] - weighed[place] <= wanted else INF)
        moved = step * math.sqrt(count * math.log(1 / eta) / 2) + count * step * step * math.exp(step) / 8
        best = max(best[0], found[1] - moved), min(best[1], found[0])
        if best[1] - best[0] <= 2e-3 * best[1] or best[1] < 1e-6:
            break
        step /= min(64.0, max(2.0, (best[1] - best[0]) / (1e-3 * best[1]))) if best[1] < INF else 4
    if best[1] == INF:
        raise Unknown("too many releases for the grid")
    return best

def epsilon(history, delta):
    """Of one client's releases, (event, times)."""
    costs = [(cost(text), n) for text, n in history]
    if any(one is None for one, _ in costs):
        return INF, INF
    costs = [(one, n) for one, n in costs if one.mu2 or one.rho or one.share]
    mu, paid, pure, rho, extra = (math.fsum(part(one) * n for one, n in costs) for part in (
        lambda c: c.mu2, lambda c: c.share, lambda c: c.pure, lambda c: c.rho + c.mu2 / 2, lambda c: c.extra))
    mu, least, most, why = math.sqrt(mu), 0.0, pure if paid <= delta else INF, "no bound is known here"
    if all(one.mu2 for one, _ in costs):
        return by_formula(mu, delta) if mu < 1e100 else (INF, INF)

    def grid(laws, delta):
        parts = [(law, n * one.times) for (one, n), law in zip(costs, laws, strict=True) if law]
        parts += [(gaussian(mu), 1)] if mu else []
        ways = [[(law[way % len(law)], n) for law, n in parts] for way in range(max(len(law) for law, _ in parts))]
        return tuple(map(max, zip(*(by_grid(way, delta) for way in ways), strict=True)))

    try:
        if all(one.laws or one.mu2 for one, _ in costs) and len(costs) <= 100 and paid < delta:
            least, above = grid([one.laws for one, _ in costs], delta - paid)
            least = grid([one.laws for one, _ in costs], delta)[0] if paid else least
        else:
            above = by_order(rho, extra, delta - paid) if rho < INF and paid < delta else INF
            floors = [one.floor or one.laws for one, _ in costs][:100]
            least = grid([*floors, *[None] * (len(costs) - len(floors))], delta)[0] if mu or any(floors) else 0.0
        most = min(most, above)
    except Unknown as error:
        why = str(error)
    if most == INF and paid <= delta:
        raise Unknown(why)
    return min(least, most), most
