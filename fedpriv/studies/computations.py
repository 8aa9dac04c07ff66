"""Figures that are computed, with their proofs: but for `consecutive_updates`, nothing is trained or sampled.

    python -m fedpriv.studies.computations what=NAME [OPTION=VALUE ...]

The first option names the computation, the others are its own; each prints its figures by name.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.stats import binom, chi2, norm

from fedpriv.common.command_line import guarded
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say
from fedpriv.mechanisms import laws, quantisation
from fedpriv.studies import consecutive_updates, paper_bounds

Vector = NDArray[np.float64]


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
    published_coefficients = paper_bounds.FEDCAD.published_coefficients
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
    """The largest variance of a pair's mean over all weights, over that of independent answers, as the number of shared
    bits grows; by the closed forms of both (Lemma 2), on a fine grid that holds the corners and the centre.
    """
    p = 0.5 + np.linspace(-1.0, 1.0, 401) * quantisation.tanh_half(epsilon) / 2
    first, second = np.meshgrid(p, p)
    alone = first * (1 - first) + second * (1 - second)
    paired = alone + 2 * (laws.both_high(first, second, 0.0, None) - first * second)
    return {"ratio": float(paired.max() / alone.max()), "pointwise": float((paired / alone).max())}


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


COMPUTATIONS: Mapping[str, tuple[Callable[..., dict[str, float]], tuple[str, ...]]] = {
    "adaptive_diff": (adaptive_diff, ("dimension", "sigma", "delta", "diff", "obsolete_factor")),
    "least_correlation": (least_correlation, ("clients", "epsilon", "bits")),
    "worst_variance": (worst_variance, ("epsilon",)),
    "exact_mean": (exact_mean, ("epsilon", "bits")),
    "nbafl_extreme": (nbafl_extreme, ("clients", "rounds", "dimension", "noise", "delta")),
    "fedcad_variance": (paper_bounds.fedcad_variance, ("participations",)),
    "fedcad_release": (paper_bounds.fedcad_release, ("participations",)),
    "fedcad_consecutive": (consecutive_updates.fedcad_consecutive, ("clients", "rounds", "seed")),
    "adpfl_sensitivity": (paper_bounds.adpfl_sensitivity, ("clients",)),
    "adpfl_upload": (paper_bounds.adpfl_upload, ("epsilon", "clients", "rounds", "delta")),
    "adpfl_equation8": (paper_bounds.adpfl_equation8, ("epsilon", "clients", "clip", "delta")),
    "adpfl_constant": (paper_bounds.adpfl_constant, ("epsilon", "delta")),
    "agn_theorem": (paper_bounds.agn_theorem, ("noise", "rate", "rounds", "delta")),
    "partial_laplace": (paper_bounds.partial_laplace, ("epsilon", "selected")),
    "weight_sum": (paper_bounds.weight_sum, ("clients",)),
    "budget_ratio": (paper_bounds.budget_ratio, ("queries",)),
    "one_bit": (paper_bounds.one_bit, ("epsilon",)),
    "shared_bits": (paper_bounds.shared_bits, ("epsilon", "bits")),
}


def compute(options: Sequence[str]) -> dict[str, float]:
    """Figures by name. Raises `OptionError` for a computation or an option that is not there."""
    pictures = [option for option in options if option.startswith("dataset")]
    given = dict(option.split("=", 1) for option in options if "=" in option and option not in pictures)
    what = given.pop("what", "")
    if what not in COMPUTATIONS:
        raise OptionError("what", what, f"allowed: {', '.join(COMPUTATIONS)}")
    function, names = COMPUTATIONS[what]
    if set(given) != set(names):
        raise OptionError(what, ", ".join(given), f"needs {', '.join(names)}")
    try:
        numbers = {name: float(value) for name, value in given.items()}
        if what == "fedcad_consecutive":
            return function(pictures, **numbers)
        return function(**numbers)
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
