"""NbAFL, server half: noising before model aggregation (Wei et al., IEEE TIFS 2020).

The clients add noise to their weights, the server adds more to their mean where there are more rounds than exposures;
the server sees each client's noisy weights, outsiders see global models.

Symbols: sD -> server noise, L -> exposures, T -> num_rounds, N -> clients_per_round, m -> the smallest public n_j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import NbAFLOptions
from fedpriv.mechanisms.noise import add_normal_finely
from fedpriv.server.strategy import FederatedStrategy


class NbAFL(FederatedStrategy):
    """theta <- mean of the noisy weights + N(0, sD^2).

    Weights are uniform: with weights by examples the server's noise would be too small for the largest client. The
    noise meets the mean alone, on its grid: added to float32 weights it left their low bits as they were.
    """

    options: NbAFLOptions

    @cached_property
    def std(self) -> float:
        """sD = 2 c C sqrt(T^2 - L^2 N) / (m N epsilon) where T > L sqrt(N), else 0."""
        options, clients = self.options, self.population.clients_per_round
        excess = options.rounds**2 - (options.exposures or options.rounds) ** 2 * clients
        if excess <= 0:
            return 0.0
        smallest = min(self.population.num_examples(k) for k in range(self.population.num_clients))
        constant = math.sqrt(2 * math.log(1.25 / options.claimed_delta))
        # [NbAFL, Theorem 1]
        return options.clip_norm * (2 * constant * math.sqrt(excess) / (smallest * clients * options.epsilon))

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        if self.std == 0:
            return super().aggregate(theta, replies)
        key = (self.population.seed, -1, self.current.number, self.population.attempt, "server")
        noise = self.population.noise(*key)
        self.current.figures["server_noise_norm"] = self.std * theta.size**0.5
        mean = torch.from_numpy(self.mean(theta.size, replies))
        return self.move(theta, add_normal_finely(mean, self.std, noise).numpy())
