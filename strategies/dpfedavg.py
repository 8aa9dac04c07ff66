"""DP-FedAvg, server half: noise on every coordinate. A baseline of DP-FedAGS, and what practitioners use.

form=local: the client adds the noise; the server sees each client's gradient; nobody needs to be trusted.
form=central: the server is trusted, samples the clients and adds the noise; outsiders see global models.
With clipping=quantile the trusted server moves C to a quantile of the gradients' norms (Andrew, Thakkar, McMahan,
Ramaswamy: Differentially Private Learning with Adaptive Clipping, NeurIPS 2021).

Why a moving C costs nothing more: beside the sum the server releases a count, sum_k (1[||g_k|| <= C^t] - 1/2), whose
share of the round's cost the sum does without (`fedpriv.mechanisms.trusted_sums`). The next C and the model are
functions of the two, and rounds compose adaptively.

Symbols: C -> clip_norm, sigma C -> noise_multiplier * clip_norm, q -> sampling rate, N -> num_clients, b -> within,
eta_C -> clip_lr, gamma -> target_quantile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.config.methods import DPFedAvgOptions
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

    def learn(self, number: float, mean: NDArray[np.float64]) -> None:
        """The noisy count beside the gradients: the next C."""
        assert self.rule is not None, "`beside` counts only where a rule moves C"
        self.current.figures["clip_norm"] = self.rule.clip_norm
        self.current.figures |= self.rule.follow(0.5 + number)
        self.clip_norm = self.rule.clip_norm

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"clipping": self.rule.state_dict()} if self.rule else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.rule:
            self.rule.load_state_dict(state["clipping"])
            self.clip_norm = self.rule.clip_norm
