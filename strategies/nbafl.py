"""NbAFL, server half: noising before model aggregation (Wei et al., IEEE TIFS 2020).

The clients add noise to their weights, the server adds more to their mean where there are more rounds than exposures;
the server sees each client's noisy weights, outsiders see global models.

Symbols: sD -> server noise, L -> exposures, T -> num_rounds, N -> clients_per_round, m -> the smallest public n_j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpriv.common.messages import FloatVector, Reply
from fedpriv.mechanisms.noise_sources import noise_source
from fedpriv.server.round import Population
from fedpriv.server.strategy import FederatedStrategy


class NbAFL(FederatedStrategy):
    """theta <- mean of the noisy weights + N(0, sD^2).

    Weights are uniform: with weights by examples the server's noise would be too small for the largest client.
    """

    def __init__(
        self,
        population: Population,
        *,
        epsilon: float,
        clip_norm: float,
        claimed_delta: float,
        rounds: int,
        exposures: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(population, **options)
        self.std = clip_norm * self._multiplier(epsilon, claimed_delta, rounds, exposures or rounds)

    def _multiplier(self, epsilon: float, delta: float, rounds: int, exposures: int) -> float:
        """sD / C = 2 c sqrt(T^2 - L^2 N) / (m N epsilon) where T > L sqrt(N), else 0."""
        clients = self.population.clients_per_round
        excess = rounds**2 - exposures**2 * clients
        if excess <= 0:
            return 0.0
        smallest = min(self.population.num_examples(k) for k in range(self.population.num_clients))
        constant = math.sqrt(2 * math.log(1.25 / delta))
        return 2 * constant * math.sqrt(excess) / (smallest * clients * epsilon)  # [NbAFL, Theorem 1]

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        moved = super().aggregate(theta, replies)
        if self.std == 0:
            return moved
        key = (self.population.seed, -1, self.current.number, self.population.attempt, "server")
        noise = noise_source(self.population.rng, *key)  # type: ignore[arg-type]
        drawn = noise.normal(theta.size, self.std).numpy()
        self.current.figures["server_noise_norm"] = float(np.linalg.norm(drawn))
        return (moved + drawn).astype(np.float32)
