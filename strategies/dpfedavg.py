"""DP-FedAvg, server half: noise on every coordinate. A baseline of DP-FedAGS, and what practitioners use.

form=local: the client adds the noise; the server sees each client's gradient; nobody needs to be trusted.
form=central: the server is trusted, samples the clients and adds the noise; outsiders see global models.

Symbols: C -> clip_norm, sigma C -> noise_multiplier * clip_norm, q -> sampling rate, N -> num_clients.
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
from fedpriv.mechanisms.clipping import clip
from fedpriv.mechanisms.noise import add_normal_to_sum
from fedpriv.mechanisms.noise_sources import noise_source
from fedpriv.privacy.events import EVERY_CLIENT, Entry, PoissonGaussian, Threat
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
        self.central, self.clip_norm = self.options.form == "central", self.options.clip_norm
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
        # Clipped again: the guarantee must not hang on what a client sends.
        gradients = (clip(torch.from_numpy(reply.release), self.clip_norm) for reply in replies)
        key = (self.population.seed, -1, self.current.number, self.population.attempt, "server")
        noise = noise_source(self.population.rng, *key)  # type: ignore[arg-type]
        std = self.noise_multiplier * self.clip_norm
        noisy = add_normal_to_sum(gradients, theta.size, std, noise).numpy()
        self.current.figures["server_noise_norm"] = std * theta.size**0.5
        self.current.entries = [
            Entry(self.current.number, EVERY_CLIENT, self.current.number, self.population.attempt, self.event)
        ]
        expected = self.population.clients_per_round  # q N, whatever the sample's size was
        return self.move(theta, -(self.options.learning_rate * noisy.astype(np.float64) / expected))
