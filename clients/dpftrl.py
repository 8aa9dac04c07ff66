"""DP-FTRL, client half: correlated noise by a trusted server, without sampling of clients.

Kairouz, McMahan, Song, Thakkar, Thakurta, Xu: Practical and Private (Deep) Learning without Sampling or Shuffling,
ICML 2021; Denisov et al., NeurIPS 2022; Choquette-Choo et al., ICML 2023 (the matrix mechanism over several passes).

The server is trusted: it sees every clipped update and adds the noise, which is correlated over rounds; outsiders see
all global models and may know who took part in which round. With strategy.server.client_sampling=poisson they must not:
the server draws in secret from one fixed group of clients after the other (`fedpriv.privacy.secret_cohorts`); nor with
client_sampling=balls: every client has one secret round of each pass, the same in all.

What neighbours are: `num_clients` numbers are given out before the run. Where a client is not there, its number does
not answer; cohorts, denominators and all other clients' rounds are the same. So its updates are replaced by zero.
(With over_selection another's would stand in their place, and the sum move by twice as much: it is refused.)

Symbols: C -> `fedpriv.mechanisms.matrix_factors`, sigma -> noise_multiplier, k -> most, b -> apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts
from fedpriv.client.method import Traits, on_all_axes
from fedpriv.config.methods import DPFTRLOptions
from fedpriv.mechanisms.matrix_factors import MatrixMechanism
from fedpriv.mechanisms.noise import NoiseSource, clip, finite_or_zero
from fedpriv.privacy import claimed
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS, run_events

OF_ALL_ROUNDS = "the factor and its sensitivity, which the noise is measured by, are those of num_rounds (T) rounds"


class DPFTRLClient(Client):
    """Clip the update to C; the server adds the noise. Every outsider learns of a client in every round."""

    options: DPFTRLOptions
    in_rows = True
    traits = Traits(needs_facts=True, costliest="first", bound_to_rounds=OF_ALL_ROUNDS)
    threat = TO_OUTSIDERS

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.clip_norm, self.noise_multiplier = self.options.clip_norm, self.options.noise_multiplier

    @property
    def pattern(self) -> tuple[int, int, int]:
        """(T, k, b)."""
        return self.options.pattern(self.facts.most, self.facts.apart)

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = clip(finite_or_zero(update), self.clip_norm)
        return Release(clipped, None, self.figures(clipped, torch.zeros_like(clipped)))

    # --- what it costs -------------------------------------------------------------------------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """What this round adds to the earlier ones."""
        facts = self.facts
        events = run_events(self.options, self.pattern, facts.clients_per_round, facts.num_clients)
        return tuple(Charge(event) for own in events[self.round - 1 : self.round] for event in own)

    def claim(self, participations: int, delta: float) -> claimed.Claim | None:
        return None if self.options.secret_cohorts else claimed.dpftrl(self.noise_multiplier, delta)

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """The pattern of the proof, with one direction in all rounds."""
        _, most, apart = self.pattern
        if self.options.takes_turns:  # by its coins in any of its group's rounds
            most = participations
        elif self.options.secret_cohorts:  # by its place in any round
            most, apart = participations, 1
        there = tuple(float(i % apart == 0 and i // apart < most) for i in range(participations))
        return [Neighbours("with and without a client", (0.0,) * participations, there)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The server's mechanism on sums that hold this client alone, as its state goes on: the rows w, of which every
        model is a function.
        """
        asked, (_, _, apart) = self.options, self.pattern
        if state is None:
            places = (noise.uniform(shape[0]) * apart).long() if asked.client_sampling == "balls" else None
            state = (self.mechanism(), places, 0)
        mechanism, places, number = state
        mine = self.release(on_all_axes(length * self.clip_norm, shape, self.audit_axes), None, noise).value
        if places is not None:
            mine = mine * (places == number % apart).float().unsqueeze(1)
        elif asked.secret_cohorts:
            rate = asked.groups * self.facts.clients_per_round / max(1, self.facts.num_clients)
            mine = mine * (noise.uniform(shape[0]) < rate).float().unsqueeze(1)
        released, _ = mechanism.release(mine.double(), noise)
        return Release((released / (mechanism.std or 1.0)).float(), (mechanism, places, number + 1))

    def mechanism(self) -> MatrixMechanism:
        """The server's."""
        asked = self.options
        return MatrixMechanism(
            asked.factor,
            *self.pattern,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            bandwidth=asked.bandwidth,
            buffers=asked.buffers,
        )
