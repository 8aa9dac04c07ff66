"""DP-FedAGS, client half (Zhang, Mao, Tu, He, Ping, Wu): perturbing significant gradients.

The client adds the noise; the server sees each client's gradient, the training loss if it is sent, and knows who took
part; nobody needs to be trusted.

Symbols: g' -> clipped, k_t -> rank, lambda_t -> threshold, alpha, beta -> noise of the comparison, q -> selected,
eps1, eps2, eps3 -> `split`, DeltaS -> `sensitivity_of`, sigma C -> noise_multiplier * clip_norm, zeta -> e^-eps,
L_k -> loss, E -> local.steps, eta -> local.lr, T -> num_rounds.

Published: coordinates that are not significant, and the loss, are sent as they are; lambda_t is a quantile of the
private gradient. Repaired: nothing is sent for a coordinate that is not selected, d - k_t + 1 are, and the selection is
public chance, or private at a price; no loss is sent unless asked for, and then with noise.

Where the paper is silent or contradicts itself, by default as printed: significant is far from zero in the text and
signed in equation 1 (``significance``); the text wants a large threshold early, equation 35 gives a small one
(``threshold``); E are iterations in Table I, epochs in Algorithm 1 (local.steps, or null for local.epochs); Algorithm 1
scales the noise of the comparison by DeltaS, section IV-A by q DeltaS (``svt_scale``; q is d - k_t + 1: the number of
outcomes depends on the very comparison that it would scale); equation 2 takes the total eps (``gaussian_eps``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Figure, Neighbours, Release, RunFacts, Statistics
from fedpriv.client.gradient import GradientClient, SelectingClient
from fedpriv.common.messages import TRAIN_LOSS
from fedpriv.common.seeds import public_mask
from fedpriv.config.methods import FedAGSOptions
from fedpriv.mechanisms.noise import NoiseSource, add_laplace, add_normal, clip, l2_norm
from fedpriv.mechanisms.significance import kth_largest, kth_smallest, largest
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Gaussian

BY_SCHEDULE = "the number of selected coordinates k_t changes from round to round until num_rounds"


def scheduled_rank(server_round: int, num_rounds: int, dimension: int) -> int:
    """k_t in 1..d, in whole numbers; from t = 0.9 T on it stays at ceil(9 d/10), also beyond T.

    Raises ValueError for a round below 1, or no rounds or coordinates.
    """
    if min(server_round, num_rounds, dimension) < 1:
        raise ValueError(f"round {server_round} of {num_rounds}, {dimension} coordinates: each must be at least 1")
    places = -(-server_round * dimension // num_rounds), -(-9 * dimension // 10)
    return min(places)  # [DP-FedAGS, Alg. 1 line 24] [DP-FedAGS, eq. 35]


def scheduled_count(server_round: int, num_rounds: int, dimension: int, threshold: str) -> int:
    """How many coordinates are significant without noise and ties: d - k_t + 1 from the k_t-th smallest on, or k_t from
    the k_t-th largest on (threshold: equation | text).
    """
    rank = scheduled_rank(server_round, num_rounds, dimension)
    return rank if threshold == "text" else dimension - rank + 1


def noisy_comparison(values: Tensor, threshold: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """bool [..., d]: g'_j + alpha_j >= lambda + beta, with noise alpha [..., d] of each coordinate, beta [...]."""
    return values + alpha >= (threshold + beta).unsqueeze(-1)  # [DP-FedAGS, Alg. 1 line 25]


def split_epsilon(epsilon: float, selected: int, values_share: float) -> tuple[float, float, float]:
    """(eps1, eps2, eps3): eps3 = values_share * eps for the values, the rest as eps1 : eps2 = q^(2/3) : 1."""
    rest, weight = epsilon * (1 - values_share), selected ** (2 / 3)
    eps1 = rest * weight / (weight + 1)  # [DP-FedAGS, IV-A]
    return eps1, rest - eps1, epsilon * values_share


