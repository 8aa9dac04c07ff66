"""What accountants ask of events, asked once of equal ones: Renyi curves at `ORDERS`, pure epsilons.

All figures are for ONE of the event's ``count`` releases, its ``dimension`` included. Each kind of event computes its
own, in its file of `fedpriv.privacy.events`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedpriv.mechanisms.laws import Vector
from fedpriv.privacy.events.event import Event

#: Orders of every Renyi curve: close to 1 for large totals, up to a million for tiny ones.
ORDERS: Vector = np.round(
    np.concatenate(
        [
            1 + np.geomspace(1e-3, 0.1, 13)[:-1],
            np.arange(1.1, 2.05, 0.1),
            np.arange(2.2, 4.1, 0.2),
            np.arange(4.5, 11.1, 0.5),
            np.arange(12, 32),
            np.arange(32, 64, 4),
            [64, 80, 96, 128, 192, 256, 384, 512, 768, 1024, 4096, 16384, 65536, 1e6],
        ]
    ),
    9,
)


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


def renyi_to_epsilon(curves: Vector, delta: float) -> Vector:
    """epsilon at delta of Renyi curves [..., orders], the best order for each (Canonne et al. 2020, Prop. 12)."""
    if delta == 0:
        return np.where((curves == 0).all(axis=-1), 0.0, np.inf)
    best = (curves + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)).min(axis=-1)
    return np.maximum(0.0, np.where(np.isnan(best), np.inf, best))


def release_epsilon(event: Event, delta: float) -> float:
    """epsilon at delta of one release, by its Renyi curve."""
    return float(renyi_to_epsilon(renyi_curve(event), delta - event.delta_share))
