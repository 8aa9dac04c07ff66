"""Quantiles of a column from noisy counts below the edges of bins, with intervals that hold them.

J. Fichtenberger, M. Henzinger, J. Upadhyay: Constant matters. ICML 2023 (the square root of the matrix of ones).

Symbols: B -> size, e_0 < ... < e_b with b <= B -> edges, q -> shares, F -> `root`, f -> its first column, n: rows,
C_j: rows below e_j, D_j = C_j - q n, s_j: standard deviation of its noise.

**What a row adds.** F is the lower triangular matrix with F F = the matrix of ones on and below the diagonal: f_0 = 1,
f_k = f_(k-1) (2k - 1)/(2k), and column i is f moved down by i. A row in bin i adds column i of F, divided by |f|. Its
length is at most 1: column i consists of the first B - i numbers of f. |f| F times the sum gives C_1, ..., C_B.

**Zooming is composition.** Edges of a round are a function of the schema and of earlier rounds' noisy sums, which are
public. A row's vector is no longer than 1 whatever the edges are, and the noise of each round is fixed before the run.
So the rounds are the adaptive composition of mechanisms with fixed noise, which the ledger adds up as it adds up rounds
of training; nothing has to be known of how edges were chosen.

**The interval.** Let the quantile lie in bin m of the last round: C_m < q n + 1 and C_(m+1) > q n - 1, whichever of the
common definitions is meant (the rank is between q n and q n + 1 - q). A bin is given up where D_m - z s_m > 1 or
D_(m+1) + z s_(m+1) < -1. This befalls bin m with probability 2 P(N > z) at most, as nothing but its own two edges
decides it: no number of bins makes it likelier. Bins beyond an edge j with |D_j| > 1 + k s_j are given up as well; this
errs at any edge with probability P(N > k) b at most. z and k are such that both together are 5 %. The noise of the last
round is independent of its edges, so this holds for any edges: earlier rounds may have misled, which makes the interval
wide and not wrong. The interval runs from the first bin's lower edge to the last bin's upper edge.

**Rounding.** Columns are stored as float32 in [-1, 1], which moves a number by at most 2^-26 of the range: `blur` is
twice that, and widens the interval. With a step, edges lie half way between its multiples; a number that is moved by
less than half a step stays in its bin, and the interval runs between multiples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np

#: Bins of a round: as many numbers stand in a sum for a column's quantiles.
BINS = 512
#: Probability with which an interval may miss: by the two edges of a bin, and by all edges together.
OWN, ALL_EDGES = 0.0475, 0.0025
#: Bins for as many rows as one standard deviation of the noise below an edge: more only give noise more to do.
A_DEVIATION = 2
#: Part of the rows in one bin above which the answer says so.
MUCH = 0.05


@lru_cache(maxsize=1)
def _largest() -> np.ndarray:
    k = np.arange(1, BINS)
    column = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
    place = np.arange(BINS + 1)[:, None] - 1 - np.arange(BINS)
    return np.where(place >= 0, column[place], 0.0)


def root(size: int) -> tuple[np.ndarray, float]:
    """(F [size + 1, size] with a row of zeros before the first, |f|); up to `BINS`."""
    matrix = _largest()[: size + 1, :size]
    return matrix, float(np.linalg.norm(matrix[-1]))


@dataclass(frozen=True)
class Bins:
    """Bins of a column's range, and which of its quantiles are asked for.

    low, high: of the range; step: of the column's values, 0: none; shares: q [k]; edges: [b + 1], ascending.
    """

    low: float
    high: float
    step: float
    shares: tuple[float, ...]
    size: int
    edges: np.ndarray

    @classmethod
    def of_range(cls, low: float, high: float, step: float | None, shares: tuple[float, ...]) -> Bins:
        """Of the first round: one for each multiple of the step where these are at most `BINS`, else equal ones."""
        values = round((high - low) / step) + 1 if step else BINS + 1
        size, half = min(values, BINS), (step or 0) / 2
        first = cls(low, high, step or 0.0, shares, size, np.linspace(low - half, high + half, size + 1))
        return replace(first, edges=first._snapped(first.edges))

    @property
    def final(self) -> bool:
        """Whether each value has a bin of its own, so that every round asks the same."""
        return bool(self.step) and self.size == round((self.high - self.low) / self.step) + 1

    @property
    def blur(self) -> float:
        return (self.high - self.low) * 2.0**-25

    def vectors(self, scaled: np.ndarray) -> np.ndarray:
        """float64 [n, size] of numbers [n] in [-1, 1]; NaN, a missing one, adds nothing."""
        missing = np.isnan(scaled)
        matrix, length = root(len(self.edges) - 1)
        vectors = np.zeros((len(scaled), self.size))
        columns = matrix[1:].T[self.places(np.where(missing, 0, scaled))]
        vectors[:, : len(matrix) - 1] = np.where(missing[:, None], 0.0, columns / length)
        return vectors

    def places(self, scaled: np.ndarray) -> np.ndarray:
        """int64 [n]: the bins of numbers [n] in [-1, 1]."""
        numbers = self.low + (scaled + 1) / 2 * (self.high - self.low)
        return np.searchsorted(self.edges[1:-1], numbers, side="right")

    def answer(self, total: np.ndarray, std: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
        """(values, low, high [k], remarks). total: noisy sum [size] in rows; std: of the noise on each number."""
        curve, widths = self._curve(total), np.diff(self.edges)
        number = curve[-1]
        z, found, told = -NormalDist().inv_cdf(OWN / 2), [], []
        for share in self.shares:
            rank, (excess, noise) = share * number, self._excess(total, std, share)
            place = int(np.clip((curve[1:] < rank).sum(), 0, len(widths) - 1))
            fits = (excess[:-1] - z * noise[:-1] <= 1) & (excess[1:] + z * noise[1:] >= -1)
            first, last = self._window(excess, noise)
            fits[:first], fits[last:] = False, False
            held = np.flatnonzero(fits) if fits.any() else np.array([place])
            rows = curve[place + 1] - curve[place]
            value = self.edges[place] + widths[place] * (np.clip((rank - curve[place]) / rows, 0, 1) if rows else 0.5)
            low, high = self._ends(self.edges[held[0]], self.edges[held[-1] + 1])
            found.append((float(np.clip(self._multiple(value), low, high)), low, high))
            left, right, much = self.edges[place], self.edges[place + 1], rows / number
            told.append(f"quantile {share:g}: values are told apart to {max(widths[place], self.blur):.3g}")
            if much > MUCH and widths[place] > 1.5 * self.step:
                told[-1] += f", and about {much:.0%} of the rows lie in the one bin from {left:.6g} to {right:.6g}"
        values, lows, highs = np.array(found).T
        return values, lows, highs, tuple(told)

    def zoomed(self, total: np.ndarray, std: float) -> Bins:
        """Of the next round: with about as many rows in each, where the quantiles may lie by this one's noisy sum."""
        if self.final:
            return self
        total = np.nan_to_num(total, nan=0.0, posinf=0.0, neginf=0.0)
        curve, most = self._curve(total), (self.size - 2) // len(self.shares) - 2
        parts = [self.edges[[0, -1]]]
        for number, share in enumerate(self.shares):
            excess, noise = self._excess(total, std, share)
            first, last = self._window(excess, noise)
            rows, deviation = curve[last] - curve[first], noise[first : last + 1].mean()
            bins = int(np.clip(A_DEVIATION * rows / deviation, 2, most)) if deviation else most
            places = (np.arange(bins) + (number + 0.5) / len(self.shares)) / bins  # not those of another quantile
            inner = np.interp(curve[first] + rows * places, curve[first : last + 1], self.edges[first : last + 1])
            parts += [self.edges[[first, last]], inner]
        return replace(self, edges=self._snapped(np.concatenate(parts)))

    def _curve(self, total: np.ndarray) -> np.ndarray:
        """C [b + 1] as a rising curve from 0 to n, at least 1: the middle of its running maximum from the left and its
        running minimum from the right.
        """
        below, _ = self._excess(total, 0.0, 0.0)
        rising = np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]
        curve = np.clip(rising / 2, 0, max(1.0, below[-1]))
        curve[0], curve[-1] = 0, max(1.0, below[-1])
        return np.asarray(curve)

    def _excess(self, total: np.ndarray, std: float, share: float) -> tuple[np.ndarray, np.ndarray]:
        """(D, s), each [b + 1]; of the share 0 it is C."""
        matrix, length = root(len(self.edges) - 1)
        below = length * (matrix @ total[: len(matrix) - 1])
        squares = np.concatenate([[0.0], np.cumsum(matrix[-1][::-1] ** 2)])  # of the lengths of rows
        variances = squares - 2 * share * (matrix @ matrix[-1]) + share**2 * squares[-1]
        return below - share * below[-1], length * std * np.sqrt(np.maximum(variances, 0.0))

    def _window(self, excess: np.ndarray, noise: np.ndarray) -> tuple[int, int]:
        """Edges (j, j') between which the quantile lies unless the noise exceeds k standard deviations somewhere."""
        far = 1 - NormalDist().inv_cdf(ALL_EDGES / len(excess)) * noise
        first = int(np.flatnonzero(excess < -far).max(initial=0))
        last = int(np.flatnonzero(excess > far).min(initial=len(excess) - 1))
        return (first, last) if first < last else (0, len(excess) - 1)

    def _snapped(self, edges: np.ndarray) -> np.ndarray:
        """Ascending, half way between multiples of the step."""
        return np.unique((np.floor(edges / self.step) + 0.5) * self.step if self.step else edges)

    def _multiple(self, value: float) -> float:
        return float(f"{round(value / self.step) * self.step:.12g}") + 0.0 if self.step else float(value)

    def _ends(self, left: float, right: float) -> tuple[float, float]:
        """Of the interval: of values between two edges, before they were rounded."""
        left, right = max(self.low, left - self.blur), min(self.high, right + self.blur)
        if self.step:
            inside = (np.ceil(left / self.step - 1e-9), np.floor(right / self.step + 1e-9))
            left, right = (float(f"{number * self.step:.12g}") + 0.0 for number in inside)  # no -0
        return left, right
