"""Differentially private sums of per-example gradients over sites, server half (`clients.dpsum`).

The server learns the noisy sum of the clipped gradients of all sites' examples, and moves theta against it. It is
trusted with keeping to `min_replies` where the sum is ideal.

Symbols: G -> the sum in units of C, n -> rows, eta -> strategy.server.lr.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import DPSumOptions
from fedpriv.privacy.row_sum import RowSumGrid
from fedpriv.server.summing import Decoded, SummingServer


class DPSum(SummingServer):
    """theta <- theta - eta G/n: gradients in units of C, so that eta does not depend on it. The last model is the mean
    of the last ``average`` of all rounds' (B. T. Polyak, A. B. Juditsky 1992).
    """

    options: DPSumOptions  # type: ignore[assignment]
    summed: NDArray[np.float64] | None = None  # of the models to be averaged [d]
    count: int = 0

    @cached_property
    def rows(self) -> int:
        """Of all sites, as they declare."""
        return sum(self.population.num_examples(client) for client in range(self.population.num_clients))

    def grid(self, size: int) -> RowSumGrid:
        options, sites = self.options, self.population.clients_per_round
        law = "gaussian" if options.law == "ddgauss" else "skellam"
        return RowSumGrid(law, size, self.rows, sites, options.bits, options.noise_multiplier)  # type: ignore[arg-type]

    def numbers(self, size: int) -> int:
        return size

    def decode_sum(self, total: NDArray[np.int64], survivors: int, size: int) -> Decoded:
        rows = self.rows * survivors / self.population.num_clients  # as the sites hold on average
        return Decoded(-self.grid(size).decode(total) / rows)

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        moved = super().aggregate(theta, replies)
        rounds, number = self.options.rounds, self.current.number
        if number > rounds * (1 - self.options.average):
            self.summed = moved.astype(np.float64) + (0 if self.summed is None else self.summed)
            self.count += 1
            if number == rounds:
                return (self.summed / self.count).astype(np.float32)
        return moved

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"averaged": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.count = int(state.get("averaged", 0))

    def vectors(self) -> dict[str, NDArray[Any]]:
        return super().vectors() | ({} if self.summed is None else {"summed": self.summed})

    def load_vectors(self, vectors: Mapping[str, NDArray[Any]]) -> None:
        super().load_vectors(vectors)
        self.summed = vectors.get("summed")
