"""Differentially private sums over the examples of sites, server half (`clients.dpsum`).

The server learns the noisy sum over all sites' examples (`fedpriv.server.row_sums`), and moves theta against it.

With scale_inputs the first R rounds, a tenth, give the inputs' noisy means m, the next R their noisy mean deviations
|x - m|: each is the mean of its rounds, whose noises are independent, so its own is less by sqrt(R). All rounds have
the same noise and the same price: 2 R of T rounds are the statistics' share of the budget, and nothing else is charged.
Steps of all later rounds are those of inputs (x - m)/s with s = deviation + 2 tau + 0.001, where tau is the noise's
standard deviation in a deviation: an input that the noise hides is not blown up. A linear model starts from zero.

With recalibration the last rounds (2 on a table of classes) train nothing: the first asks where the log odds lie, the
second asks closer by, and the model that remains is scaled and shifted by the fit to both
(`fedpriv.mechanisms.recalibration`). `average` and T below count the rounds before these.

The learning rate where strategy.server.lr=null. One round's noise moves theta by eta nu in length, where nu = sigma'
sqrt(d)/n is that of the noise in the mean gradient in units of C; after T rounds it has moved it by about eta nu
sqrt(T). eta = min(6, 12/(nu sqrt(T))), a tenth of 6 where the output is one number in [-1, 1] (logits are longer). Both
numbers, R and the start were chosen by the rule of `benchmarks.dpsum_defaults` on tables that no page reports; C, the
factor 2 and T = 20 on others (docs/tables.md).

Symbols: R -> `DPSumOptions.input_rounds`, G -> the sum in units of C, n -> expected rows, sigma' -> the sum's noise /
C, eta -> strategy.server.lr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedpriv.common.messages import FloatVector, pack_vector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import DPSumOptions
from fedpriv.mechanisms.clipped_sums import excess
from fedpriv.mechanisms.recalibration import Curve, closer, first_curve, fit, recalibrated
from fedpriv.mechanisms.scaling import Scaling
from fedpriv.server.row_sums import RowSumServer

#: Largest eta; length of what the noise makes of theta; noise deviations that are added to an input's own.
LARGEST_STEP, NOISE_LENGTH, HIDDEN = 6.0, 12.0, 2.0


class DPSum(RowSumServer):
    """theta <- theta - eta G/n: gradients in units of C, so that eta does not depend on it. The last model is the mean
    of the last ``average`` of all rounds' (B. T. Polyak, A. B. Juditsky 1992).
    """

    options: DPSumOptions  # type: ignore[assignment]
    summed: NDArray[np.float64] | None = None  # of the models to be averaged [d]
    count: int = 0
    shift: NDArray[np.float64] | None = None  # m [k]
    deviation: NDArray[np.float64] | None = None  # noisy mean of |x - m| [k]
    asked: Curve | None = None  # what this round counts
    curves: tuple[Curve, ...] = ()  # what earlier rounds counted

    # --- what is public ------------------------------------------------------------------------------------

    def expected(self, sites: int) -> float:
        """Rows in a sum of so many sites, which hold as many as on average."""
        return self.rows * self.options.sampling_rate * sites / self.population.num_clients

    def excess(self, rows: int) -> float:
        return excess(rows)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in a mean, in units of the bound."""
        people = self.population
        return self.options.mean_noise(self.rows, people.clients_per_round, people.num_clients)

    def step(self, size: int) -> float:
        """eta of a theta [size]; 1 where the optimizer has its own."""
        options = self.options
        if options.lr is not None or options.optimizer in ("adam", "yogi"):
            return 1.0
        most = LARGEST_STEP / 10 if self.population.classes == 1 else LARGEST_STEP
        length = self.noise * math.sqrt(size * self.trained)
        eta = min(most, NOISE_LENGTH / length) if length else most
        return eta * (1 - options.momentum) if options.optimizer == "momentum" else eta

    @property
    def trained(self) -> int:
        """Rounds before those that recalibrate."""
        return self.options.rounds - self.options.recalibrates(self.population.risk_classes, self.noise)

    @property
    def input_rounds(self) -> int:
        """Rounds for the inputs' means, and as many after them for their deviations."""
        return self.options.input_rounds(self.population.flat_inputs)

    @property
    def scaling(self) -> Scaling | None:
        """What inputs are scaled by in this round."""
        if not self.input_rounds:
            return None
        zeros = np.zeros(self.population.flat_inputs)
        scaling = Scaling(zeros if self.shift is None else self.shift, zeros, self.population.outputs)
        if self.deviation is None:
            return scaling
        hidden = HIDDEN * self.noise / math.sqrt(self.input_rounds) * scaling.bound
        log_scale = np.log(self.deviation.clip(0) + hidden + 1e-3)
        return replace(scaling, log_scale=log_scale.astype(np.float32).astype(np.float64))  # as clients get it

    @property
    def input_sums(self) -> tuple[NDArray[np.float64], float, float] | None:
        """(The noisy sum of the inputs [k], its noise's standard deviation, rows in it), the mean of the rounds so far
        that asked for it; None without one.
        """
        if self.shift is None or (scaling := self.scaling) is None:
            return None
        rows, rounds = self.expected(self.population.clients_per_round), min(self.current.number, self.input_rounds)
        return self.shift * rows, self.noise / math.sqrt(max(1, rounds)) * scaling.bound * rows, rows

    # --- a round -------------------------------------------------------------------------------------------

    def coming_down(self, arrays: ArrayRecord) -> ArrayRecord:
        theta, scaling = self.current.theta, self.scaling
        if self.current.number > self.trained:
            self.asked = self._next_curve(theta)
            parts = [np.array([value]) for value in (self.asked.centre, math.log(self.asked.width))]
        elif scaling is not None:
            parts = [scaling.shift, scaling.log_scale]
        elif self.trained < self.options.rounds:
            parts = [np.zeros(1)] * 2
        else:
            return super().coming_down(arrays)
        beside = [np.pad(part, (0, theta.size - part.size)) for part in parts]
        return pack_vector(np.concatenate([theta, *beside]).astype(np.float32))

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        mean, number, scaling = self.mean(theta.size, replies), self.current.number, self.scaling
        if number > self.trained:
            return self._recalibrated(theta, mean)
        if scaling is not None and number <= 2 * self.input_rounds:
            found = mean[: len(scaling.shift)] * scaling.bound
            if number <= self.input_rounds:
                self.shift = self._mean_with(self.shift, found, number)
            else:
                self.deviation = self._mean_with(self.deviation, found, number - self.input_rounds)
            linear = len(self.population.layers) == 1
            return self.move(np.zeros_like(theta) if linear else theta, np.zeros(theta.size))
        update = -self.step(theta.size) * mean
        moved = self.move(theta, update if scaling is None else scaling.back(update))
        if number > self.trained * (1 - self.options.average):
            self.summed = moved.astype(np.float64) + (0 if self.summed is None else self.summed)
            self.count += 1
            if number == self.trained:
                return (self.summed / self.count).astype(np.float32)
        return moved

    @staticmethod
    def _mean_with(before: NDArray[np.float64] | None, found: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """The mean of so many rounds, of which ``before`` is that of all but this; float32, as clients get it."""
        mean = found if before is None else before + (found - before) / count
        return mean.astype(np.float32).astype(np.float64)

    def _next_curve(self, theta: FloatVector) -> Curve:
        """What this round asks of the log odds: where they lie by the inputs' means and deviations (of unscaled inputs
        in [-1, 1] by those of even ones), or closer by what the last round said.
        """
        if self.curves:
            asked = closer(self.curves[-1], self.population.outputs == 2)
        else:
            scaling, outputs = self.scaling, self.population.outputs
            shift = np.zeros(self.population.flat_inputs) if scaling is None else scaling.shift
            scale = np.full(len(shift), 0.5) if scaling is None else np.exp(scaling.log_scale)
            asked = first_curve(theta.astype(np.float64), outputs, shift, scale)
        width = math.exp(float(np.float32(math.log(asked.width))))  # as clients get it
        return replace(asked, centre=float(np.float32(asked.centre)), width=width)

    def _recalibrated(self, theta: FloatVector, mean: NDArray[np.float64]) -> FloatVector:
        """theta, of the last round with risks by what all rounds counted."""
        assert self.asked is not None
        rows, outputs = self.expected(self.population.clients_per_round), self.population.outputs
        counts = (mean * rows)[: self.asked.counts.size].reshape(2, -1)
        self.curves = (*self.curves, replace(self.asked, noise=self.noise * rows, counts=counts))
        if self.current.number < self.options.rounds:
            return theta
        intercept, slope = fit(self.curves, outputs == 2)
        return recalibrated(theta.astype(np.float64), outputs, intercept, slope).astype(np.float32)

    # --- checkpoints -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"averaged": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.count = int(state.get("averaged", 0))

    def vectors(self) -> dict[str, NDArray[Any]]:
        kept = {name: getattr(self, name) for name in ("summed", "shift", "deviation")}
        curves = {f"curve_{place}": curve.packed() for place, curve in enumerate(self.curves)}
        return super().vectors() | {name: vector for name, vector in kept.items() if vector is not None} | curves

    def load_vectors(self, vectors: Mapping[str, NDArray[Any]]) -> None:
        super().load_vectors(vectors)
        self.summed, self.shift, self.deviation = (vectors.get(name) for name in ("summed", "shift", "deviation"))
        places = range(sum(name.startswith("curve_") for name in vectors))
        self.curves = tuple(Curve.of(vectors[f"curve_{place}"]) for place in places)
