"""DP-ZO, server half: a client's release is K numbers, slopes of its loss along public random directions.

X. Tang, A. Panda, M. Nasr, S. Mahloujifar, P. Mittal: Private Fine-tuning of Large Language Models with Zeroth-order
Optimization, 2024; L. Zhang, B. Li, K. K. Thekumparampil, S. Oh, N. He: DPZero, ICML 2024.

form=local: the client adds the noise; the server sees each client's numbers; nobody needs to be trusted.
form=central: the server is trusted, samples the clients and adds the noise; outsiders see global models.

Symbols: K -> directions, z_k -> `Probes.rows`, s_k -> `Probes.coordinates`, C -> clip_norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import DPZOOptions
from fedpriv.mechanisms.step_gradients import Probes, probes_of
from fedpriv.server.gradient import NoisyGradientServer
from fedpriv.server.round import NO_HOOKS, Hooks, Population


class DPZO(NoisyGradientServer):
    """theta <- theta - eta (1/K) sum_k s_k z_k, with s [K] what becomes known of the clients' numbers."""

    options: DPZOOptions
    in_rows = True
    #: What arrives is K numbers, each with noise of its own (`fedpriv.attacks.noise_contract` asks).
    sends_few = True

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.decode = self.decoded

    def directions(self, size: int) -> Probes:
        """Of this round, in R^size."""
        asked, key = self.options, (self.population.seed, self.current.number)
        return probes_of(*key, size, asked.directions, asked.smoothing)

    def decoded(self, client: int, sent: Any) -> FloatVector:
        """(1/K) sum_k s_k z_k (float32 [d]). Raises ValueError for anything else than K numbers."""
        if sent.dtype != np.float32 or sent.shape != (self.options.directions,):
            raise ValueError(f"expected float32 [{self.options.directions}], got {sent.dtype} {list(sent.shape)}")
        probes = self.directions(self.current.theta.size)
        found: FloatVector = probes.vector(torch.from_numpy(np.array(sent))).numpy()
        return found

    def gradient(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        if not self.central:
            return super().gradient(size, replies)
        probes = self.directions(size)
        numbers = [replace(one, release=probes.coordinates(torch.from_numpy(one.release)).numpy()) for one in replies]
        known = super().gradient(self.options.directions, numbers)  # clipped and noised: of K numbers
        return probes.vector(torch.from_numpy(known)).numpy().astype(np.float64)
