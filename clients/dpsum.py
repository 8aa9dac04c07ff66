"""Differentially private sums over the examples of sites, client half: clipped gradients, and whose noise covers them.

M. Abadi et al.: Deep Learning with Differential Privacy, CCS 2016 (clipped per-example gradients). P. Kairouz, Z.
Liu, T. Steinke, ICML 2021, and N. Agarwal, P. Kairouz, Z. Liu, NeurIPS 2021 (whole-number noise that adds up). No
paper's own method: examples are protected as in the first, at the price of a sum as in the others.

Who adds the noise and who learns what (form): `fedpriv.client.summing`.

Symbols: C -> clip_norm, sigma -> noise_multiplier (one noise's), k -> noises = min_replies - colluders, q ->
sampling_rate, R -> `DPSumOptions.input_rounds`, m and s -> `fedpriv.mechanisms.scaling`.

With unit person a row is a person below: C bounds the mean of its rows' gradients, and `rows` counts persons
(`fedpriv.mechanisms.clipped_sums` has the proof).

What is summed. With scale_inputs the first 2 R rounds are about the inputs x [k], each row clipped to length B =
sqrt(k/3), that of a row spread evenly over [-1, 1]: R rounds sum x, R rounds |x - m|, where m is the mean that the
first R released; unused numbers are zero. With recalibration the last rounds count rows by the model's log odds and
class, of length 1 each (proof: `fedpriv.mechanisms.recalibration`); their centre and ln width come in place of m and
ln s. All other rounds sum gradients in units of C, of the inputs (x - m)/s where a server sends m and s. No round
depends on anything of the data but through what earlier rounds released.

The private count of lost cells. Of a table's column of categories one input is 1 where the schema does not name the
cell ("other"). That input is a coordinate of the first rounds' x, so the count of lost cells is a coordinate of a sum
that leaves anyway: the vector is clipped to B with it, and moves by at most B however many of its coordinates count
something. It costs nothing beside these rounds, and what the run says of it (`fedpriv.runs.summary.lost_cells`) is
post-processing.

Why it costs what it does. Given what the server sent, which is a function of earlier sums, a site's whole numbers move
by at most l2 grid steps when an example is added or removed, whatever theta, m and s are (proofs:
`fedpriv.privacy.sum_grid`, `fedpriv.mechanisms.per_example`, `fedpriv.mechanisms.scaling`), and those of other sites do
not move. The opened sum has the noises of at least k sites that the observer does not know, all independent of the
data: a round is one release of discrete Gaussian or Skellam noise of k sites with that sensitivity, and the rounds
compose adaptively. More survivors add more noise, which is post-processing. With Gaussian noise (central, local) a
round is one Gaussian over a Poisson sample of rows of rate q.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.contract import Release, RunFacts
from fedpriv.client.method import Traits
from fedpriv.client.summing import RowSumClient
from fedpriv.common.messages import Request
from fedpriv.config.methods import DPSumOptions
from fedpriv.mechanisms.clipped_sums import ClippedSum, excess
from fedpriv.mechanisms.recalibration import counted
from fedpriv.mechanisms.scaling import Scaling, clipped_rows
from fedpriv.training.sequential import Clipping, LocalData

MEAN_OF_MODELS = "the final model is the mean of the last rounds' (strategy.server.average)"


class DPSumClient(RowSumClient):
    """Sum of the clipped gradients of its examples."""

    options: DPSumOptions  # type: ignore[assignment]
    traits = Traits(needs_facts=True, clips_examples=True, bound_to_rounds=MEAN_OF_MODELS)
    scaling: Scaling | None = None  # of this participation
    input_rounds = 0  # rounds for the inputs' means, and as many after them for their deviations
    counts_from: float = math.inf  # the first round that recalibrates

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if run.facts is None:
            return
        facts, options = run.facts, self.options
        noise = options.mean_noise(facts.total_examples, facts.clients_per_round, facts.num_clients)
        first, last = options.input_rounds(facts.flat_inputs), options.recalibrates(facts.risk_classes, noise)
        self.input_rounds, self.counts_from = first, self.options.rounds - last + 1
        if first or last:  # theta, m and ln s, as long as theta
            self.traits = replace(self.traits, vectors_down=3)

    @property
    def clip_norm(self) -> float:
        return self.options.clip_norm

    def excess(self, rows: int) -> float:
        return excess(rows)

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
        expected = max(1, round(self.options.sampling_rate * self.facts.num_examples))
        if self.scaling is not None and request.round >= self.counts_from:
            bound = 1.0
            found = clipped_rows(self._counted(theta, data), bound, data.unit)
            total = torch.nn.functional.pad(found.total, (0, len(theta) - len(found.total)))
        elif self.scaling is not None and request.round <= 2 * self.input_rounds:
            rows, bound = data.inputs.flatten(1), self.scaling.bound
            if request.round > self.input_rounds:
                rows = (rows - torch.from_numpy(self.scaling.shift).float()).abs()
            found = clipped_rows(rows, bound, data.unit)
            total = torch.nn.functional.pad(found.total, (0, len(theta) - rows.shape[1]))
        elif self.scaling is not None:
            moved = torch.from_numpy(self.scaling.forward(theta.numpy()))
            scaled = replace(data, inputs=self.scaling.inputs(data.inputs))
            found = yield Clipping(moved, scaled, bound, expected=expected)
            total = found.total
        else:
            found = yield Clipping(theta, data, bound, expected=expected)
            total = found.total
        figures = {
            "train_loss": found.loss,
            "gradient_norm": float(found.norms.nan_to_num(0.0, 0.0, 0.0).mean()) if len(found.norms) else 0.0,
            "clipped_norm": float(torch.linalg.vector_norm(found.total)),
            "noise_norm": self.noise_multiplier * bound * math.sqrt(len(theta)),
        }
        numbers = self.leaving(total / bound, source)
        return self.packed(Release(numbers, None, figures, local=theta if self.tests_models else None))

    def _counted(self, theta: Tensor, data: LocalData) -> Tensor:
        """Vectors of the rows, float64 [n, 2B]; c and s are anything."""
        assert self.scaling is not None
        centre, width = float(self.scaling.shift[0]), math.exp(min(80.0, float(self.scaling.log_scale[0])))
        outputs, inputs = self.scaling.outputs, data.inputs.flatten(1)
        return counted(inputs, data.targets, theta.double().numpy(), outputs, centre, width)

    def _drawn(self, request: Request) -> LocalData:
        """The site's examples; of sampling_rate < 1 each (each person's) with that probability."""
        data = self._site().load_data(None)
        if self.options.sampling_rate == 1:
            return data
        unit = torch.arange(len(data)) if data.unit is None else torch.unique(data.unit, return_inverse=True)[1]
        count = int(unit.max()) + 1 if len(data) else 0
        kept = torch.from_numpy(self.batches(request).random(count) < self.options.sampling_rate)[unit]
        return LocalData(data.inputs[kept], data.targets[kept], None if data.unit is None else data.unit[kept])
