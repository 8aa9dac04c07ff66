"""cpSGD, client half (Agarwal, Suresh, Yu, Kumar, McMahan, NeurIPS 2018): a baseline of DP-FedAGS.

The client rotates, quantises to k levels and adds binomial noise, in whole numbers; the server sees each client's
numbers and knows who took part. Under a secure sum the noises of min_replies clients add up: `strategy.secure_sum` says
whether it is assumed, or the server uses nothing but sums of the numbers modulo 2^bits.

Symbols: X, s -> `BinomialGrid` bound and step, k -> levels, m -> trials, d' -> padded.
Published and repaired differ in the number of trials only, chosen for (epsilon, claimed_delta) of one round: published
by the paper's Theorem 1, repaired by the account, whose bound holds at every epsilon (`integer_laws`). The
theorem's leading term is the classical Gaussian one, too small for large epsilon.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Figure, Release, RunFacts
from fedpriv.client.gradient import GradientClient
from fedpriv.client.method import Method
from fedpriv.client.summing import SummingClient
from fedpriv.common.seeds import public_signs
from fedpriv.config.methods import CpSGDOptions
from fedpriv.mechanisms.noise import NoiseSource, l2_norm
from fedpriv.mechanisms.whole_numbers import width_of
from fedpriv.privacy import claimed
from fedpriv.privacy.events import CLIENT_TO_SERVER, SECURE_SUM, Binomial, Event, Threat
from fedpriv.privacy.sum_grid import BinomialGrid, delta_share, grid_for, sum_bits


class CpSGDClient(SummingClient, GradientClient):
    """trials: m, None: the fewest for epsilon. min_replies, colluders: of the secure sum's figure."""

    options: CpSGDOptions  # type: ignore[assignment]
    traits = replace(GradientClient.traits, bound_to_rounds="a release's share of delta is claimed_delta / num_rounds")
    in_rows = True

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if self.in_sum:
            self.threat = SECURE_SUM

    @cached_property
    def grid(self) -> BinomialGrid:
        options = self.options
        rounds = None if self.variant == "published" else self.facts.num_rounds
        examples = max(1, self.facts.num_examples) if options.sensitivity == "per_example" else 1
        dimension = max(1, self.facts.num_parameters)
        asked = (options.clip_norm, options.levels, options.trials, options.epsilon, options.claimed_delta)
        return grid_for(dimension, *asked, rounds, examples)

    def chosen_multiplier(self) -> float:
        """The noise's standard deviation / C."""
        return self.grid.std / self.clip_norm

    # --- the release ---------------------------------------------------------------------------------------

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """Whole numbers (int64 [..., d']) of accumulated gradients [..., d]."""
        clipped = self.clipped(update)
        signs = torch.from_numpy(public_signs(self._site().seed, self.round, self.grid.padded))
        numbers, clamped = self.grid.noisy_levels(clipped, signs, noise)
        figures: dict[str, Figure] = {
            "clipped_norm": l2_norm(clipped),
            "noise_norm": self.grid.std * math.sqrt(self.grid.padded),
            "clamped_share": clamped,
        }
        return Release(self.grid.centred(numbers) if self.in_sum else numbers, None, figures)

    def encode(self, value: Tensor) -> Tensor:
        if self.in_sum:
            return value  # packed modulo 2^bits
        return torch.from_numpy(self.grid.pack(value))

    @property
    def bits(self) -> int:
        return sum_bits(self.grid, self.options.bits, self.facts.clients_per_round)

    def numbers(self, size: int) -> int:
        return self.grid.padded

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        return super().release_bytes(size, server_round) if self.in_sum else self.grid.num_bytes

    # --- what it costs -------------------------------------------------------------------------------------

    def binomial(self, threat: Threat, clients: int) -> Binomial:
        """The noises of so many clients, on what one of them changes."""
        return self.grid.event(threat, delta_share(self.options.claimed_delta, self.facts.num_rounds), clients)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        return self._charges

    @cached_property
    def _charges(self) -> tuple[Charge, ...]:
        """Of every participation."""
        # Trials that follow from n_k differ: then the client counts on its own alone.
        together = 1 if self.options.sensitivity == "per_example" else self.noises
        return Charge(self.binomial(CLIENT_TO_SERVER, 1)), Charge(self.binomial(SECURE_SUM, together))

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        grid = self.grid
        return claimed.cpsgd(grid.step, grid.trials, grid.padded, grid.sensitivities(), self.options.claimed_delta)

    def remarks(self) -> tuple[str, ...]:
        said = (
            "audits of cpSGD draw the sum of a release's numbers from its law: all of them are too many for each trial"
        )
        width = self.bits if self.in_sum else width_of(self.grid.largest)
        if width < 32:
            return (said,)
        return (
            said,
            f"a coordinate takes {width} bits: at this budget cpSGD sends no less than 32-bit floats would",
        )

    @classmethod
    def chosen_for(
        cls, target: float, delta: float, participations: int, make: Any, threat: Threat | None = None
    ) -> dict[str, float]:
        """The fewest trials found that meet the target."""
        from fedpriv.privacy.calibration import calibrate  # loads the accountants

        def trials(noise: float) -> int:
            return max(1, math.ceil(1e6 * noise))

        def events(noise: float) -> list[Event]:
            method: Method = make(trials=trials(noise))
            return method.planned_events(participations, threat)

        return {"trials": trials(calibrate(events, target, delta).noise_multiplier)}

    # --- what the auditor tries ------------------------------------------------------------------------------

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """What an attacker who knows the direction makes of a release [trials, 1]: the sum of the numbers that differ,
        for a vector of norm C whose rotated coordinates lie on levels of the grid, or on its middle. Binomials add up,
        so it is drawn in one piece, from the very law of the release; under a secure sum with the noises of all clients
        that the observer does not know.
        """
        many, offset = self.widest()
        trials = many * self.grid.trials * (self.noises if self.in_sum else 1)
        sums = noise.binomial(trials, shape[0]).double() - trials / 2
        shift = math.copysign(many * offset, length)
        scale = math.sqrt(trials / 4) or 1.0
        return Release(((sums + shift) / scale).float().unsqueeze(1), state)

    def widest(self) -> tuple[int, float]:
        """(coordinates, distance from the middle in grid steps) of the vector of norm C that the sum tells best."""
        grid = self.grid
        nearest = 0.5 if grid.levels % 2 == 0 else 1.0
        reach = min(grid.clip_norm / math.sqrt(grid.padded), grid.bound) / grid.step
        offset = nearest + max(0, math.floor(reach - nearest + 1e-9))
        many = min(grid.padded, int((grid.clip_norm / (offset * grid.step)) ** 2 * (1 + 1e-9)))
        noises = self.noises if self.in_sum else 1
        return min(many, 2**62 // max(1, grid.trials * noises)), offset
