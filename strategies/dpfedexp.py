"""DP-FedEXP, server half: the step of FedExP (Jhunjhunwala, Wang, Joshi, ICLR 2023), from what a round releases anyway.

Takakura, Liew, Hasegawa: Accelerating Differentially Private Federated Learning via Adaptive Extrapolation, 2025.

form=local: the client adds the noise; the server sees each client's gradient; nobody needs to be trusted.
form=central: the server is trusted, samples the clients and adds the noise; outsiders see global models.

With D the mean of squared norms of the clipped gradients and m what becomes known of their mean, the step is longer by
max(1, D/||m||^2): D is larger than ||m||^2 where clients' gradients point apart. D is never used without noise:

- central: D is the noisy mean of ||g'_k||^2 over the expected cohort, a second release of the round's sample: a client
  moves the sum of ||g'_k||^2 by at most C^2, and both releases cost what the first alone would
  (`fedpriv.mechanisms.trusted_sums`).
- local: D = sum_k w_k ||c_k||^2 - d (sigma C)^2 of the releases c_k = g'_k + N(0, (sigma C)^2): unbiased, and free.

The step is a function of releases, so a round costs what DP-FedAvg's does.

Symbols: g'_k -> clipped, C -> clip_norm, sigma C -> noise_multiplier * clip_norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.replies import Reply
from fedpriv.config.methods import DPFedEXPOptions
from fedpriv.server.gradient import NoisyGradientServer


class DPFedEXP(NoisyGradientServer):
    """theta <- theta - eta max(1, D/||m||^2) m."""

    options: DPFedEXPOptions
    in_rows = True

    def gradient(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        if self.central:  # `learn` is told D
            return super().gradient(size, replies) * self.current.figures["extrapolation"]
        replies = list(replies)
        mean = self.mean(size, replies)
        pairs = zip(self.weights(replies), replies, strict=True)
        square = sum(weight * float(np.square(reply.release, dtype=np.float64).sum()) for weight, reply in pairs)
        self.extrapolate(square - size * (self.noise_multiplier * self.clip_norm) ** 2, mean)
        return mean * self.current.figures["extrapolation"]

    def learn(self, number: float, mean: NDArray[np.float64]) -> None:
        self.extrapolate(number * self.clip_norm**2, mean)

    def extrapolate(self, square: float, mean: NDArray[np.float64]) -> None:
        """square: D; mean: m [size]."""
        length = float(mean @ mean)
        self.current.figures["extrapolation"] = max(1.0, square / length) if length else 1.0
