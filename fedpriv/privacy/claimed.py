"""What each paper claims: one pure function per paper, as published, whether or not it is true.

The verified epsilon comes from the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedpriv.mechanisms import laws
from fedpriv.privacy.gaussian_dp import gaussian_epsilon


@dataclass(frozen=True)
class Claim:
    """epsilon at delta for ``scope`` (whole run, one round, one coordinate of one release), and its formula."""

    epsilon: float
    scope: Literal["run", "round", "coordinate"]
    equation: str
    delta: float


# --- Fed-CAD and Fed-LDP -----------------------------------------------------------------------------------------

#: Default orders of dp-accounting 0.6.0, the accountant that Algorithm 2 names only as "Renyi moment accountant".
_LIBRARY_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024]


def fedcad(noise_multiplier: float, participations: int, delta: float) -> Claim:
    """Fed-CAD (Zhu et al.), Theorem VI.1 with Algorithm 2 line 6: a Gaussian of sensitivity C per participation.

    noise_multiplier: the paper's sigma, standard deviation / C (the replace-one sensitivity would be 2C).
    participations: of the client that takes part most often.
    """
    return Claim(
        _renyi_gaussians(noise_multiplier, participations, delta), "run", "Fed-CAD, Theorem VI.1, Alg. 2 line 6", delta
    )


def fedldp(noise_multiplier: float, participations: int, delta: float) -> Claim:
    """Fed-LDP, the baseline of Fed-CAD's paper, Lemma III.1: accounted in the same way."""
    return Claim(
        _renyi_gaussians(noise_multiplier, participations, delta), "run", "Fed-CAD, Lemma III.1, Alg. 2 line 6", delta
    )


