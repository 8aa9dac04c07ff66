"""What papers state in closed form, computed: prices of Gaussian releases, variances, the law of shared bits.

Each function gives figures by name, for `fedpriv.studies.computations`. Nothing is trained, nothing is sampled.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from fedpriv.config.halves import locate
from fedpriv.config.method_pairs import target
from fedpriv.mechanisms import quantisation
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

#: The halves of the methods whose equations are asked here.
FEDCAD = locate(target("fedcad", "client"), "strategy.client._target_")
FEDAGS = locate(target("fedags", "server"), "strategy.server._target_")


def fedcad_variance(participations: float) -> dict[str, float]:
    """Fed-CAD with a constant Diff: the variance v_i of the noise by Algorithm 1, line 18, in units of sigma^2 C^2,
    from the second participation on, for Diff = 0.05, 0.1, ..., 0.95.

    gap: largest relative distance of v_i from Theorem VI.2, (2 D - D^2)/(1 - (1 - D)^(2 i)), and of the variance that
    lines 15 and 16 give, s^2 + r^2 v_(i-1), from line 18. largest: of all v_i. order: the largest v_i(D)/v_i(D') of
    D < D' (below 1: less Diff, less noise).
    """
    diff = torch.arange(1, 20, dtype=torch.float64) / 20
    before, gap, largest, order = torch.ones_like(diff), 0.0, 0.0, 0.0
    for i in range(2, int(participations) + 1):
        reuse, fresh, variance = FEDCAD.published_coefficients(diff, before)
        stated = (2 * diff - diff**2) / (1 - (1 - diff) ** (2 * i))  # [Fed-CAD, Theorem VI.2]
        sent = fresh**2 + reuse**2 * before
        gap = max(gap, *(float((one / variance - 1).abs().max()) for one in (stated, sent)))
        largest, before = max(largest, float(variance.max())), variance
        order = max(order, float((variance[:-1] / variance[1:]).max()))
    return {"gap": gap, "largest": largest, "order": order}


def fedcad_release(participations: float) -> dict[str, float]:
    """Fed-CAD's release in the form of section V-A, and Fed-LDP's error.

    bias: its noise is a sum of centred Gaussians, so the mean of a release is what is left without them, phi/alpha +
    (beta/alpha) x_1 with phi = alpha x_2 - beta x_1 (phi itself is sent with noise); the largest distance from x_2, for
    unit vectors x_1, x_2 in 50 dimensions and Diff = 0.05, ..., 0.95. error: distance from 1 of the mean variance of
    Algorithm 1's noise over the participations, in units of sigma^2 C^2, at Diff = 1, where it is Fed-LDP (r = 0).
    """
    draws = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first, second = (draw / draw.norm() for draw in draws)
    bias = 0.0
    for diff in (step / 20 for step in range(1, 20)):
        alpha, beta = 1 + (1 - diff) ** 2, 1 - diff
        release = (alpha * second - beta * first) / alpha + beta / alpha * first
        bias = max(bias, float((release - second).norm()))
    before, total = torch.tensor(1.0, dtype=torch.float64), 1.0
    for _ in range(1, int(participations)):
        before = FEDCAD.published_coefficients(torch.tensor(1.0, dtype=torch.float64), before).variance
        total += float(before)
    return {"bias": bias, "error": abs(total / int(participations) - 1)}


def adpfl_sensitivity(clients: float) -> dict[str, float]:
    """ADP-FL, Theorem 1: what the mean of N clipped updates moves by when one client's is replaced, C = 1, over its
    bound 2/N, minus 1. Clipped vectors have length 1 at most, so two of them lie at most 2 apart, and the others
    cancel: `excess` is of the pair u, -u, which reaches this, and of a hundred pairs of unit vectors.
    """
    number, rng = int(clients), np.random.default_rng(0)
    updates = rng.standard_normal((number, 20))
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    others = [-updates[0], *(one / np.linalg.norm(one) for one in rng.standard_normal((100, 20)))]
    moved = [np.linalg.norm(updates.mean(0) - np.vstack([one[None], updates[1:]]).mean(0)) for one in others]
    return {"excess": float(max(moved)) * number / 2 - 1}


def adpfl_upload(epsilon: float, clients: float, rounds: float, delta: float) -> dict[str, float]:
    """ADP-FL where the clipping server is trusted and the clip norms are public: what a client's ``rounds`` uploads
    cost at least, and with its whole share of epsilon in every round exactly.

    An upload is clip(Delta, C) + N(0, (S sigma_s)^2 I), S = 2 C/N (equation 13), sigma_s^2 = (epsilon + 2 log(1/delta))
    / epsilon^2 (equation 16). Two updates of one client lie up to 2 C = N S apart, which clip(Delta, C) = +C u and -C u
    reach: one Gaussian of mu = N/sigma_s, and sqrt(rounds) times that for all of them. A share a epsilon < epsilon has
    more noise: `least` has a = 0.8 in every round.
    """
    return {
        name: gaussian_epsilon(math.sqrt(rounds) * clients / _adpfl_scale(share, delta), delta)
        for name, share in (("exact", epsilon), ("least", 0.8 * epsilon))
    }


def adpfl_equation8(epsilon: float, clients: float, clip: float, delta: float) -> dict[str, float]:
    """The same of one upload by equation 8, whose noise is C times as large: mu = N/(C sigma_s)."""
    return {
        name: gaussian_epsilon(clients / (clip * _adpfl_scale(share, delta)), delta)
        for name, share in (("exact", epsilon), ("least", 0.8 * epsilon))
    }


def _adpfl_scale(epsilon: float, delta: float) -> float:
    """sigma_s of equation 16."""
    return math.sqrt(epsilon + 2 * math.log(1 / delta)) / epsilon


def adpfl_constant(epsilon: float, delta: float) -> dict[str, float]:
    """ADP-FL, Theorem 2: a Gaussian with sigma = S sqrt(2 log(1/delta))/epsilon, exactly: mu = S/sigma."""
    return {"exact": gaussian_epsilon(epsilon / math.sqrt(2 * math.log(1 / delta)), delta)}


def agn_theorem(noise: float, rate: float, rounds: float, delta: float) -> dict[str, float]:
    """DPFL-AGN, Theorem 1: ``printed``, equation 13 with the exponent's sign and without a logarithm as it is printed,
    ``proved``, equation 18, and ``logged``, with the sign of 18 and the logarithm of equation 14, at their best order
    of 2, ..., 64; and ``lower``, a bound on the true epsilon.

    lower: the example's gradient is the clip norm times a unit vector, all others are 0. The server says "with" where
    in some round the sum along that vector is above 1/2. Without the example that has a chance of at most
    P = T Q(1/(2 noise)); with it, of at least (1 - (1 - rate)^T) Phi(1/(2 noise)). So epsilon is at least
    ln(P_with - delta) - ln P.
    """
    orders = range(2, 65)
    found = {"printed": math.inf, "proved": math.inf, "logged": math.inf}
    for order in orders:
        j = np.arange(order + 1)
        logs = np.array([math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in j])
        logs += j * math.log(rate) + (order - j) * math.log1p(-rate)
        for name, sign in (("printed", -1.0), ("proved", 1.0), ("logged", 1.0)):
            total = float(np.logaddexp.reduce(logs + sign * j * (j - 1) / (2 * noise**2)))
            step = total if name == "logged" else math.exp(min(total, 700.0))
            value = (rounds * step + math.log(1 / delta)) / (order - 1)
            found[name] = min(found[name], value)
    seen = -math.expm1(rounds * math.log1p(-rate)) * float(norm.cdf(1 / (2 * noise)))
    rare = math.log(rounds) + float(norm.logsf(1 / (2 * noise)))
    found["lower"] = max(0.0, math.log(seen - delta) - rare) if seen > delta else 0.0
    return found


def partial_laplace(epsilon: float, selected: float) -> dict[str, float]:
    """DP-FedAGS, Theorem 1 under equation 14: data sets that differ in the ``selected`` first coordinates alone, which
    get Laplace noise of scale Delta S_N/epsilon, the selection being fixed. The largest log-ratio of densities, over
    outputs on a grid that holds both ends, for L1 distances that sum to Delta S_N = 1.
    """
    number, outputs = int(selected), np.linspace(-2.0, 2.0, 401)
    shares = [np.full(number, 1 / number), np.eye(number)[0], np.arange(1, number + 1) / (number * (number + 1) / 2)]
    ratios = [
        sum(float((epsilon * (np.abs(outputs - share) - np.abs(outputs))).max()) for share in one) for one in shares
    ]
    return {"largest": max(ratios)}


def weight_sum(clients: float) -> dict[str, float]:
    """DP-FedAGS, equation 37: distance from 1 of the sum of the weights, the largest of a hundred draws of numbers of
    examples and losses.
    """
    number, rng = int(clients), np.random.default_rng(0)
    draws = [(rng.integers(1, 2000, number).tolist(), rng.random(number).tolist()) for _ in range(100)]
    sums = [sum(FEDAGS.weights_by_loss(*draw)) for draw in draws]
    return {"gap": max(abs(one - 1) for one in sums)}


def budget_ratio(queries: float) -> dict[str, float]:
    """DP-FedAGS: q^(2/3) over the split epsilon_1 : epsilon_2 of a fixed sum that makes the variances of alpha and beta
    together least. printed: both scales q Delta S/epsilon_i, as in the text. vectors: alpha alone with the
    factor q, as where the threshold gets noise once.
    """
    found = {}
    for name, factor in (("printed", queries), ("vectors", 1.0)):
        best = minimize_scalar(
            lambda share, factor=factor: (queries / share) ** 2 + (factor / (1 - share)) ** 2,
            bounds=(1e-6, 1 - 1e-6),
            method="bounded",
            options={"xatol": 1e-12},
        )
        found[name] = queries ** (2 / 3) * float((1 - best.x) / best.x)
    return found


def one_bit(epsilon: float) -> dict[str, float]:
    """CoQ-FL, Theorem 1, of LDP-FL's bit: the largest log-ratio of the chances of an answer, over both answers and 401
    x 401 weights of the range, over epsilon, minus 1. Equation 2 is monotone in the weight: the ends are on the grid.
    """
    p = 0.5 + np.linspace(-1.0, 1.0, 401) / (2 * float(quantisation.step(1.0, epsilon)))
    ratios = [float(np.log(chance.max() / chance.min())) for chance in (p, 1 - p)]
    return {"excess": max(ratios) / epsilon - 1}


def shared_bits(epsilon: float, bits: float) -> dict[str, float]:
    """CoQ-FL's pair by every shared number of 2^M, for 33 x 33 weights of [-1, 1]: covariance, the largest of the
    pair's two answers (above 0: not negative) and magnitude, the largest of its absolute values, in units of A^2;
    centre: the variance of the pair's sum where both weights are the centre, over that of independent ones; gain: the
    largest fall of the covariance by one more shared bit, in units of A^2/2^M.
    """
    weights = np.linspace(-1.0, 1.0, 33)
    length = float(quantisation.step(1.0, epsilon))
    p = 0.5 + weights / (2 * length)

    def covariance(count: int) -> np.ndarray:
        cells = 2**count
        u = np.arange(cells)
        alice = np.clip(p[:, None] * cells - u, 0.0, 1.0)
        bob = np.clip(u + 1 - (1 - p)[:, None] * cells, 0.0, 1.0)
        return np.asarray(4 * (alice @ bob.T / cells - np.outer(p, p)))

    here, more = covariance(int(bits)), covariance(int(bits) + 1)
    alone = 4 * 2 * p[16] * (1 - p[16])
    return {
        "covariance": float(here.max()),
        "magnitude": float(np.abs(here).max()),
        "centre": float((alone + 2 * here[16, 16]) / alone),
        "gain": float((here - more).max() * 2**bits),
    }
