"""The shared base of ddgauss and skellam: clip, rotate, round to whole numbers, add whole-number noise, for a sum.

What moves the clip norm (a bit, a norm) is a number in the same sum, so that it costs what a sum's number costs.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpriv.client.clip_statistics import ClipStatistic, clip_statistic
from fedpriv.client.contract import Charge, Release
from fedpriv.client.gaussian import GaussianClient
from fedpriv.client.method import Traits
from fedpriv.client.summing import SummingClient
from fedpriv.common.seeds import public_signs
from fedpriv.config.methods import WholeGaussianOptions
from fedpriv.mechanisms.clipping import clip, l2_norm
from fedpriv.mechanisms.integer_noise import Law
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.privacy.events import CLIENT_TO_SERVER, SECURE_SUM, Event, Threat
from fedpriv.privacy.sum_grid import SumGrid


class WholeGaussianClient(SummingClient, GaussianClient):
    """Against whoever sees sums: `noises` clients' noise. Against a server that sees a client's own numbers, which it
    cannot while the secure sum holds: its own noise alone.

    There is one variant: what is reported beside the vector always has noise.
    """

    options: WholeGaussianOptions  # type: ignore[assignment]
    traits = Traits(needs_facts=True)
    threat = SECURE_SUM
    #: Of the noise.
    law: ClassVar[Law] = "gaussian"

    @cached_property
    def statistic(self) -> ClipStatistic:
        return clip_statistic(self.options, "repaired", self.noise_multiplier, False)

    @cached_property
    def grid(self) -> SumGrid:
        levels = (self.statistic.noise,) if self.statistic.noise is not None else ()
        return SumGrid(
            self.law,
            max(1, self.facts.num_parameters),
            self.facts.clients_per_round,
            self.bits,
            self.noise_multiplier,
            levels,
        )

    def numbers(self, size: int) -> int:
        return self.grid.numbers

    # --- the release ---------------------------------------------------------------------------------------

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = clip(update, self.clip_norm)  # [Kairouz et al. 2021, Algorithm 1]
        signs = torch.from_numpy(public_signs(self._site().seed, self.round, self.grid.padded)).double()
        told = self.statistic.shares(l2_norm(update), self.clip_norm) if self.statistic.names else {}
        numbers = self.grid.whole_numbers(clipped.double() / self.clip_norm, list(told.values()), signs, noise)
        std = self.noise_multiplier * self.clip_norm
        figures = {"clipped_norm": float(l2_norm(clipped)), "noise_norm": std * math.sqrt(self.grid.padded)}
        return Release(numbers, None, figures)

    # --- what it costs -------------------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """The part of delta that the bound of one release may use up."""
        return 0.5

    def charges(self, state: Any) -> tuple[Charge, ...]:
        return self._charges

    @cached_property
    def _charges(self) -> tuple[Charge, ...]:
        """Of every participation: no clip norm changes them."""
        return tuple(Charge(event) for threat in (SECURE_SUM, CLIENT_TO_SERVER) for event in self._events(threat))

    def _events(self, threat: Threat) -> list[Event]:
        """Of one participation's numbers, against an observer."""
        grid, noises = self.grid, self.noises
        own = [grid.event(threat, noises, self.share)]
        return [*own, *(grid.statistic_event(threat, level, noises, self.share) for level in grid.statistics)]

    def remarks(self) -> tuple[str, ...]:
        grid = self.grid
        said: tuple[str, ...] = (
            f"a number takes {self.bits} bits, its noise is {grid.sigma:.3g} steps of the grid, and rounding makes a "
            f"vector {math.sqrt(grid.most_square) * grid.step - 1:.2%} longer",
        )
        if self.noises == 1:
            said += ("sums with a single unknown noise: strategy.server.min_replies says how many there are at least",)
        return said

    # --- what the auditor tries ------------------------------------------------------------------------------

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The smallest sum that is ever opened, less what colluders know of it: one client's whole numbers, from the
        longest vector that they can be, spread evenly over the coordinates of a trial, and the noise of the others,
        whose vectors the attacker knows. In units of the sum's noise; float [trials, d + statistics].
        """
        grid, trials, longest = self.grid, shape[0], math.sqrt(self.grid.most_square)
        along = math.copysign(min(1.0, abs(length)), length) * longest * (1 - 1e-12) / math.sqrt(shape[1])
        steps = torch.full(shape, math.trunc(along) if abs(along) >= 1 else along, dtype=torch.float64)
        total = grid.noisy(steps, noise) + grid.noise(grid.sigma, shape, noise, self.noises - 1)
        seen = [total.double() / (math.sqrt(self.noises) * grid.sigma or 1.0)]
        norm = torch.full((trials,), abs(length) * self.clip_norm, dtype=torch.float64)
        shares = self.statistic.shares(norm, self.clip_norm)
        for share, level in zip(shares.values(), grid.statistics, strict=True):
            steps_of = level * grid.statistic_steps(level)
            number = grid.noisy_share(share, level, noise) + grid.noise(steps_of, (trials,), noise, self.noises - 1)
            seen.append((number.double() / (math.sqrt(self.noises) * steps_of)).unsqueeze(1))
        return Release(torch.cat(seen, dim=1).float(), state)
