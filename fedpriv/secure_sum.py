"""What clients whose noises add up in a secure sum have in common. Secure summation is assumed, not implemented."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fedpriv.options import Options


class SumOptions(Options):
    """Options of clients whose noises add up in a secure sum."""

    min_replies: int = Field(ge=1, description="fewest uploads that a secure sum would add up")
    colluders: int = Field(ge=0, description="of these, clients whose noise the observer of a secure sum knows")


class WeighedSumOptions(SumOptions):
    weighting: Any = Field(description="as strategy.server.weighting")


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
