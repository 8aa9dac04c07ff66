"""Normal noise over rounds of which one, secret and drawn uniformly, has the unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.privacy.events.event import Event, check_amplifies, check_number, check_whole, without_noise
from fedpriv.privacy.events.gaussians import gaussian_renyi

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector

#: Below this multiplier losses are too far apart for a grid: an allocation then counts as the Gaussian of one round.
LEAST_MULTIPLIER = 0.1
#: Rounds of a pass up to which rounding of its law is accounted for.
MOST_ROUNDS = 10**6


@dataclass(frozen=True, kw_only=True)
class AllocatedGaussian(Event):
    """A pass of ``rounds`` Gaussian releases, in exactly one of which, uniform and secret, the unit takes part.

    multiplier: std / sensitivity to the unit in its round. released: the first rounds of the pass, beyond which none is
    ever released (known before it begins; 0: all). Each pass draws anew. Replace-one is refused: no sound analysis of
    it is implemented. Proof: `fedpriv.privacy.random_allocation`.
    """

    mechanism = "allocated_gaussian"
    multiplier: float
    rounds: int
    released: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)
        check_whole("rounds", self.rounds, least=1)
        check_whole("released", self.released, least=0, most=self.rounds)
        object.__setattr__(self, "released", self.released or self.rounds)
        if self.rounds > MOST_ROUNDS:
            raise ValueError(f"rounds={self.rounds}: a pass has at most {MOST_ROUNDS} rounds")
        if self.threat.adjacency == "replace-one":
            raise ValueError("an allocation is accounted under add-or-remove-one or zero-out, not replace-one")
        check_amplifies(self)

    @property
    def gaussian_multiplier(self) -> float | None:
        """With one round everybody takes part in it."""
        return self.multiplier if self.rounds == 1 else None

    @property
    def _on_grid(self) -> bool:
        return self.rounds > 1 and LEAST_MULTIPLIER <= self.multiplier <= 1e6

    @property
    def delta_share(self) -> float:
        """Below 1e-12, of the law's cut ends."""
        if not self._on_grid:
            return 0.0
        from fedpriv.privacy.random_allocation import unbounded_share  # scipy

        return unbounded_share(self.rounds, self.multiplier, self.released)

    def why_unbounded(self) -> str | None:
        return without_noise(self.multiplier)

    def renyi(self, orders: Vector) -> Vector:
        if not self._on_grid:  # joint quasi-convexity: a mixture is at most as far away as its parts
            return gaussian_renyi(self.multiplier, orders)
        from fedpriv.privacy.random_allocation import allocated_renyi  # scipy

        return allocated_renyi(self.rounds, self.multiplier, orders, self.released)

    def loss_distribution(self, interval: float) -> Any:
        if not self._on_grid:
            return None
        from fedpriv.privacy.random_allocation import allocated_pld  # seconds to import

        return allocated_pld(self.rounds, self.multiplier, interval, self.released)
