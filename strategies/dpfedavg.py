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

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedpriv.common.messages import Reply
from fedpriv.common.vectors import FloatVector
from fedpriv.config.methods import DPFedAvgServerOptions
from fedpriv.mechanisms.clipping import clip, finite_or_zero, l2_norm
from fedpriv.mechanisms.noise import add_normal_to_sum
from fedpriv.mechanisms.noise_decay import split_for_count
from fedpriv.mechanisms.noise_sources import noise_source
from fedpriv.privacy.events import EVERY_CLIENT, Entry, PoissonGaussian, Threat
from fedpriv.server.clip_rules import Quantile
from fedpriv.server.gradient import GradientServer
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import NO_HOOKS, BudgetsSpent, Hooks, Population


class DPFedAvg(GradientServer):
    """local: theta <- theta - eta sum_k (n_k/n) g_k.

    central: theta <- theta - eta (sum_k g_k + N(0, sigma^2 C^2))/(q N): equal weights, and a denominator that does not
    tell how many were drawn.
    """

    options: DPFedAvgServerOptions
    in_columns = True

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.central, asked = self.options.form == "central", self.options
        self.clip_norm, self.rule = asked.clip_norm, self.make_rule()
        self.steps_when_empty = self.secret_cohorts = self.central
        if not self.central:
            return
        rate = population.clients_per_round / population.num_clients
        self.noise_multiplier = self.options.noise_multiplier
        if self.noise_multiplier is None:
            from fedpriv.privacy.calibration import sampled_multiplier  # loads the accountants

            self.noise_multiplier = sampled_multiplier(self.options.epsilon, self.options.claimed_delta, rate)
        threat = Threat("client", "add-or-remove-one", "trusted-server")
        self.event = PoissonGaussian(threat=threat, multiplier=self.noise_multiplier, sampling_rate=rate)

    def make_rule(self) -> Quantile | None:
        """What moves C; None where it is fixed."""
        asked = self.options
        if asked.clipping == "fixed":
            return None
        public = (asked.clip_norm, asked.floor, asked.norm_bound)
        return Quantile(*public, clip_lr=asked.clip_lr, target=asked.target_quantile)

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        if self.central and not self.hooks.admits(self.event):
            raise BudgetsSpent(f"round {server_round}: the next global model would exceed privacy.max_epsilon")
        return messages

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        if not self.central:
            return super().aggregate(theta, replies)
        clip_norm, multiplier, count_noise = self.clip_norm, self.noise_multiplier, 0.0
        if self.rule:
            clip_norm = self.rule.clip_norm
            multiplier, count_noise = split_for_count(multiplier, self.options.count_share)
        sent = [torch.from_numpy(reply.release) for reply in replies]
        key = (self.population.seed, -1, self.current.number, self.population.attempt, "server")
        noise = noise_source(self.population.rng, *key)  # type: ignore[arg-type]
        std, expected = multiplier * clip_norm, self.population.clients_per_round  # q N, whatever the sample's size was
        # Clipped again: the guarantee must not hang on what a client sends.
        noisy = add_normal_to_sum((clip(one, clip_norm) for one in sent), theta.size, std, noise).numpy()
        if self.rule:
            within = (torch.where(l2_norm(finite_or_zero(one)) <= clip_norm, 0.5, -0.5).reshape(1) for one in sent)
            count = float(add_normal_to_sum(within, 1, count_noise, noise))
            self.current.figures |= {"clip_norm": clip_norm} | self.rule.follow(0.5 + count / expected)
        self.current.figures["server_noise_norm"] = std * theta.size**0.5
        self.current.entries = [
            Entry(self.current.number, EVERY_CLIENT, self.current.number, self.population.attempt, self.event)
        ]
        return self.move(theta, -(self.options.learning_rate * noisy.astype(np.float64) / expected))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"clipping": self.rule.state_dict()} if self.rule else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.rule:
            self.rule.load_state_dict(state["clipping"])
