"""Releases of which nothing is known but a pair of epsilon and delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.privacy.events.event import Event, check_number, without_randomness

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class ApproximateDP(Event):
    """A mechanism known only by its (epsilon, delta) pair; one release uses up delta."""

    mechanism = "approximate_dp"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon)
        check_number("delta", self.delta)
        if self.delta >= 1:
            raise ValueError(f"delta={self.delta}: must be in [0, 1)")

    @property
    def delta_share(self) -> float:
        return self.delta

    def why_unbounded(self) -> str | None:
        return without_randomness(self.epsilon)

    def pure_epsilon(self) -> float:
        return self.epsilon

    def renyi(self, orders: Vector) -> Vector:
        from fedpriv.mechanisms.laws import pure_renyi

        return pure_renyi(self.epsilon, orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.mechanisms.laws import randomised_response
        from fedpriv.privacy.dp_library import discrete_pld  # seconds to import

        return discrete_pld(*randomised_response(self.epsilon), interval)
