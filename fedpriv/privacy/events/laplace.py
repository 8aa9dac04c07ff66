"""Laplace noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.privacy.events.event import Event, check_number, without_noise

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class Laplace(Event):
    """Independent Laplace noise on every coordinate. multiplier: scale / L1 sensitivity; 0 means no noise."""

    mechanism = "laplace"
    multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)

    def why_unbounded(self) -> str | None:
        return without_noise(self.multiplier)

    def pure_epsilon(self) -> float:
        return 1 / self.multiplier if self.multiplier else math.inf

    def renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.dp_library import laplace_rdp  # seconds to import

        return laplace_rdp(self.multiplier, orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.privacy.dp_library import laplace_pld  # seconds to import

        return laplace_pld(self.multiplier, interval)
