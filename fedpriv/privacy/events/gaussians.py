"""Normal noise without sampling, and its Renyi curve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedpriv.privacy.events.event import SECURE_SUM, Event, check_number, check_whole, without_noise

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class Gaussian(Event):
    """Independent normal noise on every coordinate. multiplier: std / L2 sensitivity; 0 means no noise."""

    mechanism = "gaussian"
    multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)

    def in_sum(self, noises: int) -> Gaussian:
        """This release as an observer sees it who sees only the sum of a round's releases.

        noises: how many releases carry noise of this size that the observer does not know, including this one: the
        fewest that are ever summed, less the colluders. Given all earlier sums, the other clients' clipped updates are
        fixed, so one client's data move the sum by as much as its own release, while the independent noises N(0, s^2)
        add up to N(0, noises s^2): the multiplier grows by sqrt(noises), and rounds compose adaptively. That needs
        equal weights in the sum, one clip norm for all in a round (a server that announced a smaller one to the others
        would make their noise smaller; a guarantee for the sum trusts the server's announcements, as it does
        min_replies), and clients that keep nothing between rounds that the observer has not seen.
        Raises ValueError for fewer than one noise.
        """
        check_whole("noises", noises, least=1)
        return replace(self, threat=SECURE_SUM, multiplier=math.sqrt(noises) * self.multiplier)

    @property
    def gaussian_multiplier(self) -> float:
        return self.multiplier

    def why_unbounded(self) -> str | None:
        return without_noise(self.multiplier)

    def renyi(self, orders: Vector) -> Vector:
        return gaussian_renyi(self.multiplier, orders)


def gaussian_renyi(multiplier: float, orders: Vector) -> Vector:
    """Renyi divergence of a Gaussian at each order."""
    return orders * (0.5 * (1 / multiplier) * (1 / multiplier))
