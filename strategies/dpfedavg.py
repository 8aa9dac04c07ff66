"""DP-FedAvg, server half: noise on every coordinate. A baseline of DP-FedAGS, and what practitioners use.

form=local: the client adds the noise; the server sees each client's gradient; nobody needs to be trusted.
form=central: the server is trusted, samples the clients and adds the noise; outsiders see global models.
With clipping=quantile the trusted server moves C to a quantile of the gradients' norms (Andrew, Thakkar, McMahan,
Ramaswamy: Differentially Private Learning with Adaptive Clipping, NeurIPS 2021).

Why a moving C costs nothing more. Of round t the server releases two numbers-with-noise of the same sample:
S = sum_k clip(g_k, C^t) + N(0, (z C^t)^2) and B = sum_k (1[||g_k|| <= C^t] - 1/2) + N(0, s_b^2). C^t is a function of
earlier releases, so given those it is a constant. Divided by their deviations, both are one Gaussian of deviation 1 in
d + 1 dimensions, and adding or removing a client moves its mean by at most the square root of
(C^t)^2/(z C^t)^2 + (1/2)^2/s_b^2 = z^-2 + (2 s_b)^-2, whatever C^t is. `split_for_count` chooses z and s_b such that
this is sigma^-2: the round is one Poisson-sampled Gaussian of multiplier sigma, as with a fixed C, and rounds compose
adaptively. The next C and the model are functions of the two.

Symbols: C -> clip_norm, sigma C -> noise_multiplier * clip_norm, q -> sampling rate, N -> num_clients, b -> within,
eta_C -> clip_lr, gamma -> target_quantile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.common.replies import Reply
from fedpriv.config.methods import DPFedAvgOptions
from fedpriv.mechanisms.noise import add_normal_to_sum
from fedpriv.mechanisms.trusted_sums import split_for_count, within
from fedpriv.server.clip_rules import Quantile
from fedpriv.server.gradient import NoisyGradientServer
from fedpriv.server.optimizers import step_by_noise
from fedpriv.server.round import NO_HOOKS, Hooks, Population


class DPFedAvg(NoisyGradientServer):
    """local: theta <- theta - eta sum_k (n_k/n) g_k.

    central: theta <- theta - eta (sum_k g_k + N(0, sigma^2 C^2))/(q N): equal weights, and a denominator that does not
    tell how many were drawn.
    """

    options: DPFedAvgOptions
    in_rows = True

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.rule = self.make_rule()

    def make_rule(self) -> Quantile | None:
        """What moves C; None where it is fixed."""
        asked = self.options
        if asked.clipping == "fixed":
            return None
        public = (asked.clip_norm, asked.floor, asked.norm_bound)
        return Quantile(*public, clip_lr=asked.clip_lr, target=asked.target_quantile)

    def rate(self, size: int) -> float:
        """By the noise of a round's mean, if so asked; momentum adds up 1/(1 - momentum) steps."""
        asked = self.options
        if asked.learning_rate != "noise":
            return float(asked.learning_rate)
        noise = self.noise_multiplier * self.clip_norm * size**0.5 / self.population.clients_per_round
        adds_up = 1 / (1 - asked.momentum) if asked.optimizer == "momentum" else 1.0
        found = step_by_noise(noise * adds_up, self.population.num_rounds, self.clip_norm)
        self.current.figures["learning_rate"] = found
        return found

    def gradient(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        if not self.rule:
            return super().gradient(size, replies)
        clip_norm = self.rule.clip_norm
        multiplier, count_noise = split_for_count(self.noise_multiplier, self.options.count_share)
        sent, noise = [torch.from_numpy(reply.release) for reply in replies], self.own_noise()
        gradient = self.noisy_mean(sent, size, clip_norm, multiplier, noise)
        counted = (within(one, clip_norm).reshape(1) for one in sent)
        count = float(add_normal_to_sum(counted, 1, count_noise, noise))
        share = 0.5 + count / self.population.clients_per_round
        self.current.figures |= {"clip_norm": clip_norm} | self.rule.follow(share)
        return gradient

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"clipping": self.rule.state_dict()} if self.rule else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.rule:
            self.rule.load_state_dict(state["clipping"])
