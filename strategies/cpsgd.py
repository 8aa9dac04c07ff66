"""cpSGD, server half (Agarwal, Suresh, Yu, Kumar, McMahan, NeurIPS 2018): a baseline of DP-FedAGS.

The client rotates, quantises and adds binomial noise; the server sees each client's numbers and knows who took part.
Under a secure sum, which is assumed, it would see their sum only: so the mean is unweighted.
"""

from __future__ import annotations

from typing import Any

import torch

from fedpriv.common.messages import FloatVector
from fedpriv.common.seeds import public_signs
from fedpriv.privacy.binomial_grid import BinomialGrid, grid_for
from fedpriv.server.gradient import GradientServer
from fedpriv.server.round import Population


class CpSGD(GradientServer):
    """theta <- theta - eta mean of the decoded gradients. All options but the learning rate are the clients' own."""

    def __init__(
        self,
        population: Population,
        *,
        rounds: int,
        epsilon: float,
        claimed_delta: float,
        clip_norm: float,
        levels: int,
        trials: int | None,
        sensitivity: str,
        variant: str,
        **options: Any,
    ) -> None:
        super().__init__(population, **options)
        planned = None if variant == "published" else rounds
        self.asked = (clip_norm, levels, trials, epsilon, claimed_delta, planned)
        self.by_examples = sensitivity == "per_example"
        self.decode = self.decoded

    def grid(self, client: int) -> BinomialGrid:
        examples = max(1, self.population.num_examples(client)) if self.by_examples else 1
        return grid_for(self.current.theta.size, *self.asked, examples)

    def decoded(self, client: int, packed: Any) -> FloatVector:
        """float32 [d]. Raises ValueError for what no client of this grid can have sent."""
        grid = self.grid(client)
        signs = torch.from_numpy(public_signs(self.population.seed, self.current.number, grid.padded))
        return grid.decode(packed, signs)