def _renyi_gaussians(multiplier: float, count: int, delta: float) -> float:
    # [Fed-CAD, Alg. 2 line 6]
    if count == 0:
        return 0.0
    if multiplier == 0:
        return math.inf
    best = math.inf
    for order in _LIBRARY_ORDERS:
        divergence = count * order / (2 * multiplier**2)
        if delta**2 + math.expm1(-divergence) > 0:
            return 0.0
        best = min(best, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return max(0.0, best)


# --- sums over rows -----------------------------------------------------------------------------------------------


def row_sums(multiplier: float, rounds: int, delta: float, exact: bool) -> Claim:
    """No paper's: Gaussians of ``multiplier`` = noise standard deviation / what a row changes, one in each round.
    exact: B. Balle, Y.-X. Wang 2018, Theorem 8; else by Renyi differential privacy (I. Mironov 2017, Proposition 7; C.
    Canonne, G. Kamath, T. Steinke 2020, Proposition 12), which covers whole-number noise too.
    """
    if exact:
        epsilon = gaussian_epsilon(math.sqrt(rounds) / multiplier, delta) if multiplier else math.inf
        return Claim(epsilon, "run", "Balle and Wang 2018, Theorem 8", delta)
    words = "Mironov 2017, Prop. 7, and Canonne et al. 2020, Prop. 12, of one Gaussian with the sum's noise"
    return Claim(_renyi_gaussians(multiplier, rounds, delta), "run", words, delta)


# --- ADP-FL ------------------------------------------------------------------------------------------------------


def adpfl(epsilons: Sequence[float], delta: float) -> Claim:
    """ADP-FL, eq. 16: a round costs the largest of its clients' epsilons; nothing is composed over rounds."""
    return Claim(max(epsilons, default=0.0), "round", "ADP-FL, eq. 16 and Proposition 4 (maximum over clients)", delta)


def adpfl_noise(epsilon: float, delta: float) -> float:
    """sigma_s of ADP-FL's eq. 16: noise standard deviation / S for a round of this epsilon."""
    # [ADP-FL, eq. 16]
    if math.isinf(epsilon):
        return 0.0
    return math.sqrt(epsilon + 2 * math.log(1 / delta)) / epsilon


def adpfl_epsilon(sigma_s: float, delta: float) -> float:
    """Inverse of `adpfl_noise`: the positive root of sigma_s^2 eps^2 - eps - 2 ln(1/delta) = 0."""
    variance = sigma_s * sigma_s
    return (1 + math.sqrt(1 + 8 * math.log(1 / delta) * variance)) / (2 * variance) if variance else math.inf


# --- CoQ-FL and LDP-FL -------------------------------------------------------------------------------------------


def coqfl(epsilon: float) -> Claim:
    """CoQ-FL, Theorem 1, taken over from LDP-FL's eq. 2: epsilon for each coordinate of each message."""
    return Claim(epsilon, "coordinate", "CoQ-FL, Theorem 1 (eq. 2)", 0.0)


def ldpfl(epsilon: float) -> Claim:
    """LDP-FL (Sun, Qian and Chen, IJCAI 2021), eq. 2 of CoQ-FL: the same, and true."""
    return Claim(epsilon, "coordinate", "LDP-FL (CoQ-FL, eq. 2)", 0.0)


# --- DP-FedAGS and its baselines ---------------------------------------------------------------------------------


def fedags(epsilon: float) -> Claim:
    """DP-FedAGS, eq. 2 and Theorem 2: (epsilon, e^-epsilon) per round; the paper's delta enters no formula."""
    # [DP-FedAGS, eq. 2]
    return Claim(epsilon, "round", "DP-FedAGS, eq. 2 (zeta = e^-epsilon) and Theorem 2", math.exp(-epsilon))


def fedags_laplace(epsilon: float) -> Claim:
    """DP-FedAGS with Laplace noise, Theorems 1 and 2: epsilon per round, without any delta."""
    return Claim(epsilon, "round", "DP-FedAGS, Theorems 1 and 2", 0.0)


def dpfedavg(epsilon: float) -> Claim:
    """DP-FedAvg in the form of DP-FedAGS's comparison: the noise of eq. 2 on every coordinate."""
    return Claim(epsilon, "round", "DP-FedAGS, eq. 2 on every coordinate", math.exp(-epsilon))


def dpfedsnlc(epsilon: float) -> Claim:
    """DP-FedSNLC in the form of DP-FedAGS's comparison."""
    return Claim(epsilon, "round", "DP-FedAGS, eq. 2 on the selected coordinates", math.exp(-epsilon))


def cpsgd(step: float, trials: int, dimension: int, sensitivities: tuple[float, float, float], delta: float) -> Claim:
    """cpSGD (Agarwal et al., NeurIPS 2018), Theorem 1 at p = 1/2; sensitivities: (L1, L2, Linf) in real units."""
    epsilon = laws.binomial_epsilon(step, trials, dimension, *sensitivities, delta)
    return Claim(epsilon, "round", "cpSGD, Theorem 1", delta)


def unit_vector(epsilon: float, delta: float, pure: bool) -> Claim:
    """PrivUnit and its kin: epsilon of each release, at the delta of its floating point; the Gaussian at its own."""
    pages = "Asi, Feldman and Talwar 2022, section 2" if pure else "Balle and Wang 2018, Theorem 8"
    return Claim(epsilon, "round", pages, delta)


# --- DPFL-AGN and its baselines ----------------------------------------------------------------------------------


def dpfl_agn(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> Claim:
    """DPFL-AGN, eq. 13: T subsampled Gaussian steps of constant sigma, the best order of 2..64; example unit.

    Eq. 13 prints a minus in the exponent and drops the logarithm: read here with the sign of eq. 17 and the log of eq.
    14.
    """
    best = math.inf
    for order in range(2, 65):
        # [DPFL-AGN, eq. 17]
        log_moment = _log_moment(noise_multiplier, sampling_rate, order)
        # [DPFL-AGN, eq. 13]
        best = min(best, (steps * log_moment + math.log(1 / delta)) / (order - 1))
    return Claim(best, "run", "DPFL-AGN, eq. 13 (sign of eq. 17, log of eq. 14)", delta)


def _log_moment(sigma: float, rate: float, order: int) -> float:
    """ln E_1 of eq. 17: sum over j of binom(order, j) q^j (1-q)^(order-j) exp(j(j-1)/(2 sigma^2))."""
    if rate == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    terms = []
    for j in range(order + 1) if rate < 1 else [order]:
        missing = (order - j) * math.log1p(-rate) if j < order else 0.0
        binomial = math.lgamma(order + 1) - math.lgamma(j + 1) - math.lgamma(order - j + 1)
        terms.append(binomial + j * math.log(rate) + missing + j * (j - 1) / (2 * sigma**2))
    largest = max(terms)
    return largest + math.log(math.fsum(math.exp(term - largest) for term in terms))


def dpfedsam(noise_multiplier: float, sampling_rate: float, rounds: int, delta: float) -> Claim:
    """DP-FedSAM (Shi et al. 2023), Theorem 2: Renyi curve of T rounds that draw each client with probability q, turned
    into (epsilon, delta) by Balle et al. 2020, Theorem 21; the best whole order of 2..99 (its code tries 1.01 to 100).
    """
    best = math.inf
    for order in range(2, 100):
        curve = rounds * _log_moment(noise_multiplier, sampling_rate, order) / (order - 1)
        spare = (math.log(delta) + math.log(order)) / (order - 1) - math.log((order - 1) / order)
        best = min(best, curve - spare)
    return Claim(max(0.0, best), "run", "DP-FedSAM, Theorem 2", delta)


def nbafl(epsilon: float, delta: float) -> Claim:
    """NbAFL (Wei et al. 2020), Theorem 1: the (epsilon, delta) for which its noise was chosen, over T aggregations."""
    return Claim(epsilon, "run", "NbAFL, Theorem 1", delta)


# --- DP-FTRL -----------------------------------------------------------------------------------------------------


def dpftrl(noise_multiplier: float, delta: float) -> Claim:
    """DP-FTRL as a matrix mechanism (Denisov et al. 2022, Theorem 2.1): one Gaussian release for the whole run.

    noise_multiplier: standard deviation / (C * sensitivity of the factor under the plan of participation).
    """
    epsilon = gaussian_epsilon(1 / noise_multiplier, delta) if noise_multiplier else math.inf
    return Claim(epsilon, "run", "Denisov et al. 2022, Theorem 2.1", delta)
