"""Differentially private sums over the examples of sites, server half (`clients.dpsum`).

The server learns the noisy sum over all sites' examples (`fedpriv.server.row_sums`), and moves theta against it.

With scale_inputs round 1 gives the inputs' noisy means m, round 2 their noisy mean deviations |x - m|; steps of all
later rounds are those of inputs (x - m)/s with s = deviation + 2 tau + 0.001, where tau is the noise's standard
deviation in a deviation: an input that the noise hides is not blown up.

The learning rate where strategy.server.lr=null. One round's noise moves theta by eta nu in length, where nu = sigma'
sqrt(d)/n is that of the noise in the mean gradient in units of C; after T rounds it has moved it by about eta nu
sqrt(T). eta = min(6, 4/(nu sqrt(T))), a tenth of 6 where the output is one number in [-1, 1] (logits are longer).
The two numbers, C, the factor 2 and T = 20 were chosen on other tables than those in the docs (docs/tables.md).

Symbols: G -> the sum in units of C, n -> expected rows, sigma' -> the sum's noise / C, eta -> strategy.server.lr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedpriv.common.messages import FloatVector, pack_vector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import DPSumOptions
from fedpriv.mechanisms.clipped_sums import excess
from fedpriv.mechanisms.scaling import Scaling
from fedpriv.server.row_sums import RowSumServer

#: Largest eta; length of what the noise makes of theta; noise deviations that are added to an input's own.
LARGEST_STEP, NOISE_LENGTH, HIDDEN = 6.0, 4.0, 2.0


class DPSum(RowSumServer):
    """theta <- theta - eta G/n: gradients in units of C, so that eta does not depend on it. The last model is the mean
    of the last ``average`` of all rounds' (B. T. Polyak, A. B. Juditsky 1992).
    """

    options: DPSumOptions  # type: ignore[assignment]
    summed: NDArray[np.float64] | None = None  # of the models to be averaged [d]
    count: int = 0
    shift: NDArray[np.float64] | None = None  # m [k]
    log_scale: NDArray[np.float64] | None = None  # ln s [k]

    # --- what is public ------------------------------------------------------------------------------------

    def expected(self, sites: int) -> float:
        """Rows in a sum of so many sites, which hold as many as on average."""
        return self.rows * self.options.sampling_rate * sites / self.population.num_clients

    def excess(self, rows: int) -> float:
        return excess(rows)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in a mean, in units of the bound."""
        sites = self.population.clients_per_round
        noises = 1 if self.options.form == "central" else sites
        return self.options.noise_multiplier * math.sqrt(noises) / self.expected(sites)

    def step(self, size: int) -> float:
        """eta of a theta [size]; 1 where the optimizer has its own."""
        options = self.options
        if options.lr is not None or options.optimizer in ("adam", "yogi"):
            return 1.0
        most = LARGEST_STEP / 10 if self.population.classes == 1 else LARGEST_STEP
        length = self.noise * math.sqrt(size * options.rounds)
        eta = min(most, NOISE_LENGTH / length) if length else most
        return eta * (1 - options.momentum) if options.optimizer == "momentum" else eta

    @property
    def scaling(self) -> Scaling | None:
        """What inputs are scaled by in this round."""
        outputs, inputs = self.population.outputs, self.population.flat_inputs
        if not self.options.scales(inputs):
            return None
        zeros = np.zeros(inputs)
        shift, log_scale = (zeros if found is None else found for found in (self.shift, self.log_scale))
        return Scaling(shift, log_scale, outputs)

    @property
    def input_sums(self) -> tuple[NDArray[np.float64], float, float] | None:
        """(round 1's noisy sum of the inputs [k], its noise's standard deviation, rows in it); None without one."""
        if self.shift is None or (scaling := self.scaling) is None:
            return None
        rows = self.expected(self.population.clients_per_round)
        return self.shift * rows, self.noise * scaling.bound * rows, rows

    # --- a round -------------------------------------------------------------------------------------------

    def coming_down(self, arrays: ArrayRecord) -> ArrayRecord:
        if (scaling := self.scaling) is None:
            return super().coming_down(arrays)
        theta = self.current.theta
        beside = [np.pad(part, (0, theta.size - part.size)) for part in (scaling.shift, scaling.log_scale)]
        return pack_vector(np.concatenate([theta, *beside]).astype(np.float32))

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        mean, number, rounds = self.mean(theta.size, replies), self.current.number, self.options.rounds
        scaling = self.scaling
        if scaling is not None and number <= 2:
            found = mean[: len(scaling.shift)] * scaling.bound
            if number == 1:
                self.shift = found.astype(np.float32).astype(np.float64)  # as clients get it
            else:
                spread = found.clip(0) + HIDDEN * self.noise * scaling.bound + 1e-3
                self.log_scale = np.log(spread).astype(np.float32).astype(np.float64)
            return self.move(theta, np.zeros(theta.size))
        update = -self.step(theta.size) * mean
        moved = self.move(theta, update if scaling is None else scaling.back(update))
        if number > rounds * (1 - self.options.average):
            self.summed = moved.astype(np.float64) + (0 if self.summed is None else self.summed)
            self.count += 1
            if number == rounds:
                return (self.summed / self.count).astype(np.float32)
        return moved

    # --- checkpoints -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"averaged": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.count = int(state.get("averaged", 0))

    def vectors(self) -> dict[str, NDArray[Any]]:
        kept = {name: getattr(self, name) for name in ("summed", "shift", "log_scale")}
        return super().vectors() | {name: vector for name, vector in kept.items() if vector is not None}

    def load_vectors(self, vectors: Mapping[str, NDArray[Any]]) -> None:
        super().load_vectors(vectors)
        self.summed, self.shift, self.log_scale = (vectors.get(name) for name in ("summed", "shift", "log_scale"))
