"""What every event is: a release under a threat model, some number of times. Imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

UNITS = ("client", "example")
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
class Event:
    """``count`` independent releases of one mechanism. Raises ValueError for impossible values (NaN included)."""

    mechanism: ClassVar[str]
    threat: Threat
    count: int = 1

    def __post_init__(self) -> None:
        check_whole("count", self.count, least=1)


# --- checks ------------------------------------------------------------------------------------------------


def check_number(name: str, value: float, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(
            f"{name}={value!r}: must be a number of at least 0" + (f", at most {most}" * (most < math.inf))
        )


def check_whole(name: str, value: int, least: int, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: must be a whole number of at least {least}")


def check_share_of_delta(delta: float) -> None:
    check_number("delta", delta)
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: must be in (0, 1)")


def check_amplifies(event: Event) -> None:
    if event.threat.unit == "client" and event.threat.observer not in BLIND_TO_COHORT:
        raise ValueError(f"observer {event.threat.observer} knows who took part: sampling clients does not amplify")
