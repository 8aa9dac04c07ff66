"""The family of trade-off curves of sampled Gaussian releases whose noise is off by one factor.

F_s is the curve of the ledger's events with every noise multiplier divided by s: s = 1 is what is booked. That a curve
F_s with s >= 1 is refuted contradicts the ledger, whatever the mechanism is. epsilon's bound **assumes** that the
mechanism is one of the family: Gaussian noise, the ledger's sampling rates and number of releases.

Each curve is the least of the lines e^epsilon x + delta(epsilon) and 1 - e^-epsilon (1 - delta(epsilon) - x), at many
epsilon, delta from a loss distribution that is never too small (connect the dots; Doroshenko, Ghazi, Kamath, Kumar and
Manurangsi 2022). Every test of the mechanism lies below every one of the lines, so what is refuted is no more than the
true curve. Strengths lie on a grid, and are rounded to the side that refutes less. epsilon of a strength is what the
ledger's own accountant says of it, on its finer grid: the coarse curves would state up to 2 % too much. So no strength
below 1 states more than the verified epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import Event, PoissonGaussian
from fedpriv.privacy.trade_offs import GAUSSIAN, Family

Array = NDArray[np.float64]

#: Strengths are 2^(k / PER_OCTAVE), k from -REACH to REACH.
PER_OCTAVE, REACH = 32, 80
#: Of a loss distribution; a curve's epsilons.
INTERVAL, EPSILONS = 0.01, np.concatenate([np.linspace(0, 4, 41), np.linspace(4.25, 12, 32), np.linspace(13, 40, 28)])


def family_of(events: Sequence[Event]) -> Family | None:
    """The family of a ledger: `GAUSSIAN` where no noise is sampled; None where there is other noise, or none."""
    if events and all(event.gaussian_multiplier is not None for event in events):
        return GAUSSIAN
    sampled = [event for event in events if isinstance(event, PoissonGaussian) and event.multiplier > 0]
    return ScaledNoise(tuple(sampled)) if sampled and len(sampled) == len(events) else None


@dataclass(frozen=True)
class ScaledNoise:
    """Poisson-sampled Gaussians (all of ``events``), with noise that is off by one factor."""

    events: tuple[PoissonGaussian, ...]
    name: str = "sampled Gaussian"
    assumes: str = "the noise is Gaussian and sampled as the ledger says, and off by one factor at most"
    _known: dict[int, Array] = field(default_factory=dict, compare=False, repr=False)

    def least_fpr(self, strength: float, tpr: float) -> float:
        if strength <= 0:
            return tpr
        deltas = self._curve(_above(strength))
        steep, flat = (tpr - deltas) / _GROWTH, 1 - deltas - (1 - tpr) * _GROWTH
        return float(min(1.0, max(0.0, steep.max(), flat.max())))

    def strength(self, fpr: Array, tpr: Array) -> Array:
        false, true = np.broadcast_arrays(np.asarray(fpr, float), np.asarray(tpr, float))
        low, high = np.full(false.shape, -REACH - 1), np.full(false.shape, REACH + 1)  # low is refuted, high is not
        while (high - low > 1).any():
            middle = (low + high) // 2
            for k in np.unique(middle[high - low > 1]):
                some = (middle == k) & (high - low > 1)
                refuted = self._most_tpr(int(k), false[some]) < true[some]
                low[some] = np.where(refuted, k, low[some])
                high[some] = np.where(refuted, high[some], k)
        return np.where(low < -REACH, 0.0, 2.0 ** (low / PER_OCTAVE))

    def epsilon(self, strength: float, delta: float) -> float:
        if strength <= 0:
            return 0.0
        return compose(self._scaled(math.floor(math.log2(strength) * PER_OCTAVE + 1e-6)), delta).epsilon

    def largest(self, refuted: Callable[[float], bool]) -> float:
        low, high = -REACH - 1, REACH + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if refuted(2 ** (middle / PER_OCTAVE)) else (low, middle)
        return 0.0 if low < -REACH else 2.0 ** (low / PER_OCTAVE)

    def _most_tpr(self, k: int, fpr: Array) -> Array:
        deltas = self._curve(k)
        steep = (fpr[:, None] * _GROWTH + deltas).min(1)
        flat = (1 - (1 - deltas - fpr[:, None]) / _GROWTH).min(1)
        return np.minimum(1.0, np.minimum(steep, flat))

    def _curve(self, k: int) -> Array:
        """delta at each of `EPSILONS`, at strength 2^(k / PER_OCTAVE)."""
        from fedpriv.privacy.dp_library import composed_deltas  # takes seconds to import

        if k not in self._known:
            parts = [(event.loss_distribution(INTERVAL), event.count) for event in self._scaled(k)]
            self._known[k] = composed_deltas(parts, EPSILONS)
        return self._known[k]

    def _scaled(self, k: int) -> list[PoissonGaussian]:
        return [replace(event, multiplier=event.multiplier * 2.0 ** (-k / PER_OCTAVE)) for event in self.events]


_GROWTH = np.exp(EPSILONS)


def _above(strength: float) -> int:
    """The grid's next strength: a larger curve, which is refuted by less."""
    return min(REACH + 1, math.ceil(math.log2(strength) * PER_OCTAVE - 1e-6))
