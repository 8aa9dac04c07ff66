"""DP-ZO, client half: K clipped numbers leave, slopes of the client's loss along public random directions.

X. Tang, A. Panda, M. Nasr, S. Mahloujifar, P. Mittal: Private Fine-tuning of Large Language Models with Zeroth-order
Optimization, 2024 (DP-ZO); L. Zhang, B. Li, K. K. Thekumparampil, S. Oh, N. He: DPZero: Private Fine-tuning of Language
Models without Backpropagation, ICML 2024. Both protect examples on one machine; here the unit is the client.

form=local: the client adds the noise; the server sees each client's numbers; nobody needs to be trusted. form=central:
the server is trusted, samples the clients and adds the noise to the sum of the numbers.

Why it costs what one vector of K numbers costs. The directions z_1..z_K of a round are drawn from the public seed and
the round, so they are constants. Local steps move along them alone (`Probes`), and what is up for release is s [K], a
function of the client's data and of earlier releases, clipped to length C: two data sets move it by at most 2C under
replace-one, and a client that comes or goes moves the sum by at most C, in K dimensions with noise on each. The model's
move is a function of the noisy s. With K = 1 it is the price of one number.

Published and repaired are the same. Symbols: K -> directions, z_k -> `Probes.rows`, C -> clip_norm, phi -> smoothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpriv.client.contract import LocalRule, RunFacts
from fedpriv.client.gradient import NoisyGradientClient
from fedpriv.common.errors import OptionError
from fedpriv.config.methods import DPZOOptions
from fedpriv.mechanisms.noise import clip, finite_or_zero
from fedpriv.mechanisms.step_gradients import Probes, probes_of


class DPZOClient(NoisyGradientClient):
    """Steps by differences of losses; clip their K coordinates; with form=local add the noise here."""

    options: DPZOOptions
    traits = replace(NoisyGradientClient.traits, own_steps=True)
    in_rows = True

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if self.options.directions > (most := max(1, self.facts.num_parameters)):
            words = f"more than the model has parameters; allowed: 1 to {most}"
            raise OptionError("strategy.client.directions", self.options.directions, words)

    def directions(self) -> Probes:
        """Of this round."""
        place = self._site().seed, self.round, self.facts.num_parameters
        return probes_of(*place, self.options.directions, self.options.smoothing)

    def local(self, state: Any) -> LocalRule:
        return LocalRule(gradient=self.directions())

    def clipped(self, gradient: Tensor) -> Tensor:
        """s [..., K]; what an auditor tries are such numbers already. Of a finite gradient they may be too large."""
        numbers = gradient if self.site is None else finite_or_zero(self.directions().coordinates(gradient))
        return clip(numbers, self.clip_norm)

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        return 4 * self.options.directions