def printed_multiplier(epsilon: float, sensitivity: float) -> float:
    """sigma: DeltaS/eps * sqrt(2 ln(1.25/zeta)) with zeta = e^-eps."""
    return sensitivity / epsilon * math.sqrt(2 * (math.log(1.25) + epsilon))  # [DP-FedAGS, eq. 2]


def printed_epsilon(multiplier: float, sensitivity: float) -> float:
    """Inverse of `printed_multiplier`: the positive root of sigma^2 eps^2 - 2 DeltaS^2 (eps + ln 1.25) = 0."""
    if multiplier == 0:
        return math.inf
    ratio = (sensitivity / multiplier) ** 2
    return ratio + math.sqrt(ratio * ratio + 2 * ratio * math.log(1.25))


class PrintedNoiseClient(GradientClient):
    """Noise by equation 2. sensitivity: its DeltaS, ``clip`` (2C) or ``per_example`` (2C/n_k: no sensitivity of
    anything, but the scale at which the paper's accuracies are plausible). The ledger counts on 2C whatever it says.
    """

    def sensitivity_of(self) -> float:
        """DeltaS of the published noise."""
        return 2 * self.clip_norm / (1 if self.options.sensitivity == "clip" else max(1, self.facts.num_examples))

    @property
    def noise_epsilon(self) -> float:
        """The epsilon that goes into equation 2."""
        return self.options.epsilon

    def chosen_multiplier(self) -> float:
        """The repair: delta = e^-eps allows nearly everything, so epsilon is what a round truly costs."""
        if self.repaired:
            return super().chosen_multiplier()
        return printed_multiplier(self.noise_epsilon, self.sensitivity_of())

    def printed_epsilon(self) -> float:
        """What equation 2 says of this noise: epsilon itself, where the noise was chosen by it."""
        if self.by_epsilon and not self.repaired:
            return self.options.epsilon
        return printed_epsilon(self.noise_multiplier, self.sensitivity_of())


