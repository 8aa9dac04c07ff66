"""What clients whose noises add up in a secure sum have in common. Secure summation is assumed, not implemented."""

from __future__ import annotations

from typing import Any

from fedpriv.client.contract import Charge
from fedpriv.privacy.events import SECURE_SUM, Gaussian

ONE_NOISE = (
    "the observer of a sum with a single unknown noise is told as much as the server; strategy.server.min_replies says "
    "how many noises a sum has at least, strategy.server.weighting=uniform lets them count alike, and "
    "strategy.client.sensitivity=clip makes them of one size"
)


class SummedGaussians:
    """Options of a client that is also accounted for against whoever sees only a round's sum (`Gaussian.in_sum`).

    min_replies: the fewest releases that are summed (the server throws smaller sums away). colluders: of these, how
    many clients' noise the observer knows. weighting: of the sum; by examples a client counts on its own noise alone,
    since its release may weigh more than the others'.
    """

    def __init__(self, *, min_replies: int = 1, colluders: int = 0, weighting: str = "uniform", **options: Any) -> None:
        super().__init__(**options)
        #: Noises in the sum that its observer cannot know.
        self.noises = max(1, min_replies - colluders) if weighting == "uniform" else 1

    def why_no_account(self, observer: str) -> str:
        return ONE_NOISE if observer == SECURE_SUM.observer and self.noises == 1 else ""

    def summed(self, *own: Gaussian) -> tuple[Charge, ...]:
        """What releases cost against an observer of sums; nothing where it would see one noise only, as the server."""
        return tuple(Charge(event.in_sum(self.noises)) for event in own) if self.noises > 1 else ()
