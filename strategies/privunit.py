"""PrivUnit, server half (Bhowmick et al. 2018; Feldman and Talwar 2021; Asi, Feldman and Talwar 2022).

The client sends the direction of its update through a mechanism for unit vectors; the server sees each release and
knows who took part; nobody needs to be trusted. Directions have no length: how far the mean moves theta is the server's
learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fedpriv.common.messages import Reply
from fedpriv.common.vectors import FloatVector
from fedpriv.config.methods import PrivUnitServerOptions
from fedpriv.mechanisms.unit_vectors import UnitMechanism, unit_mechanism
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy


class PrivUnit(FederatedStrategy):
    """theta <- theta + eta mean of the estimated directions. learning_rate: eta; the others are the clients' own."""

    options: PrivUnitServerOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.decode = self.decoded

    def decoded(self, client: int, sent: Any) -> FloatVector:
        """The estimate (float32 [d]). Raises ValueError for what no client can have sent."""
        asked = self.options
        size = self.current.theta.size
        mechanism = _mechanism(size, asked.mechanism, asked.epsilon, asked.projections, asked.bits)
        expected = np.uint8 if mechanism.dtype == torch.uint8 else np.float32
        if sent.dtype != expected or sent.shape != (mechanism.width,):
            raise ValueError(f"expected {expected.__name__} [{mechanism.width}], got {sent.dtype} {list(sent.shape)}")
        key = (self.population.seed, client, self.current.number)
        estimate: FloatVector = mechanism.decode(torch.from_numpy(np.array(sent)), key).numpy()
        return estimate

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        return (theta + self.options.learning_rate * self.mean(theta.size, replies)).astype(np.float32)


@lru_cache(maxsize=8)
def _mechanism(dimension: int, name: str, epsilon: float, projections: int, bits: int | None) -> UnitMechanism:
    return unit_mechanism(name, dimension, epsilon, projections, bits)