class PerturbsSignificant(SelectingClient, PrintedNoiseClient):
    """Perturbs the significant coordinates of the gradient. A method says how many coordinates a round selects
    (`count`), and which ones in published mode (`significant`).
    """

    # ``update`` is g, the sum of the gradients of local SGD, and L their mean loss: the base's, of all such methods.
    # [DP-FedAGS, Alg. 1 lines 14 to 21]
    def release_gradient(self, update: Tensor, noise: NoiseSource) -> Release:
        """Of one client, or of equally many coordinates of each."""
        clipped, dimension = clip(update, self.clip_norm), update.shape[-1]  # [DP-FedAGS, Alg. 1 line 22]
        chosen, value = self.selected(clipped, noise)
        before = clipped.masked_select(chosen)  # an index of bits is made a list of places first, each time
        if noise.each is not None:
            before = before.view(*clipped.shape[:-1], -1)  # equally many of each
        after = self.with_noise(before, dimension, noise)
        value.masked_scatter_(chosen, after)  # [DP-FedAGS, eq. 1]
        if self.site is None and value.ndim > 1:
            return Release(value)
        figures: dict[str, Figure] = {
            "share_perturbed": after.shape[-1] / dimension,
            "scheduled_share": self.count(dimension, self.round) / dimension,
            "clipped_norm": l2_norm(clipped),
            "noise_norm": l2_norm(after - before),
        }
        return Release(value, None, figures)  # [DP-FedAGS, Alg. 1 lines 30, 31]

    @abstractmethod
    def significant(self, clipped: Tensor, noise: NoiseSource) -> Tensor:
        """Published: bool [..., d]."""

    def with_noise(self, values: Tensor, dimension: int, noise: NoiseSource) -> Tensor:
        """Significant coordinates [n] of gradients with ``dimension`` coordinates, with noise."""
        return add_normal(values, self.noise_multiplier * self.clip_norm, noise)  # [DP-FedAGS, Alg. 1 line 26]

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        if noise.each is not None and not self.repaired:  # how many are perturbed differs between clients
            alone = [self.release_gradient(row, own) for row, own in zip(update, noise.each, strict=True)]
            rows = torch.tensor([[*map(float, one.figures.values())] for one in alone], dtype=torch.float64)
            figures = dict(zip(alone[0].figures, rows.unbind(1), strict=True))
            return Release(torch.stack([one.value for one in alone]), None, figures)
        return self.release_gradient(update, noise)

    # --- the repair: besides this, what epsilon costs (`chosen_multiplier`) and how a loss is sent -------------

    def selected(self, clipped: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        """(which coordinates get noise, bool [..., d]; what is sent of the others [..., d]: as they are they would have
        no bound, so repaired it is nothing, NaN).
        """
        if self.repaired:
            return self.chosen(clipped, noise), torch.full_like(clipped, torch.nan)
        return self.significant(clipped, noise), clipped.clone()  # [DP-FedAGS, Alg. 1 lines 27 to 29]

    def chosen(self, clipped: Tensor, noise: NoiseSource) -> Tensor:
        """Exactly `count` coordinates, bool [..., d]: how many a noisy comparison finds is private itself."""
        dimension = clipped.shape[-1]
        count = self.count(dimension, self.round)
        if count == dimension:
            return torch.ones_like(clipped, dtype=torch.bool)
        if self.options.selection == "random":
            if self.site is None:  # the auditor takes the mask that shows it most
                return (torch.arange(dimension) < count).expand(clipped.shape)
            site, own = self.site, self.site.clients or (self.site.client,)
            masks = [public_mask(site.seed, client, self.round, dimension, count) for client in own]
            return torch.from_numpy(np.stack(masks)).view(clipped.shape)
        tau = self.clip_norm / math.sqrt(count) if self.options.score_bound is None else self.options.score_bound
        # Under replace-one a score moves by up to tau, up or down: scale 2 tau / eps0.
        gumbel = noise.gumbel(clipped.shape, 2 * tau / self.pick_epsilon(count))
        return largest(gumbel.add_(clipped.abs().clamp_(max=tau)), count)  # [Durfee and Rogers 2019, Alg. 1]


class FedAGSClient(PerturbsSignificant):
    """Selects by a schedule (equation 35), perturbs what is selected, sends its loss where the server weighs by it.

    loss_weights: None: published yes, repaired no. loss_bound: L_max of the repaired loss; loss_share: the part of a
    round's budget that it gets. values_share: eps3/eps; epsilon_split: (eps1, eps2, eps3) in its place.
    """

    options: FedAGSOptions
    traits = replace(SelectingClient.traits, bound_to_rounds=BY_SCHEDULE)
    in_rows = True

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.sends_loss = self.options.weighs_by_loss
        if self.options.threshold == "text":
            self.traits = replace(self.traits, costliest="first")

    # --- which coordinates -----------------------------------------------------------------------------------

    def significant(self, clipped: Tensor, noise: NoiseSource) -> Tensor:
        scores = clipped.abs() if self.options.significance == "magnitude" else clipped
        dimension = clipped.shape[-1]
        eps1, eps2, _ = self.split(dimension)
        scale = self.query_scale(dimension) if self.options.svt_scale == "section4" else self.sensitivity_of()
        kth = kth_largest if self.options.threshold == "text" else kth_smallest
        threshold = kth(scores, scheduled_rank(self.round, self.facts.num_rounds, dimension))
        alpha = noise.laplace(scores.shape, scale / eps1)  # [DP-FedAGS, Alg. 1 line 23]
        beta = noise.laplace(scores.shape[:-1], scale / eps2)  # [DP-FedAGS, Alg. 1 line 23]
        return noisy_comparison(scores, threshold, alpha, beta)

    def count(self, dimension: int, server_round: int) -> int:
        return scheduled_count(server_round, self.facts.num_rounds, dimension, self.options.threshold)

    def split(self, dimension: int) -> tuple[float, float, float]:
        """(eps1, eps2, eps3) of this round."""
        if (given := self.options.epsilon_split) is not None:
            return given[0], given[1], given[2]
        return split_epsilon(self.options.epsilon, self.count(dimension, self.round), self.options.values_share)

    def query_scale(self, dimension: int) -> float:
        """q DeltaS."""
        return self.count(dimension, self.round) * self.sensitivity_of()

    # --- the noise -------------------------------------------------------------------------------------------

    @property
    def noise_epsilon(self) -> float:
        options = self.options
        if options.gaussian_eps == "total":
            return options.epsilon
        return float(options.epsilon_split[2]) if options.epsilon_split else options.epsilon * options.values_share

    def with_noise(self, values: Tensor, dimension: int, noise: NoiseSource) -> Tensor:
        if self.options.noise == "gaussian":
            return super().with_noise(values, dimension, noise)
        return add_laplace(values, self.query_scale(dimension) / self.split(dimension)[2], noise)  # [DP-FedAGS, IV-A]

    # --- the loss --------------------------------------------------------------------------------------------

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        release = super().release(update, state, noise)
        if not self.sends_loss:
            return release
        return replace(release, statistics={TRAIN_LOSS: self.reported_loss(update.shape[:-1], noise)})

    def reported_loss(self, shape: Sequence[int], noise: NoiseSource) -> Tensor:
        """The repair: L_k [...] has no bound as it is, so it is kept in [0, L_max], with noise (and in it again)."""
        loss = self.loss.expand(shape)
        if not self.repaired:
            return loss
        bounded = loss.nan_to_num(self.options.loss_bound, self.options.loss_bound).clamp(0, self.options.loss_bound)
        noisy = add_normal(bounded, self.options.loss_bound * self.loss_multiplier(), noise)
        return noisy.double().clamp(0, self.options.loss_bound)

    def loss_multiplier(self) -> float:
        """Standard deviation / L_max, which is also what one loss can move by: rho = 1/(2 z^2)."""
        return 1 / math.sqrt(2 * self.budget("loss"))

    # --- what it costs ---------------------------------------------------------------------------------------

    def shares(self) -> dict[str, float]:
        return super().shares() | ({"loss": self.options.loss_share} if self.sends_loss else {})

    @property
    def statistics(self) -> Statistics:
        if not self.sends_loss:
            return Statistics()
        if self.leak() is not None:
            return Statistics((TRAIN_LOSS,))
        return Statistics((TRAIN_LOSS,), (Charge(Gaussian(threat=self.threat, multiplier=self.loss_multiplier())),))

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        if self.options.noise == "laplace":
            return claimed.fedags_laplace(self.options.epsilon)
        return claimed.fedags(self.printed_epsilon())

    def leak(self) -> str | None:
        if self.repaired:
            return super().leak()
        least = 1 - self.count(10**6, self.fullest_round()) / 10**6
        most = 1 - self.count(10**6, self.emptiest_round()) / 10**6
        leaks = [
            f"coordinates that are not significant ({least:.0%} to {most:.0%} by the schedule) are sent without noise",
            "the threshold is a quantile of the private gradient",
        ]
        return ", ".join([*leaks, *(["the training loss is sent as it is"] if self.sends_loss else [])])

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        pairs = super().worst_case_pairs(participations)
        if self.sends_loss and self.repaired:
            losses = (LOW_LOSS,) * participations, (HIGH_LOSS,) * participations
            pairs.append(Neighbours("smallest and largest loss", *losses))
        return pairs

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """Pairs of opposite gradients differ in their loss as well."""
        self.loss = torch.tensor(self.options.loss_bound if length in (-1.0, HIGH_LOSS) else 0.0, dtype=torch.float64)
        return super().audit_release(0.0 if length in (LOW_LOSS, HIGH_LOSS) else length, state, shape, noise)


#: Lengths in `worst_case_pairs` that stand for a zero gradient beside this loss.
LOW_LOSS, HIGH_LOSS = 4.0, 5.0
