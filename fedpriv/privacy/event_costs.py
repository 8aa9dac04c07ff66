"""What accountants ask of events, asked once of equal ones: Renyi curves at `ORDERS`, pure epsilons.

All figures are for ONE of the event's ``count`` releases, its ``dimension`` included. Each kind of event
computes its own.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedpriv.mechanisms.laws import ORDERS, Vector, renyi_to_epsilon
from fedpriv.privacy.events import Event


@lru_cache(maxsize=100_000)
def pure_epsilon(event: Event) -> float:
    """epsilon at delta = 0, as `Event.pure_epsilon`."""
    return event.pure_epsilon()


@lru_cache(maxsize=10_000)
def renyi_curve(event: Event) -> Vector:
    """Renyi divergence of one release at each of `ORDERS` (count aside). Cached: do not write into it."""
    if event.why_unbounded():
        return np.full(len(ORDERS), np.inf)
    # it increases with the order: a gap takes the next value
    curve = np.minimum.accumulate(event.renyi(ORDERS)[::-1])[::-1]
    curve.flags.writeable = False
    return curve


def release_epsilon(event: Event, delta: float) -> float:
    """epsilon at delta of one release, by its Renyi curve."""
    return float(renyi_to_epsilon(renyi_curve(event), delta - event.delta_share))
