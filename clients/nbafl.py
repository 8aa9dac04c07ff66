"""NbAFL, client half: noising before model aggregation.

K. Wei, J. Li, M. Ding, C. Ma, H. H. Yang, F. Farokhi, S. Jin, T. Q. S. Quek, H. V. Poor: Federated Learning with
Differential Privacy: Algorithms and Performance Analysis. IEEE TIFS 2020. A baseline of DPFL-AGN.

The client adds noise to its clipped weights, the server may add more to their mean; the server sees each client's
noisy weights, outsiders see global models.

Symbols: C -> clip_norm, sU -> upload noise (noise_multiplier * C), L -> exposures, m -> the smallest public n_j,
mu -> proximal_mu, epsilon -> epsilon (what the noise is claimed to buy).

The paper's sensitivity 2C/m presumes that examples are clipped one by one, which the algorithm does not do: one
example can move the weights anywhere within the ball of radius C, so verified is per upload, with 2C.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, LocalRule, Release, Trained
from fedpriv.client.method import Traits
from fedpriv.config.methods import NbAFLOptions
from fedpriv.mechanisms.noise import NoiseSource, add_normal, clip, finite_or_zero
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Gaussian, Threat

UPLOAD = Threat("example", "add-or-remove-one", "server")
PUBLIC = Threat("example", "add-or-remove-one", "public")
FOR_ALL_ROUNDS = "the noise of both sides is chosen for num_rounds (T) and for the exposures (L) among them"


class NbAFLClient(Client):
    """Minimises F_j + mu/2 ||w - w_global||^2, clips the weights to C, adds N(0, sU^2).

    noise_multiplier: sU / C; null: what the paper's formula gives for epsilon. min_replies: the smallest cohort that
    the server aggregates, which bounds what outsiders learn. server_noise: sD / C.
    """

    options: NbAFLOptions
    in_rows = True
    traits = Traits(needs_facts=True, bound_to_rounds=FOR_ALL_ROUNDS)
    threat = UPLOAD

    def local(self, state: Any) -> LocalRule:
        return LocalRule(self.options.proximal_mu)

    @property
    def clip_norm(self) -> float:
        return self.options.clip_norm

    @property
    def exposures(self) -> int:
        return self.options.exposures or self.facts.num_rounds

    @cached_property
    def noise_multiplier(self) -> float:
        given = self.options.noise_multiplier
        if given is not None:
            return given
        # sU = c L 2C / (m epsilon), c = sqrt(2 ln(1.25/delta))  [NbAFL, Theorem 1]
        return 2 * self.constant * self.exposures / (self.facts.smallest * self.options.epsilon)

    @property
    def constant(self) -> float:
        return math.sqrt(2 * math.log(1.25 / self.options.claimed_delta))

    @property
    def server_noise(self) -> float:
        """sD / C: what the server adds where there are more rounds than exposures."""
        rounds, clients = self.facts.num_rounds, self.facts.clients_per_round
        excess = rounds**2 - self.exposures**2 * clients
        if excess <= 0:
            return 0.0
        return 2 * self.constant * math.sqrt(excess) / (self.facts.smallest * clients * self.options.epsilon)

    # --- the release -------------------------------------------------------------------------------------

    def release(self, weights: Tensor, state: Any, noise: NoiseSource) -> Release:
        """Noisy weights [..., d] from the trained ones."""
        clipped = clip(weights, self.clip_norm)  # [NbAFL, Alg. 1]
        value = add_normal(clipped, self.noise_multiplier * self.clip_norm, noise)  # [NbAFL, Alg. 1]
        return Release(value, None, self.figures(clipped, value - clipped))

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        """What travels is the noisy weights minus the broadcast ones, which the server knows anyway."""
        start = finite_or_zero(theta)
        noisy = self.release(start + trained.sent, state, noise)
        value = replace(noisy, value=noisy.value - start)
        return self.released(replace(trained, local=start + trained.sent), value)

    # --- what it costs (unit example, add-or-remove-one; observers server and public) --------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """An upload moves by 2C. Outsiders see the mean of at least ``min_replies`` uploads with the server's noise:
        it moves by 2C/K and carries variance sU^2/K + sD^2, and K = min_replies is the worst cohort.
        """
        least = self.options.min_replies
        public = math.sqrt(least * self.noise_multiplier**2 + (least * self.server_noise) ** 2) / 2
        return (
            Charge(Gaussian(threat=UPLOAD, multiplier=self.noise_multiplier / 2)),
            Charge(Gaussian(threat=PUBLIC, multiplier=public)),
        )

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        return claimed.nbafl(self.options.epsilon, self.options.claimed_delta)
