"""The shared bases of the servers that take a step along the mean of their clients' accumulated gradients.

Clipped gradients have noise of the clients' own (form=local), or none, where the server is trusted, samples the clients
and adds the noise (form=central).

Symbols: C -> clip_norm, sigma C -> noise_multiplier * clip_norm, q -> sampling rate, N -> num_clients.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.messages import FloatVector
from fedpriv.common.packing import unpack_selected
from fedpriv.common.replies import Reply
from fedpriv.common.seeds import public_mask
from fedpriv.config.methods import GradientOptions, NoisyGradientOptions, SelectingOptions
from fedpriv.mechanisms.noise import NoiseSource, add_normal_to_sum
from fedpriv.mechanisms.trusted_sums import NUMBERS, noisy_sum, split_for_number
from fedpriv.privacy.events import EVERY_CLIENT, Entry, Event
from fedpriv.privacy.secret_cohorts import OF_TWO_DATA_SETS, SecretCohorts
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import NO_HOOKS, BudgetsSpent, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy

#: What clients report to the experimenter in simulation: shares of the coordinates.
CLIENT_FIGURES = ("share_perturbed", "scheduled_share", "clamped_share")


class GradientServer(FederatedStrategy):
    """theta <- theta - eta sum_k w_k g_k. learning_rate: eta."""

    options: GradientOptions

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        gradient = self.gradient(theta.size, replies)
        return self.move(theta, -(self.rate(theta.size) * gradient))

    def rate(self, size: int) -> float:
        """eta."""
        return self.options.learning_rate

    def gradient(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """What the server's step is along (float64 [size])."""
        return self.mean(size, replies)

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        found = {}
        for name in CLIENT_FIGURES:
            values = [reply.diagnostics[name] for reply in replies if name in reply.diagnostics]
            if values:
                found[name] = sum(values) / len(values)
        return found


class SelectingServer(GradientServer):
    """Receives some coordinates of each gradient; the others count as zero. selection, variant: the clients' own."""

    options: SelectingOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.decode = None if self.options.variant == "published" else self.decoded

    @abstractmethod
    def count(self, dimension: int, server_round: int) -> int:
        """How many of d coordinates a client sends in this round: public."""

    def decoded(self, client: int, sent: Any) -> FloatVector:
        """float32 [d], zero where nothing was sent. Raises ValueError for anything else than what a client sends."""
        dimension, number = self.current.theta.size, self.current.number
        count = self.count(dimension, number)
        if self.options.selection == "gumbel" and count < dimension:
            return unpack_selected(sent, dimension, count)
        if sent.dtype != np.float32 or sent.shape != (count,):
            raise ValueError(f"expected float32 [{count}], got {sent.dtype} {list(sent.shape)}")
        vector = np.zeros(dimension, np.float32)
        vector[public_mask(self.population.seed, client, number, dimension, count)] = sent
        return vector


class NoisyGradientServer(GradientServer):
    """theta <- theta - eta times what becomes known of the clients' gradients (`gradient`)."""

    options: NoisyGradientOptions
    in_rows = True

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.central, self.clip_norm = self.options.form == "central", self.options.clip_norm
        self.steps_when_empty = self.secret_cohorts = self.options.secret_cohorts
        self.drawn = SecretCohorts(self.options.client_sampling, population.num_clients, population.clients_per_round)

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation / C; form=local: of each client's own noise, where no printed formula chooses it."""
        asked = self.options
        if asked.noise_multiplier is not None:
            return asked.noise_multiplier
        if self.central:
            return self.drawn.multiplier(asked.epsilon, asked.claimed_delta)
        from fedpriv.privacy.calibration import round_multiplier  # loads the accountants

        return round_multiplier(asked.epsilon, asked.claimed_delta, OF_TWO_DATA_SETS)

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
        noise, clip_norm, beside = self.own_noise(), self.clip_norm, self.options.beside
        if beside is None:
            sent = (torch.from_numpy(reply.release) for reply in replies)
            return self.noisy_mean(sent, size, clip_norm, self.noise_multiplier, noise)
        number, all_sent = NUMBERS[beside[0]], [torch.from_numpy(reply.release) for reply in replies]
        multiplier, std = split_for_number(self.noise_multiplier, beside[1], number.most)
        mean = self.noisy_mean(all_sent, size, clip_norm, multiplier, noise)
        numbers = (number.of(one, clip_norm).reshape(1) for one in all_sent)
        self.learn(float(add_normal_to_sum(numbers, 1, std, noise)) / self.population.clients_per_round, mean)
        return mean

    def own_noise(self) -> NoiseSource:
        """The server's, of this round."""
        key = (self.population.seed, -1, self.current.number, self.population.attempt, "server")
        return self.population.noise(*key)

    def learn(self, number: float, mean: NDArray[np.float64]) -> None:
        """Takes the second release of a round: the noisy mean, over q N, of the numbers beside the gradients, whose own
        noisy mean is ``mean`` [size].
        """

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
