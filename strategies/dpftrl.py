"""DP-FTRL, server half: correlated noise by a trusted server, without sampling of clients.

Kairouz, McMahan, Song, Thakkar, Thakurta, Xu: Practical and Private (Deep) Learning without Sampling or Shuffling,
ICML 2021; Denisov et al., NeurIPS 2022; Choquette-Choo et al., ICML 2023 (the matrix mechanism over several passes).

The server is trusted: it sees every clipped update and adds the noise, which is correlated over rounds; outsiders see
all global models and may know who took part in which round. client_sampling=poisson: the server draws in secret from
one fixed group of clients after the other (Choquette-Choo et al., NeurIPS 2023; `fedpriv.privacy.secret_cohorts`).
client_sampling=balls: every client has one secret round of each pass, the same in all (Chua et al. 2025).

Symbols: C -> `fedpriv.mechanisms.matrix_factors`, K -> clients_per_round, T -> rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fedpriv.common.cohorts import limits
from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import DPFTRLOptions
from fedpriv.mechanisms.matrix_factors import MatrixMechanism, exact_sum
from fedpriv.mechanisms.noise import clip
from fedpriv.privacy.events import EVERY_CLIENT, Entry, Event, Gaussian
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS, again_event, run_events
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import NO_HOOKS, BudgetsSpent, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy


class DPFTRL(FederatedStrategy):
    """theta <- theta + (sum of the clipped updates + row of C^-1 z) / K: the sum over rounds has the error of the
    factor C. K whatever the number of replies is.
    """

    options: DPFTRLOptions
    in_rows = True
    steps_when_empty = True

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        asked, size = self.options, population.clients_per_round
        most, apart = limits(asked.participation, asked.participations, population.num_clients, size, asked.rounds)
        pattern = asked.pattern(most, apart)
        self.secret_cohorts = asked.secret_cohorts
        self.mechanism = MatrixMechanism(
            asked.factor,
            *pattern,
            noise_multiplier=asked.noise_multiplier,
            clip_norm=asked.clip_norm,
            bandwidth=asked.bandwidth,
            buffers=asked.buffers,
            clients=population.num_clients if self.secret_cohorts else size,
        )
        self.events = run_events(asked, pattern, size, population.num_clients)
        self.again = population.attempt > 0
        self.first: int | None = None  # the round that a resumed run begins with

    def price(self) -> tuple[Event, ...]:
        """Of the round's release, for every client.

        Where a resumed run cannot repeat its rounds bit for bit, their rows are released once more with other noise,
        over the same earlier rows: the rows of the first time are booked, and those of the second, up to the last of
        the run, move by at most ||C u|| as all of C's do. So the first of them is charged with a whole run, and the
        others are paid.
        """
        if not self.again:
            return self.events[self.current.number - 1]
        if self.options.takes_turns:
            self.first = self.first or self.current.number
            place = self.current.number - self.first
            return self.events[place] if place else (again_event(self.options.noise_multiplier),)
        if self.population.attempt == self._charged_attempt:
            return ()
        others = 2 if self.options.secret_cohorts else 1  # rounds of a client in other places than before
        return (Gaussian(threat=TO_OUTSIDERS, multiplier=self.options.noise_multiplier / others),)

    _charged_attempt = -1

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        if (events := self.price()) and not self.hooks.admits(*events):
            raise BudgetsSpent(f"round {server_round}: the next global model would exceed privacy.max_epsilon")
        return messages

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        # Clipped again: the guarantee must not hang on what a client sends.
        std, like = self.mechanism.std_for(theta.size), torch.zeros(theta.size, dtype=torch.float64)
        parts = (clip(torch.from_numpy(reply.release), self.options.clip_norm) for reply in replies)
        total = exact_sum(parts, like, self.mechanism.most)
        key = (self.population.seed, -1, self.current.number, self.population.attempt, "server")
        noise = self.population.noise(*key)
        _, used = self.mechanism.release(total, noise)
        self.current.figures["server_noise_norm"] = std * theta.size**0.5  # of what this round adds to it
        if events := self.price():
            number, attempt = self.current.number, self.population.attempt
            self._charged_attempt = attempt
            self.current.entries = [
                Entry(number, EVERY_CLIENT, sequence, attempt, event) for sequence, event in enumerate(events, number)
            ]
        return self.move(theta, used.numpy() / self.population.clients_per_round)

    def vectors(self) -> dict[str, NDArray[Any]]:
        return super().vectors() | self.mechanism.vectors()

    def load_vectors(self, vectors: Mapping[str, NDArray[np.float64]]) -> None:
        super().load_vectors(vectors)
        self.mechanism.load_vectors(vectors)
