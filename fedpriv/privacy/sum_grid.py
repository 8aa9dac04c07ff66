"""The price of ddgauss and skellam: what whole numbers on their grid (`WholeGrid`) cost.

Lengths are in units of the clip norm C, so that no event moves with C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.mechanisms.whole_numbers import WholeGrid
from fedpriv.privacy.events import CLIENT_TO_SERVER, DiscreteGaussianSum, SkellamSum, Threat


@dataclass(frozen=True)
class SumGrid(WholeGrid):
    """The grid with the events of its numbers."""

    def event(self, threat: Threat, noises: int, share: float) -> DiscreteGaussianSum | SkellamSum:
        """The vector of one client, in a sum with so many noises. Under replace-one it moves by 2 G.

        share: the part of delta that the bound of one release may use up (skellam).
        """
        return self._event(threat, self.sigma, noises, self.padded, 2 * math.sqrt(self.most_square), share)

    def statistic_event(
        self, threat: Threat, noise: float, noises: int, share: float
    ) -> DiscreteGaussianSum | SkellamSum:
        """One number beside the vector, which moves by its whole range."""
        steps = self.statistic_steps(noise)
        return self._event(threat, noise * steps, noises, 1, float(steps), share)

    def _event(
        self, threat: Threat, sigma: float, noises: int, dimension: int, l2: float, share: float
    ) -> DiscreteGaussianSum | SkellamSum:
        if threat == CLIENT_TO_SERVER:
            noises = 1
        if self.law == "gaussian":
            return DiscreteGaussianSum(threat=threat, sigma=sigma, noises=noises, dimension=dimension, l2=l2)
        variance = sigma * sigma
        return SkellamSum(threat=threat, variance=variance, noises=noises, dimension=dimension, l2=l2, delta=share)
