"""The shared base of the servers that take a step along the mean of their clients' accumulated gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.messages import FloatVector
from fedpriv.common.packing import unpack_selected
from fedpriv.common.replies import Reply
from fedpriv.common.seeds import public_mask
from fedpriv.config.methods import GradientOptions, SelectingOptions
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy

#: What clients report to the experimenter in simulation: shares of the coordinates.
CLIENT_FIGURES = ("share_perturbed", "scheduled_share", "clamped_share")


class GradientServer(FederatedStrategy):
    """theta <- theta - eta sum_k w_k g_k. learning_rate: eta."""

    options: GradientOptions

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        gradient = self.gradient(theta.size, replies)
        return self.move(theta, -(self.options.learning_rate * gradient))

    def gradient(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """What the server's step is along (float64 [size])."""
        return self.mean(size, replies)

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        found = {}
        for name in CLIENT_FIGURES:
            values = [reply.diagnostics[name] for reply in replies if name in reply.diagnostics]
            if values:
                found[name] = sum(values) / len(values)
        return found


class SelectingServer(GradientServer):
    """Receives some coordinates of each gradient; the others count as zero. selection, variant: the clients' own."""

    options: SelectingOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.decode = None if self.options.variant == "published" else self.decoded

    @abstractmethod
    def count(self, dimension: int, server_round: int) -> int:
        """How many of d coordinates a client sends in this round: public."""

    def decoded(self, client: int, sent: Any) -> FloatVector:
        """float32 [d], zero where nothing was sent. Raises ValueError for anything else than what a client sends."""
        dimension, number = self.current.theta.size, self.current.number
        count = self.count(dimension, number)
        if self.options.selection == "gumbel" and count < dimension:
            return unpack_selected(sent, dimension, count)
        if sent.dtype != np.float32 or sent.shape != (count,):
            raise ValueError(f"expected float32 [{count}], got {sent.dtype} {list(sent.shape)}")
        vector = np.zeros(dimension, np.float32)
        vector[public_mask(self.population.seed, client, number, dimension, count)] = sent
        return vector
