"""Servers of clients that send directions: what arrives becomes an estimate, whatever mechanism it went through."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fedpriv.common.messages import FloatVector
from fedpriv.config.methods import UnitOptions
from fedpriv.mechanisms.unit_vectors import UnitMechanism, unit_mechanism
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy


class UnitVectorStrategy(FederatedStrategy):
    """Base of such server halves."""

    options: UnitOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.decode = self.decoded

    def mechanism_for(self, size: int, std: float = 0.0) -> UnitMechanism:
        """The clients' mechanism in R^size. std: of the Gaussian, where its price or its moments are asked for."""
        asked = self.options
        return _mechanism(size, asked.mechanism, asked.epsilon, asked.projections, asked.bits, std)

    def decoded(self, client: int, sent: Any) -> FloatVector:
        """The estimate (float32 [d]). Raises ValueError for what no client can have sent."""
        mechanism = self.mechanism_for(self.current.theta.size)
        expected = np.uint8 if mechanism.dtype == torch.uint8 else np.float32
        if sent.dtype != expected or sent.shape != (mechanism.width,):
            raise ValueError(f"expected {expected.__name__} [{mechanism.width}], got {sent.dtype} {list(sent.shape)}")
        key = (self.population.seed, client, self.current.number)
        estimate: FloatVector = mechanism.decode(torch.from_numpy(np.array(sent)), key).numpy()
        return estimate


@lru_cache(maxsize=8)
def _mechanism(
    dimension: int, name: str, epsilon: float, projections: int, bits: int | None, std: float
) -> UnitMechanism:
    return unit_mechanism(name, dimension, epsilon, projections, bits, std)
