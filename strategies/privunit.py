"""PrivUnit, server half (Bhowmick et al. 2018; Feldman and Talwar 2021; Asi, Feldman and Talwar 2022).

The client sends the direction of its update through a mechanism for unit vectors; the server sees each release and
knows who took part; nobody needs to be trusted. Directions have no length: how far the mean moves theta is the server's
learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import PrivUnitOptions
from fedpriv.server.unit_vector import UnitVectorStrategy


class PrivUnit(UnitVectorStrategy):
    """theta <- theta + eta mean of the estimated directions. learning_rate: eta; the others are the clients' own."""

    options: PrivUnitOptions

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        return self.move(theta, self.options.learning_rate * self.mean(theta.size, replies))
