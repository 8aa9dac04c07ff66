"""What clients whose continuous noises add up in a secure sum have in common. The sum itself is assumed."""

from __future__ import annotations

from functools import cached_property

from fedpriv.client.contract import Charge
from fedpriv.config.methods import WeighedSumOptions
from fedpriv.privacy.events import Gaussian

ONE_NOISE = (
    "the observer of a sum with a single unknown noise is told as much as the server; strategy.server.min_replies says "
    "how many noises a sum has at least, strategy.server.weighting=uniform lets them count alike, and "
    "strategy.client.sensitivity=clip makes them of one size"
)


class SummedGaussians:
    """Of a client that is also accounted for against whoever sees only a round's sum (`Gaussian.in_sum`): the sum of
    ``min_replies`` releases at least (the server throws smaller sums away), of which ``colluders`` clients' noise is
    known to the observer. Its class has the trait ``why_no_sum``, for sums with a single unknown noise.
    """

    options: WeighedSumOptions

    @cached_property
    def noises(self) -> int:
        """Noises in the sum that its observer cannot know. Weighted by examples, a client counts on its own alone,
        since its release may weigh more than the others'.
        """
        options = self.options
        return max(1, options.min_replies - options.colluders) if options.weighting == "uniform" else 1

    def summed(self, *own: Gaussian) -> tuple[Charge, ...]:
        """What releases cost against an observer of sums; nothing where it would see one noise only, as the server."""
        return tuple(Charge(event.in_sum(self.noises)) for event in own) if self.noises > 1 else ()
