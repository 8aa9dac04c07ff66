"""Releases without a sound bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.privacy.events.event import Event

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


@dataclass(frozen=True, kw_only=True)
class NoBound(Event):
    """A release without a sound bound: the total is infinite, for this reason in words."""

    mechanism = "no_bound"
    reason: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.reason, str) or not self.reason:
            raise ValueError("reason: a release without a bound says why")

    def why_unbounded(self) -> str:
        return self.reason

    def renyi(self, orders: Vector) -> Vector:
        import numpy as np

        return np.full(len(orders), np.inf)
