"""One-shot moments, server half (`clients.moments`): the noisy sum is the model, which solves for its head.

Whole-number noise, a trusted server's or each site's own: `fedpriv.server.row_sums`. What the model makes of the sum is
post-processing (`fedpriv.training.moments`).

Symbols: theta -> the mean over rounds of the rounds' sums, in units of a row's longest vector; its last number is
tau, the standard deviation of the noise in the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import MomentsOptions
from fedpriv.mechanisms.clipped_sums import excess
from fedpriv.server.row_sums import RowSumServer


class Moments(RowSumServer):
    """theta <- theta + (sum - theta)/t in round t; tau <- sigma sqrt(noises/t)."""

    options: MomentsOptions  # type: ignore[assignment]

    def excess(self, rows: int) -> float:
        return excess(rows)

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        total, number, options = self.mean(theta.size, replies), self.current.number, self.options
        noises = 1 if options.form == "central" else self.population.clients_per_round
        moved = theta + (total - theta) / number
        moved[-1] = options.noise_multiplier * math.sqrt(noises / number)
        return moved.astype(np.float32)
