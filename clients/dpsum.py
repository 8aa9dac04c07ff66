"""Differentially private sums over the examples of sites, client half: clipped gradients, and whose noise covers them.

M. Abadi et al.: Deep Learning with Differential Privacy, CCS 2016 (clipped per-example gradients). P. Kairouz, Z.
Liu, T. Steinke, ICML 2021, and N. Agarwal, P. Kairouz, Z. Liu, NeurIPS 2021 (whole-number noise that adds up). No
paper's own method: examples are protected as in the first, at the price of a sum as in the others.

form=ddgauss, skellam: the sites add the noise, each its share; a secure sum hides their numbers from everybody; the
server and whoever looks on learn the noisy sum over those who stayed. `min_replies` is the floor below which no sum
is opened, and `colluders` of these may tell their noise.
form=central: the server is trusted; it adds one Gaussian to the sum; outsiders see global models.
form=local: each site adds its own Gaussian; the server sees each site's noisy sum; nobody needs to be trusted.

Symbols: C -> clip_norm, sigma -> noise_multiplier (one noise's), k -> noises = min_replies - colluders, q ->
sampling_rate, R -> `RowSumGrid.steps`, m and s -> `fedpriv.mechanisms.scaling`.

With unit person a row is a person below: C bounds the mean of its rows' gradients, and `rows` counts persons
(`fedpriv.mechanisms.clipped_sums` has the proof).

What is summed. With scale_inputs the first two rounds are about the inputs x [k], each row clipped to length B =
sqrt(k/3), that of a row spread evenly over [-1, 1]: round 1 sums x, round 2 |x - m|, where m is the mean that round 1
released; unused numbers are zero. All other rounds sum gradients in units of C, of the inputs (x - m)/s where a
server sends m and s. No round depends on anything of the data but through what earlier rounds released.

Why it costs what it does. Given what the server sent, which is a function of earlier sums, a site's whole numbers move
by at most l2 grid steps when an example is added or removed, whatever theta, m and s are (proofs:
`fedpriv.privacy.row_sum`, `fedpriv.mechanisms.per_example`, `fedpriv.mechanisms.scaling`), and those of other sites do
not move. The opened sum has the noises of at least k sites that the observer does not know, all independent of the
data: a round is one release of discrete Gaussian or Skellam noise of k sites with that sensitivity, and the rounds
compose adaptively. More survivors add more noise, which is post-processing. With Gaussian noise (central, local) a
round is one Gaussian over a Poisson sample of rows of rate q.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts
from fedpriv.client.method import Traits, on_all_axes
from fedpriv.client.summing import SummingClient
from fedpriv.common.messages import Request
from fedpriv.config.methods import DPSumOptions
from fedpriv.mechanisms.clipped_sums import ClippedSum, excess
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.scaling import Scaling, clipped_rows
from fedpriv.privacy.binomial_grid import delta_share
from fedpriv.privacy.events import Threat
from fedpriv.privacy.row_sum import RowSumGrid
from fedpriv.training.sequential import Clipping, LocalData

EXAMPLE_IN_SUM = Threat("example", "add-or-remove-one", "secure-sum")
MEAN_OF_MODELS = "the final model is the mean of the last rounds' (strategy.server.average)"


class DPSumClient(SummingClient):
    """Sum over its examples, on the grid, modulo 2^bits; plus its share of the noise, or all of it, or none."""

    options: DPSumOptions  # type: ignore[assignment]
    traits = Traits(needs_facts=True, clips_examples=True, bound_to_rounds=MEAN_OF_MODELS)
    threat = EXAMPLE_IN_SUM
    scaling: Scaling | None = None  # of this participation

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.whole = self.options.whole
        if run.facts is not None and self.options.scales(run.facts.flat_inputs):  # theta, m and ln s, as long as theta
            self.traits = replace(self.traits, vectors_down=3)
        if not self.whole:
            observer = "server" if self.options.form == "local" else "trusted-server"
            self.threat = replace(self.threat, observer=observer)  # its unit may be a person

    @property
    def noise_multiplier(self) -> float:
        return self.options.noise_multiplier

    @property
    def clip_norm(self) -> float:
        return self.options.clip_norm

    @cached_property
    def grid(self) -> RowSumGrid:
        facts, options = self.facts, self.options
        size, rows, sites = max(1, facts.num_parameters), facts.total_examples, facts.clients_per_round
        return RowSumGrid(options.form, size, rows, sites, self.bits, self.noise_multiplier)

    @property
    def in_sum(self) -> bool:
        return self.options.form != "local"

    def numbers(self, size: int) -> int:
        return size

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        return super().release_bytes(size, server_round) if self.in_sum else 4 * size

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """Takes m and s, of which the guarantee knows nothing: they are what earlier sums said, or anything else."""
        super().prepare(request, down)
        layout = self._site().layout
        if len(down) == 3 and layout is not None:
            outputs, inputs = layout.shapes[0]
            shift, log_scale = (vector[:inputs].double().numpy() for vector in down[1:])
            self.scaling = Scaling(shift, log_scale, outputs)

    # --- the release ---------------------------------------------------------------------------------------

    def steps(self, theta: Tensor, state: Any, request: Request) -> Generator[Clipping, ClippedSum, Release]:
        """One sum over all examples, or those that are drawn, at theta [d]; whole numbers (int64 [d]) leave, of
        form=local float32 [d].
        """
        data, bound, source = self._drawn(request), self.clip_norm, self.noise(request, "release")
        if self.scaling is not None and request.round <= 2:
            rows, bound = data.inputs.flatten(1), self.scaling.bound
            if request.round == 2:
                rows = (rows - torch.from_numpy(self.scaling.shift).float()).abs()
            found = clipped_rows(rows, bound, data.unit)
            total = torch.nn.functional.pad(found.total, (0, len(theta) - rows.shape[1]))
        elif self.scaling is not None:
            moved = torch.from_numpy(self.scaling.forward(theta.numpy()))
            found = yield Clipping(moved, replace(data, inputs=self.scaling.inputs(data.inputs)), bound)
            total = found.total
        else:
            found = yield Clipping(theta, data, bound)
            total = found.total
        figures = {
            "train_loss": found.loss,
            "gradient_norm": float(found.norms.nan_to_num(0.0, 0.0, 0.0).mean()) if len(found.norms) else 0.0,
            "clipped_norm": float(torch.linalg.vector_norm(found.total)),
            "noise_norm": self.noise_multiplier * bound * math.sqrt(len(theta)),
        }
        numbers = self.leaving(total / bound, source)
        return self.packed(Release(numbers, None, figures, local=theta if self.tests_models else None))

    def leaving(self, total: Tensor, noise: NoiseSource) -> Tensor:
        """What leaves a site of its sums [..., d] in units of the bound."""
        if self.whole:
            return self.grid.whole_numbers(total, noise)
        whole = self.grid.whole(total)
        return (self.grid.noisy(whole, noise) / self.grid.steps).float() if self.options.form == "local" else whole

    def _drawn(self, request: Request) -> LocalData:
        """The site's examples; of sampling_rate < 1 each (each person's) with that probability."""
        data = self._site().load_data(None)
        if self.options.sampling_rate == 1:
            return data
        unit = torch.arange(len(data)) if data.unit is None else torch.unique(data.unit, return_inverse=True)[1]
        count = int(unit.max()) + 1 if len(data) else 0
        kept = torch.from_numpy(self.batches(request).random(count) < self.options.sampling_rate)[unit]
        return LocalData(data.inputs[kept], data.targets[kept], None if data.unit is None else data.unit[kept])

    # --- what it costs (unit example, add-or-remove-one) -----------------------------------------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """Whole-number noise: against whoever sees sums, and against a server that sees a site's own numbers (one
        noise). Gaussian noise: against the server (local), or outsiders (central: of rows at any site, so that its
        rounding is that of a site with all rows).
        """
        options, facts = self.options, self.facts
        longer = excess(facts.total_examples if options.form == "central" else facts.num_examples)
        if not options.whole:
            return (Charge(self.grid.gaussian_event(self.threat, options.sampling_rate, longer)),)
        share = delta_share(options.claimed_delta, facts.num_rounds)
        pairs = ((self.threat, self.noises), (replace(self.threat, observer="server"), 1))
        return tuple(Charge(self.grid.event(threat, noises, share, longer)) for threat, noises in pairs)

    def remarks(self) -> tuple[str, ...]:
        grid = self.grid
        said: tuple[str, ...] = (
            f"a number takes {self.bits} bits, a noise is {grid.sigma:.3g} steps of the grid, and rounding "
            f"makes what an example changes {grid.l2() / grid.steps - 1:.2%} longer",
        )
        if self.whole and self.noises == 1:
            said += ("sums with a single unknown noise: strategy.server.min_replies says how many there are at least",)
        return said

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        return [Neighbours("an example more", (0.0,) * participations, (1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The smallest sum that is ever opened, less what colluders know of it: one example's gradient, of
        length C at most (`fedpriv.mechanisms.per_example` clips it), beside others' that are just below a border
        between two whole numbers in every coordinate, and the noise of `noises` sites, or the one Gaussian. In units
        of the sum's noise; float [trials, d].
        """
        grid, clipped = self.grid, math.copysign(min(1.0, abs(length)), length)
        mine = on_all_axes(clipped, shape, self.audit_axes).double()
        if self.options.sampling_rate < 1:
            mine = mine * (noise.uniform(shape[0]) < self.options.sampling_rate).unsqueeze(1)
        total = mine + (0.5 - 1e-6) / grid.steps
        if not self.whole:
            return Release((grid.noisy(grid.whole(total), noise) / (grid.sigma or 1.0)).float(), state)
        numbers = grid.whole_numbers(total, noise)
        for _ in range(self.noises - 1):
            numbers = numbers + grid.noise(numbers.shape, noise)
        return Release((numbers.double() / (math.sqrt(self.noises) * grid.sigma or 1.0)).float(), state)
