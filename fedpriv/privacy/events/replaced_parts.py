"""Normal noise over a random sample of parts of a client's data, of which one may be another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.privacy.events.sampled_gaussians import PoissonSample

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class ReplacedGaussian(PoissonSample):
    """A Gaussian over a Poisson sample of parts, where one unit more or less changes one part, and not whether it is
    drawn: virtual clients.

    multiplier: std / how far a part that *is* in the sample moves the sum (2C of parts clipped to C). The sample must
    come from randomness that the observer cannot know. Proof: `fedpriv.privacy.replaced_poisson`.
    """

    mechanism = "replaced_gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.unit == "client" or self.threat.adjacency != "add-or-remove-one":
            raise ValueError("parts are drawn within a client: unit example or person, adjacency add-or-remove-one")

    def amplified_renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.replaced_poisson import replaced_poisson_renyi

        return replaced_poisson_renyi(self.sampling_rate, self.multiplier, orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.privacy.replaced_poisson import replaced_poisson_pld  # seconds to import

        if not 0 < self.sampling_rate < 1:
            return None
        return replaced_poisson_pld(self.sampling_rate, self.multiplier, interval)
