"""Figures that papers state, or that refute them, computed with their proofs: prices of Gaussian releases, variances,
the law of shared bits, lower bounds. But for `fedcad_consecutive` nothing is trained or sampled.

    python -m fedpriv.studies.computations what=NAME [OPTION=VALUE ...]

The first option names the computation, the others are its own; each prints its figures by name.
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog, minimize_scalar
from scipy.stats import binom, chi2, norm, t
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedpriv.common.command_line import guarded
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say
from fedpriv.config.halves import locate
from fedpriv.config.method_pairs import target
from fedpriv.mechanisms import laws, quantisation
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.readings import opacus_renyi

#: The halves of the methods whose equations are asked here.
FEDCAD = locate(target("fedcad", "client"), "strategy.client._target_")
FEDAGS = locate(target("fedags", "server"), "strategy.server._target_")


def adaptive_diff(
    dimension: float, sigma: float, delta: float, diff: float, obsolete_factor: float
) -> dict[str, float]:
    """Fed-CAD, published, adaptive Diff: a lower bound on the epsilon of three participations, by two concrete lines of
    updates that differ in the second one only (x_3 is the same again), C = 1.

    Line A is 0, 0, ...: its change is 0 and Diff falls to (1 - gamma) D. Line B moves by D in its second participation,
    which no clip touches: Diff stays D. So the third release has other coefficients r, s (v is the same: the first two
    releases have D in both). The server, who knows the lines, looks at T = |y_3 - r_A y_2 - (x_3 - r_A x_2)|^2 with the
    x of line A. Under A this is s_A^2 sigma^2 times chi-squared with d degrees of freedom. Under B the vector is normal
    with variance w = (s_B^2 + (r_B - r_A)^2 v) sigma^2 per coordinate around some mean, so T is at least as large, in
    law, as w times chi-squared. Where w > s_A^2 sigma^2, of t = w (d - 4 sqrt(2 d)):
    P_B(T > t) >= P(chi2_d > d - 4 sqrt(2 d)), and by Chernoff's bound, with x = t / (d s_A^2 sigma^2) > 1,
    P_A(T > t) <= exp(-(d / 2)(x - 1 - ln x)). (epsilon, delta) needs P_B <= e^epsilon P_A + delta, hence
    epsilon >= ln(P_B - delta) + (d / 2)(x - 1 - ln x).
    """
    published_coefficients = FEDCAD.published_coefficients
    first = published_coefficients(torch.tensor(diff, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    paths = [torch.tensor(d, dtype=torch.float64) for d in ((1 - obsolete_factor) * diff, diff)]
    a, b = (published_coefficients(path, first.variance) for path in paths)
    narrow = float(a.fresh) ** 2
    wide = float(b.fresh) ** 2 + float(b.reuse - a.reuse) ** 2 * float(first.variance)
    found = {"variance_ratio": narrow / wide, "noise": sigma * math.sqrt(narrow)}  # sigma cancels in the ratio
    edge = dimension - 4 * math.sqrt(2 * dimension)
    x = edge * wide / (dimension * narrow)
    seen = float(chi2.sf(edge, dimension))
    bound = math.log(seen - delta) + dimension / 2 * (x - 1 - math.log(x)) if x > 1 and seen > delta else 0.0
    return found | {"epsilon_lower": max(0.0, bound)}


# --- CoQ-FL ------------------------------------------------------------------------------------------------


def least_correlation(clients: float, epsilon: float, bits: float) -> dict[str, float]:
    """How far pairs, and groups of all, are above the least possible variance of a sum of one-bit answers with given
    marginals. The least is a linear programme over the joint laws q of the bits: minimise the sum over i < j of
    P(both high), with q >= 0 and the marginals given. Largest excess over marginals k / 2^M at five weights per client,
    in units of the variance of independent answers.
    """
    number, cells = int(clients), 2.0**bits
    span = quantisation.tanh_half(epsilon)
    grid = [round((0.5 + weight * span / 2) * cells) / cells for weight in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    outcomes = np.array(list(itertools.product((0.0, 1.0), repeat=number)))
    cost = outcomes.sum(1) * (outcomes.sum(1) - 1) / 2
    marginals = np.vstack([outcomes.T, np.ones(len(outcomes))])
    worst = {"pairs_excess": 0.0, "group_excess": 0.0}
    for p in itertools.combinations_with_replacement(grid, number):
        solved = linprog(cost, A_eq=marginals, b_eq=[*p, 1.0], bounds=(0, 1), method="highs")
        independent = sum(one * (1 - one) for one in p)
        for name, both in (("pairs_excess", _paired(p, bits)), ("group_excess", _grouped(p))):
            worst[name] = max(worst[name], 2 * (both - float(solved.fun)) / independent)
    return worst


def _paired(p: Sequence[float], bits: float) -> float:
    """Sum over i < j of P(both high) where neighbours are pairs and the others independent."""
    total = 0.0
    for i, j in itertools.combinations(range(len(p)), 2):
        pair = j == i + 1 and i % 2 == 0
        total += float(laws.both_high(p[i], p[j], 0.0, int(bits))) if pair else p[i] * p[j]
    return total


def _grouped(p: Sequence[float]) -> float:
    """The same for one group of all, by a permutation."""
    law = [torch.tensor([one], dtype=torch.float64) for one in p]
    pairs = itertools.combinations(range(len(p)), 2)
    covariances = {(i, j): float(quantisation.group_covariance(law[i], law[j], len(p), 0.5)) for i, j in pairs}
    return sum(covariances[i, j] + p[i] * p[j] for i, j in covariances)  # 4 step^2 is 1 at a step of one half


def worst_variance(epsilon: float) -> dict[str, float]:
    """The largest variance of a pair's mean over all weights, over that of independent answers."""
    alone, paired = _variances(epsilon)
    return {"ratio": float(paired.max() / alone.max()), "pointwise": float((paired / alone).max())}


