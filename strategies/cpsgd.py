"""cpSGD, server half (Agarwal, Suresh, Yu, Kumar, McMahan, NeurIPS 2018): a baseline of DP-FedAGS.

The client rotates, quantises and adds binomial noise; the server sees each client's numbers and knows who took part.
Under a secure sum it sees their sum only: so the mean is unweighted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.common.messages import FloatVector
from fedpriv.common.seeds import public_signs
from fedpriv.config.methods import CpSGDOptions
from fedpriv.privacy.sum_grid import BinomialGrid, grid_for, sum_bits
from fedpriv.server.gradient import GradientServer
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.summing import Decoded, SummingServer


class CpSGD(SummingServer, GradientServer):
    """theta <- theta - eta mean of the decoded gradients. All options but the learning rate are the clients' own."""

    options: CpSGDOptions  # type: ignore[assignment]

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        if not self.in_sum:
            self.decode = self.decoded

    def grid(self, client: int) -> BinomialGrid:
        options = self.options
        planned = None if options.variant == "published" else options.rounds
        examples = max(1, self.population.num_examples(client)) if options.sensitivity == "per_example" else 1
        asked = (options.clip_norm, options.levels, options.trials, options.epsilon, options.claimed_delta)
        return grid_for(self.current.theta.size, *asked, planned, examples)

    # --- in a sum: all clients have the same grid --------------------------------------------------------------

    @property
    def bits(self) -> int:
        return sum_bits(self.grid(0), self.options.bits, self.population.clients_per_round)

    def numbers(self, size: int) -> int:
        return self.grid(0).padded

    def decode_sum(self, total: NDArray[np.int64], survivors: int, size: int) -> Decoded:
        grid = self.grid(0)
        signs = torch.from_numpy(public_signs(self.population.seed, self.current.number, grid.padded))
        return Decoded(grid.decode_sum(total, survivors, signs))

    # --- one by one ----------------------------------------------------------------------------------------------

    def decoded(self, client: int, packed: Any) -> FloatVector:
        """float32 [d]. Raises ValueError for what no client of this grid can have sent."""
        grid = self.grid(client)
        signs = torch.from_numpy(public_signs(self.population.seed, self.current.number, grid.padded))
        return grid.decode(packed, signs)
