"""Survival from one noisy sum: Kaplan-Meier curves with bands that hold sampling and noise, and the log-rank test.

Time is divided into K equal intervals up to a declared end. Of the persons of a group, N_j had the event in the first j
intervals, and Y_j are at risk when interval j begins: N_K - N_(j-1) had the event later, the others were censored
later or live on at the end.

**What a person adds.** F is the lower triangular Toeplitz matrix with F F = the matrix of ones on and below the
diagonal (its first column f: `square_root`; Fichtenberger, Henzinger, Upadhyay, ICML 2023, as in
`fedpriv.data.questions`). A person with an event in interval j adds column j of F, divided by |f|, to their group's
numbers for events; any other person column K - j of a larger F, where j counts whole intervals without the event, to
those for others. Every person adds to one of these alone, and a column is a part of f moved down: its length is at most
1. |f| F times the noisy numbers are N from the left and the numbers of others from the right, each with noise that
grows with the logarithm of K only, and least where few are at risk.

**The curve.** N is made to rise and Y to fall (isotonic regression), then S_j = product of (1 - d_i / Y'_i) over i <= j
with d_i = N_i - N_(i-1) and Y'_i = w Y_i + (1 - w)(Y_(i+1) + d_i): of the persons censored in an interval the share w
counts. Kaplan-Meier has them at risk up to their own time. Where an interval holds m different times, with as many
events and as many censored at each, that is the mean of 1/m, 2/m, ..., 1: w = (1 + 1/m)/2. For times without a step it
is 1/2 (the life table), and 1 for one time in each interval, its end, where the curve is Kaplan-Meier's.

**The band**, of each time by itself. H = -log S is linear in the noise up to second order, with sum over i <= j of
(noise of d_i)/Y'_i - d_i (noise of Y'_i)/Y'_i^2: its variance v is known. Sampling adds H/M, where M = H / sum of
d_i/Y'_i^2 is how many at risk it is as good as (Greenwood). The interval holds all h with (H - h)^2 <= z^2 (v + h/M):
the score interval, which needs no events. Where Y' is not `CLEAR` standard deviations of its noise above 0 this is no
longer near linear: from there on S may be anything between 0 and the last upper end.

**Log-rank.** U_g = sum of d_gi - d_i Y'_gi/Y'_i over groups g, with its hypergeometric variance and that of the noise
to first order: U' V^-1 U is chi-squared of as many degrees as there are groups but one.

With a cap L on rows of a person, whose rows may be alike, the sampling variance counts L times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import scipy

Z = NormalDist().inv_cdf(0.975)
#: Standard deviations of the noise by which those at risk must exceed it.
CLEAR = 4.0
#: Intervals where none are asked for, and at most.
INTERVALS, MOST_INTERVALS = 24, 500
#: Numbers so near to an edge, in parts of all, are it: edges are rounded too.
AT_AN_EDGE = 1e-9


def factor(size: int) -> tuple[np.ndarray, float]:
    """(F [size, size], |f|)."""
    from fedpriv.mechanisms.matrix_factors import square_root  # with torch, which a node's gate does without

    column = square_root(size)
    return np.asarray(scipy.linalg.toeplitz(column, np.zeros(size))), float(np.linalg.norm(column))


@dataclass(frozen=True)
class LifeTable:
    """Counts by time. until: the declared end; groups: names, none where all are one; step: times are its multiples."""

    until: float
    intervals: int = INTERVALS
    groups: tuple[str, ...] = ()
    step: float | None = None

    @property
    def censored(self) -> float:
        """w."""
        return 0.5 if self.step is None else (1 + 1 / max(1.0, self.until / self.intervals / self.step)) / 2

    @cached_property
    def times(self) -> np.ndarray:
        """Ends of the intervals [K]."""
        return np.linspace(0, self.until, self.intervals + 1)[1:]

    @property
    def size(self) -> int:
        return max(len(self.groups), 1) * (2 * self.intervals + 1)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{group} at {time:.6g}".strip() for group in self._each for time in self.times)

    @property
    def _each(self) -> tuple[str, ...]:
        return self.groups or ("",)

    def vectors(self, times: np.ndarray, events: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
        """float64 [n, size], each of length at most 1. times: [n] in [0, until], NaN: missing; events: 0 or 1; groups:
        places. Others than these add nothing. Who reaches the end lives on, whatever happens then.
        """
        k, groups = self.intervals, np.zeros(len(times), np.int64) if groups is None else groups
        (left, length), (right, longer) = factor(k), factor(k + 1)
        known = np.isfinite(times) & np.isin(events, (0, 1)) & (groups >= 0) & (groups < len(self._each))
        until = np.where(known, times, 0.0) / self.until
        place = np.searchsorted(self.times / self.until + AT_AN_EDGE, until, side="left").clip(0, k - 1)
        place = np.where(until >= 1 - AT_AN_EDGE, k, place)
        event = known & (events == 1) & (place < k)
        vectors = np.zeros((len(times), len(self._each), 2 * k + 1))
        rows = np.flatnonzero(event)
        vectors[rows, groups[rows], :k] = left.T[place[rows]] / length
        rows = np.flatnonzero(known & ~event)
        vectors[rows, groups[rows], k:] = right.T[k - place[rows]] / longer
        return vectors.reshape(len(times), -1)

    @cached_property
    def maps(self) -> tuple[np.ndarray, np.ndarray]:
        """From a group's numbers to N [K, 2 K + 1] and to Y [K + 1, 2 K + 1]."""
        k = self.intervals
        (left, length), (right, longer) = factor(k), factor(k + 1)
        events = np.hstack([length * left, np.zeros((k, k + 1))])
        others = np.hstack([np.zeros((k + 1, k)), longer * right])[::-1]
        return events, events[-1] - np.vstack([np.zeros(2 * k + 1), events]) + others

    def needs(self, std: float) -> float:
        """Rows without which the noise alone spans all of [0, 1] half way, were all at risk until then."""
        half = self.maps[0][self.intervals // 2]
        return 2 * Z * std * float(np.linalg.norm(half)) * len(self._each)

    def answer(self, total: np.ndarray, std: float, spread: int = 1) -> dict[str, Any]:
        """What `fedpriv.data.asked.Answer` says of it: survival at each time; the log-rank test in the remarks. total:
        noisy sum [size] of vectors; std: of the noise on each number; spread: how many rows may be one person's.
        """
        curves = [Curve.of(self, part, std, spread) for part in total.reshape(len(self._each), -1)]
        remarks = [remark for name, curve in zip(self._each, curves, strict=True) for remark in curve.remarks(name)]
        if len(curves) > 1:
            statistic, p = log_rank(curves)
            told = "< 0.0001" if p < 1e-4 else f"= {p:.2g}"
            remarks.append(f"log-rank test: chi-squared {statistic:.3g} of {len(curves) - 1}, p {told}")
        found = {name: np.concatenate([getattr(one, name) for one in curves]) for name in ("values", "low", "high")}
        return found | {"remarks": tuple(remarks)}


@dataclass(frozen=True)
class Curve:
    """Of one group. events: d [K]; risk: Y' [K]; *_noise: how the noise moves them, [K, size]; rows: Y_0, its noise."""

    table: LifeTable
    events: np.ndarray
    risk: np.ndarray
    events_noise: np.ndarray
    risk_noise: np.ndarray
    rows: tuple[float, float]
    spread: int

    @classmethod
    def of(cls, table: LifeTable, total: np.ndarray, std: float, spread: int = 1) -> Curve:
        to_events, to_risk = table.maps
        rising = scipy.optimize.isotonic_regression(np.nan_to_num(to_events @ total)).x.clip(0)
        falling = scipy.optimize.isotonic_regression(np.nan_to_num(to_risk @ total), increasing=False).x.clip(0)
        d = np.diff(rising, prepend=0.0)
        at_first, later = table.censored, 1 - table.censored
        risk = np.maximum(at_first * falling[:-1] + later * (falling[1:] + d), d)
        d_noise = std * np.diff(to_events, axis=0, prepend=0.0)
        risk_noise = std * (at_first * to_risk[:-1] + later * to_risk[1:]) + later * d_noise
        rows = float(to_risk[0] @ total), float(std * np.linalg.norm(to_risk[0]))
        return cls(table, d, risk, d_noise, risk_noise, rows, spread)

    @cached_property
    def clear(self) -> np.ndarray:
        """Whether so many are at risk that the noise is small beside them, up to each time."""
        least = np.maximum(CLEAR * np.linalg.norm(self.risk_noise, axis=1), 1.0)
        return np.asarray(np.logical_and.accumulate(self.risk >= least))

    @cached_property
    def values(self) -> np.ndarray:
        """S [K]."""
        return np.cumprod(1 - np.divide(self.events, self.risk, out=np.zeros_like(self.risk), where=self.risk > 0))

    @cached_property
    def _band(self) -> np.ndarray:
        risk = np.maximum(self.risk, 1.0)[:, None]
        moved = np.cumsum(self.events_noise / risk - self.events[:, None] * self.risk_noise / risk**2, axis=0)
        noise = np.sum(moved**2, axis=1)
        hazard = -np.log(np.maximum(self.values, 1e-12))
        greenwood = np.cumsum(self.events / risk[:, 0] ** 2)
        unit = self.spread * np.divide(greenwood, hazard, out=1 / risk[:, 0], where=greenwood > 0)  # 1/M
        middle = hazard + Z**2 * unit / 2
        width = np.sqrt(Z**2 * (noise + hazard * unit) + (Z**2 * unit / 2) ** 2)
        low, high = np.exp(-(middle + width)), np.exp(-np.maximum(middle - width, 0.0))
        return np.stack([np.where(self.clear, low, 0.0), np.minimum.accumulate(np.where(self.clear, high, 1.0))])

    @property
    def low(self) -> np.ndarray:
        return self._band[0]

    @property
    def high(self) -> np.ndarray:
        return self._band[1]

    def remarks(self, name: str) -> list[str]:
        """In words: how many rows, the median, from when on nothing can be said."""
        of, times, (rows, error) = f"{name}: " if name else "", np.append(0.0, self.table.times), self.rows
        said = [f"{of}about {max(rows, 0):,.0f} rows (+-{Z * error:,.0f})"]
        low, middle, high = (np.append(1.0, one) <= 0.5 for one in (self.low, self.values, self.high))
        if middle.any() and self.clear[max(int(middle.argmax()) - 1, 0)]:
            until = f"to {times[high.argmax()]:.6g}" if high.any() else "and beyond"
            said.append(f"{of}median {times[middle.argmax()]:.6g} ({times[low.argmax()]:.6g} {until})")
        if not self.clear.all():
            after = f"after {at:.6g} " if (at := times[int(self.clear.argmin())]) else ""
            said.append(f"{of}{after}too few are at risk for this noise: nothing can be said")
        return said


def log_rank(curves: list[Curve]) -> tuple[float, float]:
    """(chi-squared of len(curves) - 1 degrees, p): whether the groups' hazards are equal. Up to the time at which those
    at risk in all groups together are too few.
    """
    d, risk = (np.stack([getattr(one, name) for one in curves]) for name in ("events", "risk"))
    clear = np.cumprod(risk.sum(axis=0) >= 1.0).astype(bool) & np.any([one.clear for one in curves], axis=0)
    if not clear.any():
        return 0.0, 1.0
    d, risk = d[:, clear], risk[:, clear]
    all_events, at_risk = d.sum(axis=0), risk.sum(axis=0)
    share = risk / at_risk
    score = (d - share * all_events).sum(axis=1)
    variance = max(one.spread for one in curves) * (np.diag(share @ all_events) - (share * all_events) @ share.T)
    ratio = all_events / at_risk
    for number, one in enumerate(curves):
        d_noise, risk_noise = one.events_noise[clear], one.risk_noise[clear]
        own = np.arange(len(curves))[:, None] == number
        # The noise of this group's numbers moves every group's score.
        moved = (own - share) @ d_noise - ((own - share) * ratio) @ risk_noise
        variance = variance + moved @ moved.T
    kept = slice(0, len(curves) - 1)
    statistic = float(score[kept] @ np.linalg.pinv(variance[kept, kept]) @ score[kept])
    return statistic, float(scipy.stats.chi2.sf(statistic, len(curves) - 1))
