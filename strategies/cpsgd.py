"""cpSGD, server half (Agarwal, Suresh, Yu, Kumar, McMahan, NeurIPS 2018): a baseline of DP-FedAGS.

The client rotates, quantises and adds binomial noise; the server sees each client's numbers and knows who took part.
Under a secure sum, which is assumed, it would see their sum only: so the mean is unweighted.
"""

from __future__ import annotations

from typing import Any

import torch

from fedpriv.common.seeds import public_signs
from fedpriv.common.vectors import FloatVector
from fedpriv.config.methods import CpSGDServerOptions
from fedpriv.privacy.binomial_grid import BinomialGrid, grid_for
from fedpriv.server.gradient import GradientServer
from fedpriv.server.round import NO_HOOKS, Hooks, Population


class CpSGD(GradientServer):
    """theta <- theta - eta mean of the decoded gradients. All options but the learning rate are the clients' own."""

    options: CpSGDServerOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.decode = self.decoded

    def grid(self, client: int) -> BinomialGrid:
        options = self.options
        planned = None if options.variant == "published" else options.rounds
        examples = max(1, self.population.num_examples(client)) if options.sensitivity == "per_example" else 1
        asked = (options.clip_norm, options.levels, options.trials, options.epsilon, options.claimed_delta)
        return grid_for(self.current.theta.size, *asked, planned, examples)

    def decoded(self, client: int, packed: Any) -> FloatVector:
        """float32 [d]. Raises ValueError for what no client of this grid can have sent."""
        grid = self.grid(client)
        signs = torch.from_numpy(public_signs(self.population.seed, self.current.number, grid.padded))
        return grid.decode(packed, signs)