def half_budget(epsilon: float) -> dict[str, float]:
    """A pair at half of epsilon against independent answers at epsilon: the mean and the largest variance of the mean
    over all weights; in what share of the weights (%) the pair has more, and at most how many times as much.
    """
    (_, paired), (alone, _) = _variances(epsilon / 2), _variances(epsilon)
    return {
        "mean": float(paired.mean()),
        "mean_alone": float(alone.mean()),
        "largest": float(paired.max()),
        "largest_alone": float(alone.max()),
        "worse": 100 * float((paired > alone * (1 + 1e-12)).mean()),
        "ratio": float((paired / alone).max()),
    }


def _variances(epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Of the mean of two independent answers, and of a pair as the number of shared bits grows, by the closed forms of
    both (Lemma 2): for weights in [-1, 1] on a fine grid that holds the corners and the centre.
    """
    p = 0.5 + np.linspace(-1.0, 1.0, 401) * quantisation.tanh_half(epsilon) / 2
    first, second = np.meshgrid(p, p)
    alone = first * (1 - first) + second * (1 - second)
    paired = alone + 2 * (laws.both_high(first, second, 0.0, None) - first * second)
    size = float(quantisation.step(1.0, epsilon)) ** 2  # of the mean of two answers +step or -step
    return size * alone, size * paired


def exact_mean(epsilon: float, bits: float) -> dict[str, float]:
    """Unbiasedness and Lemma 2, by every shared number of 2^M: the largest difference of either client's mean from its
    weight, and of the pair's covariance from the lemma's, over the lemma's A^2 / 2^M for finite M, of 33 x 33 weights.

    Alice answers high with chance clip(t_a - u, 0, 1), Bob with clip(u + 1 - t_b, 0, 1), t_a = p_a N,
    t_b = (1 - p_b) N, each by an own coin: given u the two are independent.
    """
    cells = 2 ** int(bits)
    weights = np.linspace(-1.0, 1.0, 33)
    length = float(quantisation.step(1.0, epsilon))
    p = 0.5 + weights / (2 * length)
    u = np.arange(cells)
    alice = np.clip(p[:, None] * cells - u, 0.0, 1.0)
    bob = np.clip(u + 1 - (1 - p)[:, None] * cells, 0.0, 1.0)
    means = [length * (2 * one.mean(1) - 1) - weights for one in (alice, bob)]
    covariance = 4 * length**2 * (alice @ bob.T / cells - np.outer(p, p))
    first, second = np.meshgrid(p, p, indexing="ij")
    lemma = -4 * length**2 * np.where(first + second <= 1, first * second, (1 - first) * (1 - second))
    return {
        "bias": float(np.abs(means).max()),
        "lemma_excess": float(np.abs(covariance - lemma).max() / (length**2 / cells)),
    }


# --- NbAFL -------------------------------------------------------------------------------------------------


def nbafl_extreme(clients: float, rounds: float, dimension: float, noise: float, delta: float) -> dict[str, float]:
    """NbAFL without bounds on an example's numbers: a lower bound on the epsilon of one client's uploads against the
    server, linear model, C = 1; ``noise``: the deviation of an upload's noise, ``dimension``: pixels times classes.

    The data sets. All examples of all K clients are zero vectors; one client has one example more or not, x = kappa e
    with label y, kappa as large as one likes. A zero vector moves no weight of a class, only biases. So without x the
    client's weights W are those that it received, clipped. With x: where class y has not the largest weight at e, the
    first batch that holds x moves W by a multiple of kappa (e_y - e_a), a the class that has; from then on x is right
    by a margin of order kappa and moves nothing. So as kappa grows, what is sent goes to C (e_y - e_a)/sqrt(2), and
    since W_ye < W_ae its inner product with what is sent without x is at most 0: the two lie at least C apart.

    The test. The server knows every W that it sends. In the first n rounds in which y has not the largest weight
    ("moving" rounds), it sums the upload's deviation from what is sent without x, along the unit vector to what is
    sent with it. Without x the sum is N(0, n s^2), s the noise; with x at least n C + N(0, n s^2). With fewer than n
    moving rounds it says "without". So P_without <= Q(t / (s sqrt n)) and P_with >= Q((t - n C) / (s sqrt n)) - f,
    with f the chance of fewer.

    f. Let k be a fixed class. W_y - W_k at e, in a round's new model, is a mean over clients plus N(0, 2 s^2/K). The
    others send the received difference R times min(1, C/|W|), the client at most sqrt(2) C. |W| >= 10 C in all rounds
    but with chance T P(chi2_d <= (11 C sqrt(K)/s)^2), and with |noise| <= 6 deviations in all rounds but with chance T
    erfc(6/sqrt 2), R stays below (6 sqrt(2/K) s + sqrt(2) C/K)/(1 - 1/10) = R*. Then, whatever was before, y is below
    k with chance at least p = Phi(-(R*/10 + sqrt(2) C/K) / (s sqrt(2/K))), so the moving rounds among the last T - 1
    are at least Binomial(T - 1, p). P_with <= e^epsilon P_without + delta gives epsilon, the best over n.
    """
    number, total = int(clients), int(rounds) - 1
    deviation = noise / math.sqrt(number)  # of the mean's noise, per coordinate
    if total < 1 or deviation <= 0:
        raise ValueError("needs two rounds or more, and noise")
    rare = rounds * (chi2.cdf((11 / deviation) ** 2, dimension) + 2 * norm.sf(6))
    pushed = math.sqrt(2) / number
    most = (6 * math.sqrt(2) * deviation + pushed) / (1 - 1 / 10)
    p = float(norm.cdf(-(most / 10 + pushed) / (math.sqrt(2) * deviation)))
    found = {"moving_share": p, "epsilon_lower": 0.0}
    for n in range(1, total + 1):
        fewer = rare + float(binom.cdf(n - 1, total, p))
        if (seen := float(norm.cdf(3)) - fewer - delta) > 0:  # t = n C - 3 s sqrt(n)
            bound = math.log(seen) - float(norm.logsf(math.sqrt(n) / noise - 3))
            found["epsilon_lower"] = max(found["epsilon_lower"], bound)
    return found


# --- bounds and equations of papers -------------------------------------------------------------------------


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


def fedcad_printed(noise: float, rounds: float, delta: float) -> dict[str, float]:
    """Fed-CAD, section VII: the only reading that gives its three printed epsilons (`fedpriv explain-epsilon`): Opacus'
    RDP accountant of ten local steps in every round, Poisson batches of 60 of 600, and noise of ten times sigma.
    """
    return {"epsilon": opacus_renyi(10 * noise, 60 / 600, 10 * int(rounds), delta)}


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


# --- consecutive updates, trained ---------------------------------------------------------------------------

EXAMPLES, BATCH, RATE = 600, 60, 0.01


def fedcad_consecutive(overrides: Sequence[str], clients: float, rounds: float, seed: float) -> dict[str, float]:
    """The paper's section IV-B: every client takes part in every round, has 600 pictures drawn at random, and makes one
    epoch of SGD (rate 0.01, batches of 60) with a network of two convolutions and two fully connected layers; the
    model moves by the mean of the updates. overrides: where the pictures are.

    With c_i = |Delta_i - Delta_(i-1)| of one client in consecutive rounds: cases, how many there are; below, in how
    many c_i is less than |Delta_i| and |Delta_(i-1)|; ratio and mean_ratio, the largest and the mean of c_i over the
    lesser of the two; change, the largest c_i; first, peak and last: the mean of c_i over clients in its first, its
    largest and its last round; peak_round: that of the largest; mean: of all; round I: of each.

    rise_and_fall, at most 1 if the means first rise rapidly and then fall slowly: with m the mean over the third of the
    rounds around the peak, the largest of three: 1 + (e - m)/m of the first round and of the last third of the rounds,
    e - m being the upper end of a 95 % interval over clients; and the rounds until the peak over those after it.
    """
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_dataset
    from fedpriv.training.models import build_model

    config = compose([*overrides, "model=cnn"])
    data = load_dataset(config.dataset, 0)
    model = build_model(config.model, data.input_shape or data.train.inputs.shape[1:], 10, seed=int(seed))
    order = np.random.default_rng(int(seed)).permutation(len(data.train))[: int(clients) * EXAMPLES]
    mean, std = (torch.tensor(one).view(1, -1, 1, 1) for one in (data.mean, data.std))
    images = (torch.as_tensor(np.asarray(data.train.inputs[order])).float() / 255 - mean) / std
    labels = torch.as_tensor(np.asarray(data.train.targets[order])).long()
    shuffle = torch.Generator().manual_seed(int(seed))
    start = parameters_to_vector(model.parameters()).detach().clone()
    last: list[Tensor] = []
    changes, ratios = [], []
    for _ in range(int(rounds)):
        updates = []
        for client in range(int(clients)):
            rows = torch.arange(client * EXAMPLES, (client + 1) * EXAMPLES)
            rows = rows[torch.randperm(EXAMPLES, generator=shuffle)]
            updates.append(_trained(model, start, images[rows], labels[rows]) - start)
        if last:
            found = [float((new - old).norm()) for new, old in zip(updates, last, strict=True)]
            lesser = [float(min(new.norm(), old.norm())) for new, old in zip(updates, last, strict=True)]
            changes.append(found)
            ratios += [one / other for one, other in zip(found, lesser, strict=True)]
        start, last = start + torch.stack(updates).mean(0), updates
    means = [float(np.mean(one)) for one in changes]
    return {
        "cases": float(len(ratios)),
        "below": float(sum(ratio < 1 for ratio in ratios)),
        "ratio": max(ratios),
        "mean_ratio": float(np.mean(ratios)),
        "change": max(max(one) for one in changes),
        "first": means[0],
        "peak": max(means),
        "peak_round": float(2 + int(np.argmax(means))),
        "last": means[-1],
        "mean": float(np.mean(means)),
        "rise_and_fall": _rise_and_fall(np.asarray(changes)),
    } | {f"round {i}": mean for i, mean in enumerate(means, 2)}


def _rise_and_fall(changes: np.ndarray) -> float:
    """Of changes [rounds, clients]: see `fedcad_consecutive`."""
    third, peak = max(1, len(changes) // 3), int(changes.mean(1).argmax())
    start = min(max(peak - third // 2, 0), len(changes) - third)
    top = changes[start : start + third].mean(0)

    def surely_below(some: np.ndarray) -> float:
        less = some - top
        half = t.ppf(0.975, len(less) - 1) * less.std(ddof=1) / math.sqrt(len(less))
        return float(1 + (less.mean() + half) / top.mean())

    after = len(changes) - 1 - peak
    return max(surely_below(changes[0]), peak / after if after else math.inf, surely_below(changes[-third:].mean(0)))


def fedcad_overhead(overrides: Sequence[str], repeats: float) -> dict[str, float]:
    """What Fed-CAD's correlated noise costs beside Fed-LDP's fresh noise, on the network of `fedcad_consecutive`: the
    least times of a later release of each (ms), of one epoch on 600 pictures (ms), and the difference of the releases
    in percent of that epoch. Times are this machine's. overrides: where the pictures are, of which only the
    size counts.
    """
    from fedpriv.client.build import make_client
    from fedpriv.config.compose import compose
    from fedpriv.training.models import build_model

    config = compose([*overrides, "model=cnn"])
    model = build_model(config.model, (1, 28, 28), 10, seed=0)
    start = parameters_to_vector(model.parameters()).detach().clone()
    images, labels = torch.zeros(EXAMPLES, 1, 28, 28), torch.zeros(EXAMPLES).long()
    spent = {"epoch": _least(lambda: _trained(model, start, images, labels), repeats)}
    for name, own in (("fedldp", ()), ("fedcad", ("strategy.client.obsolete_factor=0.4",))):
        client: Any = make_client(compose([f"strategy={name}", "privacy.variant=published", *own]), examples=EXAMPLES)
        noise = SeededNoise(0)
        kept = client.perturb(start, None, noise).state
        spent[name] = _least(partial(client.perturb, start, kept, noise), repeats)
    return spent | {"overhead": 100 * (spent["fedcad"] - spent["fedldp"]) / spent["epoch"]}


def _least(work: Callable[[], object], repeats: float) -> float:
    """In milliseconds; the first time warms up."""
    times = [0.0] * (int(repeats) + 1)
    for one in range(len(times)):
        began = time.perf_counter()
        work()
        times[one] = 1000 * (time.perf_counter() - began)
    return min(times[1:])


def _trained(model: nn.Module, start: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """The parameters after one epoch from ``start``."""
    vector_to_parameters(start.clone(), model.parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in range(0, len(labels), BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[batch : batch + BATCH]), labels[batch : batch + BATCH]).backward()
        optimiser.step()
    return parameters_to_vector(model.parameters()).detach().clone()


COMPUTATIONS: Mapping[str, Callable[..., dict[str, float]]] = {
    one.__name__: one
    for one in (
        *(
            adaptive_diff,
            least_correlation,
            worst_variance,
            half_budget,
            exact_mean,
            nbafl_extreme,
            fedcad_variance,
            fedcad_release,
        ),
        *(fedcad_consecutive, adpfl_sensitivity, adpfl_upload, adpfl_equation8, adpfl_constant, agn_theorem),
        *(partial_laplace, weight_sum, budget_ratio, one_bit, shared_bits, fedcad_printed, fedcad_overhead),
    )
}


def compute(options: Sequence[str]) -> dict[str, float]:
    """Figures by name. Raises `OptionError` for a computation or an option that is not there."""
    pictures = [option for option in options if option.startswith("dataset")]
    given = dict(option.split("=", 1) for option in options if "=" in option and option not in pictures)
    what = given.pop("what", "")
    if what not in COMPUTATIONS:
        raise OptionError("what", what, f"allowed: {', '.join(COMPUTATIONS)}")
    names = [name for name in inspect.signature(COMPUTATIONS[what]).parameters if name != "overrides"]
    if set(given) != set(names):
        raise OptionError(what, ", ".join(given), f"needs {', '.join(names)}")
    try:
        numbers = {name: float(value) for name, value in given.items()}
        trains = "overrides" in inspect.signature(COMPUTATIONS[what]).parameters
        return COMPUTATIONS[what](*([pictures] if trains else []), **numbers)
    except ValueError as error:
        raise OptionError(what, ", ".join(given.values()), str(error)) from None


def main(arguments: Sequence[str]) -> int:
    def call() -> int:
        for name, value in compute(arguments).items():
            say(f"{name} = {value:.6g}")
        return 0

    return guarded(call)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
