"""Differentially private sums of per-example gradients over sites, client half: one noise for all, in a secure sum.

M. Abadi et al.: Deep Learning with Differential Privacy, CCS 2016 (clipped per-example gradients). P. Kairouz, Z.
Liu, T. Steinke, ICML 2021, and N. Agarwal, P. Kairouz, Z. Liu, NeurIPS 2021 (whole-number noise that adds up). No
paper's own method: examples are protected as in the first, at the price of a sum as in the others.

The sites add the noise, each its share; a secure sum hides their numbers from everybody; the server and whoever
looks on learn the noisy sum over those who stayed. `min_replies` is the floor below which no sum is opened, and
`colluders` of these may tell their noise.

Symbols: C -> clip_norm, sigma -> noise_multiplier (one site's), k -> noises = min_replies - colluders, R ->
`RowSumGrid.steps`.

With unit person a row is a person below: C bounds the mean of its rows' gradients, and `rows` counts persons
(`fedpriv.mechanisms.clipped_sums` has the proof).

Why it costs what it does. Given theta, which is a function of earlier sums, a site's whole numbers move by at most
l2 grid steps when an example is added or removed (proof: `fedpriv.privacy.row_sum`), and those of other sites do
not move. The opened sum has the noises of at least k sites that the observer does not know, all independent of the
data: a round is one release of discrete Gaussian or Skellam noise of k sites with that sensitivity, and the rounds
compose adaptively. More survivors add more noise, which is post-processing. Every example takes part in every
round: no sampling is counted on.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Neighbours, Release
from fedpriv.client.method import Traits, on_all_axes
from fedpriv.client.summing import SummingClient
from fedpriv.common.messages import Request
from fedpriv.config.methods import DPSumOptions
from fedpriv.mechanisms.clipped_sums import ClippedSum, excess
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.privacy.binomial_grid import delta_share
from fedpriv.privacy.events import Threat
from fedpriv.privacy.row_sum import RowSumGrid
from fedpriv.training.sequential import Clipping

EXAMPLE_IN_SUM = Threat("example", "add-or-remove-one", "secure-sum")
MEAN_OF_MODELS = "the final model is the mean of the last rounds' (strategy.server.average)"


class DPSumClient(SummingClient):
    """Sum of its examples' clipped gradients, on the grid, plus its share of the noise, modulo 2^bits."""

    options: DPSumOptions  # type: ignore[assignment]
    traits = Traits(needs_facts=True, clips_examples=True, bound_to_rounds=MEAN_OF_MODELS)
    threat = EXAMPLE_IN_SUM

    @property
    def noise_multiplier(self) -> float:
        return self.options.noise_multiplier

    @property
    def clip_norm(self) -> float:
        return self.options.clip_norm

    @cached_property
    def grid(self) -> RowSumGrid:
        facts = self.facts
        law = "gaussian" if self.options.law == "ddgauss" else "skellam"
        size, rows, sites = max(1, facts.num_parameters), facts.total_examples, facts.clients_per_round
        return RowSumGrid(law, size, rows, sites, self.bits, self.noise_multiplier)  # type: ignore[arg-type]

    def numbers(self, size: int) -> int:
        return size

    # --- the release ---------------------------------------------------------------------------------------

    def steps(self, theta: Tensor, state: Any, request: Request) -> Generator[Clipping, ClippedSum, Release]:
        """One sum over all examples at theta [d]; whole numbers (int64 [d]) leave."""
        data = self._site().load_data(None)
        found = yield Clipping(theta, data, self.clip_norm)
        numbers = self.grid.whole_numbers(found.total / self.clip_norm, self.noise(request, "release"))
        figures = {
            "train_loss": found.loss,
            "gradient_norm": float(found.norms.nan_to_num(0.0, 0.0, 0.0).mean()) if len(found.norms) else 0.0,
            "clipped_norm": float(torch.linalg.vector_norm(found.total)),
            "noise_norm": self.noise_multiplier * self.clip_norm * math.sqrt(len(theta)),
        }
        return self.packed(Release(numbers, None, figures, local=theta if self.tests_models else None))

    # --- what it costs (unit example, add-or-remove-one) -----------------------------------------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """Against whoever sees sums; and against a server that sees a site's own numbers: one noise."""
        share = delta_share(self.options.claimed_delta, self.facts.num_rounds)
        longer = excess(self.facts.num_examples)
        pairs = ((self.threat, self.noises), (replace(self.threat, observer="server"), 1))
        return tuple(Charge(self.grid.event(threat, noises, share, longer)) for threat, noises in pairs)

    def remarks(self) -> tuple[str, ...]:
        grid = self.grid
        said: tuple[str, ...] = (
            f"a number takes {self.bits} bits, a site's noise is {grid.sigma:.3g} steps of the grid, and rounding "
            f"makes what an example changes {grid.l2() / grid.steps - 1:.2%} longer",
        )
        if self.noises == 1:
            said += ("sums with a single unknown noise: strategy.server.min_replies says how many there are at least",)
        return said

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        return [Neighbours("an example more", (0.0,) * participations, (1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The smallest sum that is ever opened, less what colluders know of it: one example's gradient, of
        length C at most (`fedpriv.mechanisms.per_example` clips it), along all coordinates, and the noise of `noises`
        sites. In units of the sum's noise; float [trials, d].
        """
        grid, clipped = self.grid, math.copysign(min(1.0, abs(length)), length)
        total = grid.whole_numbers(on_all_axes(clipped, shape, self.audit_axes).double(), noise)
        for _ in range(self.noises - 1):
            total = total + grid.noise(total.shape, noise)
        return Release((total.double() / (math.sqrt(self.noises) * grid.sigma or 1.0)).float(), state)
