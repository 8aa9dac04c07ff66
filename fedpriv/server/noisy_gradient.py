"""The shared base of the servers whose clients release clipped gradients: with noise of their own (form=local), or
without, where the server is trusted, samples the clients and adds the noise (form=central).

Symbols: C -> clip_norm, sigma C -> noise_multiplier * clip_norm, q -> sampling rate, N -> num_clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.replies import Reply
from fedpriv.config.methods import NoisyGradientOptions
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.trusted_sums import noisy_sum
from fedpriv.privacy.events import EVERY_CLIENT, Entry, Event
from fedpriv.privacy.secret_cohorts import SecretCohorts
from fedpriv.server.gradient import GradientServer
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import NO_HOOKS, BudgetsSpent, Hooks, Population


class NoisyGradientServer(GradientServer):
    """theta <- theta - eta times what becomes known of the clients' gradients (`gradient`)."""

    options: NoisyGradientOptions
    in_rows = True

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.central, self.clip_norm = self.options.form == "central", self.options.clip_norm
        self.steps_when_empty = self.secret_cohorts = self.options.secret_cohorts
        if not self.central:
            return
        self.drawn = SecretCohorts(self.options.client_sampling, population.num_clients, population.clients_per_round)
        chosen = self.options.noise_multiplier
        if chosen is None:
            chosen = self.drawn.multiplier(self.options.epsilon, self.options.claimed_delta)
        self.noise_multiplier = chosen

    def event(self, server_round: int) -> Event:
        """What a round costs, or the pass that begins with it."""
        last = self.population.num_rounds
        return self.drawn.event(self.noise_multiplier, left=None if last is None else last - server_round + 1)

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        if self.central and self.cohorts.begins_pass(server_round) and not self.hooks.admits(self.event(server_round)):
            raise BudgetsSpent(f"round {server_round}: the next global model would exceed privacy.max_epsilon")
        return messages

    def gradient(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """What becomes known of a round (float64 [size]): the mean of the clients' releases, or the noisy sum of their
        gradients over q N.
        """
        if not self.central:
            return super().gradient(size, replies)
        sent = (torch.from_numpy(reply.release) for reply in replies)
        return self.noisy_mean(sent, size, self.clip_norm, self.noise_multiplier, self.own_noise())

    def own_noise(self) -> NoiseSource:
        """The server's, of this round."""
        key = (self.population.seed, -1, self.current.number, self.population.attempt, "server")
        return self.population.noise(*key)

    def noisy_mean(
        self, sent: Iterable[Tensor], size: int, clip_norm: float, multiplier: float, noise: NoiseSource
    ) -> NDArray[np.float64]:
        """form=central: the noisy sum of what was sent over q N (float64 [size]); booked."""
        noisy = noisy_sum(sent, size, clip_norm, multiplier, noise).numpy()
        self.current.figures["server_noise_norm"] = multiplier * clip_norm * size**0.5
        number = self.current.number
        if self.cohorts.begins_pass(number):
            self.current.entries = [Entry(number, EVERY_CLIENT, number, self.population.attempt, self.event(number))]
        return noisy.astype(np.float64) / self.population.clients_per_round  # q N, whatever the sample's size was
