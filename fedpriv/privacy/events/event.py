"""What every event is: a release under a threat model, some number of times, and what accountants ask of it."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector

UNITS = ("client", "example", "person")
ADJACENCIES = ("replace-one", "zero-out", "add-or-remove-one")
OBSERVERS = ("server", "server+members", "secure-sum", "trusted-server", "public")
#: Observers who do not learn which clients took part: only against them does sampling clients amplify.
BLIND_TO_COHORT = ("trusted-server", "public")


@dataclass(frozen=True)
class Threat:
    """Unit, adjacency and observer of a guarantee. Only equal threats are ever composed."""

    unit: str
    adjacency: str
    observer: str

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("unit", self.unit, UNITS),
            ("adjacency", self.adjacency, ADJACENCIES),
            ("observer", self.observer, OBSERVERS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r}: allowed: {', '.join(allowed)}")


CLIENT_TO_SERVER = Threat("client", "replace-one", "server")
#: An observer who sees only the sum of a round's releases, and knows who took part.
SECURE_SUM = Threat("client", "replace-one", "secure-sum")


@dataclass(frozen=True, kw_only=True)
class Event(ABC):
    """``count`` independent releases of one mechanism. Raises ValueError for impossible values (NaN included).

    What accountants ask is about ONE of the ``count`` releases, its ``dimension`` included. A mechanism answers with a
    reason and a Renyi curve; what else is known of it makes totals smaller. Its fields are its JSON.
    """

    mechanism: ClassVar[str]
    threat: Threat
    count: int = 1

    def __post_init__(self) -> None:
        check_whole("count", self.count, least=1)

    @abstractmethod
    def why_unbounded(self) -> str | None:
        """The reason, in words, if this release alone costs infinite epsilon at every delta; otherwise None."""

    @abstractmethod
    def renyi(self, orders: Vector) -> Vector:
        """Renyi divergence at each order (> 1) of a release that has a bound; infinite where it is not known."""

    @property
    def gaussian_multiplier(self) -> float | None:
        """The multiplier of an unsampled Gaussian (or one whose sample is everybody), None for anything else."""
        return None

    @property
    def nearly_gaussian(self) -> tuple[float, float] | None:
        """(multiplier, shift): a release costs at most what a Gaussian of this multiplier does, once its epsilon has
        grown by shift and its delta by exp(shift); shifts add up (`fedpriv.privacy.discrete_gaussian`). None: unknown.
        """
        multiplier = self.gaussian_multiplier
        return None if multiplier is None else (multiplier, 0.0)

    @property
    def delta_share(self) -> float:
        """The part of the target delta that one release uses up; the rest of the mechanism is then pure."""
        return 0.0

    def pure_epsilon(self) -> float:
        """epsilon at delta = 0 (for pairs: once `delta_share` is paid); infinite for Gaussians and the like."""
        return math.inf

    @property
    def coordinates(self) -> int:
        """Number of independent one-coordinate releases in each release, for mechanisms that consist of those."""
        return 1

    def one_coordinate(self) -> Self:
        """One coordinate of one release; a mechanism on whole vectors stays as it is."""
        return replace(self, count=1)

    def loss_distribution(self, interval: float) -> Any | None:
        """Privacy loss distribution of ONE coordinate, for dp_library.composed_epsilon; None: none known."""
        return None

    @property
    def likeness(self) -> tuple[float, ...] | None:
        """Where thousands of unequal events are too many to compose: neighbours by this key are merged by `worst_with`.
        None: they never are.
        """
        return None

    def worst_with(self, other: Event) -> Event:
        """An event of the same kind that costs at least as much as this one and as ``other``."""
        raise NotImplementedError


#: Why a release without noise has no bound.
NO_NOISE = "no noise is added"


def without_noise(multiplier: float) -> str | None:
    """`Event.why_unbounded` of noise on a scale."""
    # noise so small that 1/multiplier^2 overflows cannot be told from none
    return NO_NOISE if multiplier < 1e-150 else None


def without_randomness(epsilon: float) -> str | None:
    """`Event.why_unbounded` of a mechanism of pure epsilon."""
    return f"{NO_NOISE} (epsilon is infinite)" if math.isinf(epsilon) else None


# --- checks ------------------------------------------------------------------------------------------------


#: Largest whole number of an event or an entry, and largest number that is not infinite.
MOST_WHOLE, MOST_NUMBER = 2**63 - 1, sys.float_info.max


def check_number(name: str, value: float, most: float = math.inf) -> None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
    if not known or MOST_NUMBER < value < math.inf:  # a whole number that no double holds
        raise ValueError(
            f"{name}={value!r}: must be a number of at least 0" + (f", at most {most}" * (most < math.inf))
        )


def check_whole(name: str, value: int, least: int, most: int = MOST_WHOLE) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: must be a whole number of at least {least}")


def check_share_of_delta(delta: float) -> None:
    check_number("delta", delta)
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: must be in (0, 1)")


def check_amplifies(event: Event) -> None:
    if event.threat.unit == "client" and event.threat.observer not in BLIND_TO_COHORT:
        raise ValueError(f"observer {event.threat.observer} knows who took part: sampling clients does not amplify")
