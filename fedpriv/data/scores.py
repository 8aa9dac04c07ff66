"""How well a model does, from one noisy sum of classes by score: accuracy, AUC, calibration, errors of a regression.

Each figure has an interval that holds sampling and noise. Edges of bins are public and fixed before the run.

**Classes.** Of two classes a row has an outcome (whether it is the positive class) and a score s in [0, 1], the model's
probability of it; of more classes the outcome is whether the likeliest class is right, s its probability. Bins have
equal parts of the beta distribution of 1/3 and 1/3, so are finer near 0 and 1, and one edge is the threshold. Let n_yb
count the rows of outcome y in bin b. F is the lower triangular Toeplitz matrix with F F = ones on and below the
diagonal and first column f (`fedpriv.data.survival`). A row of outcome 0 in bin b of B adds column b of F, one of
outcome 1 column B - 1 - b of another F, each divided by |f|. A row adds to one of the two, and a column is a part of f
moved down: its length is at most 1. |f| F times the noisy numbers are counts below each edge (outcome 1: above), from
which all figures are read: their noise grows with the logarithm of B. Of more than two classes a 1 for (class,
likeliest class) stands beside it, and both are divided by sqrt(2).

**A hostile model.** These lengths hold for any numbers that stand where scores should: what is not finite counts as 0,
others are clipped. A row's score must not depend on other rows: `fedpriv.training.trained_model.scorer`.

**Shares** (accuracy, sensitivity, a calibration curve's points): X of N rows, both noisy. At the true share a, X - a N
has variance a(1 - a) N from sampling and, exactly, that of the noise on X - a N, which is quadratic in a. The interval
holds the a that this does not refute at 5 % (Fieller's method; without noise it is Wilson's interval).

**AUC** is U/(N_0 N_1) with U = sum of K_ji n_1j n_0i. K is 1 for i < j and 1/2 for i = j, as ties are counted, and what
ties hide is put back: a density that is 1 + g u over a bin, u in [-1/2, 1/2], has g = (n_(b+1) - n_(b-1))/(2 n_b), at
the first and last bin from two bins, and P(u_1 > u_0) = 1/2 + (g_1 - g_0)/12. This supposes scores that are spread over
their bins: of few different ones (0.2 and 0.25 in one bin) no interval holds the AUC, and what bins would is not known
from a sum. In U this is 1/12 of neighbouring bins' n_0i n_1(i+1) - n_1i n_0(i+1), at both ends 1/8. The variance of
sampling is DeLong's (E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson, Biometrics 1988), that of noise is to first
order. The interval holds the a with (AUC - a)^2 <= z^2 (noise + a(1 - a) sampling/(AUC(1 - AUC))), where the last ratio
is kept between 1/12 and 1/3 of 1/N_0 + 1/N_1 (1/3: of a model of no use), so that it does not vanish at an AUC of 1.

**Brier score**: the mean of (m_b - y)^2 with m_b the bin's middle, delta method. **Slope**: beta in logit P(y = 1) =
alpha + beta logit m_b; at the true values the score vector has a known variance, and the interval holds the beta that
no alpha saves from being refuted (as in `fedpriv.data.regressions`).

**Numbers.** Of target y and prediction p (in [-1, 1] by the target's range, clipped) u = (y - p)/c is clipped to [-1,
1]. A row adds (1, u, 2u^2 - 1, 8u^4 - 8u^2 + 1; y, 2y^2 - 1; 1 and y in p's bin). As |T_k(u)| <= 1, and y^2 + (2y^2 -
1)^2 <= 2, squares add up to at most 8: divided by sqrt(8). The variance of errors is that of their fourth moment.

With a cap L on rows of a person, whose rows may be alike, variances of sampling count L times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedpriv.data.regressions import CRITICAL
from fedpriv.data.survival import CLEAR, Z, factor

#: Bins of a score where none are asked for, and at most; points of a curve at most; bins of a prediction.
BINS, MOST_BINS, POINTS, PREDICTION_BINS = 24, 500, 10, 8
#: Of the beta distribution in which bins are equal: between arcsin sqrt (1/2) and logit (0).
SHAPE = 1 / 3
#: Scores nearer to 0 or 1 count as this in the slope.
NEAREST = 0.0005
#: Half-width of the accuracy from which on nothing is said: the interval then spans half of all values.
USELESS = 0.25
#: A slope is told no further from 0.
MOST_SLOPE = 10.0
#: Share of pairs within one bin from which on an answer says so.
ALIKE = 0.1


@dataclass(frozen=True)
class Figure:
    """One answer: its name, value and the ends of its 95 % interval."""

    name: str
    value: float
    low: float
    high: float

    @property
    def numbers(self) -> tuple[float, float, float]:
        return self.value, self.low, self.high

    def within(self, low: float, high: float) -> Figure:
        return Figure(self.name, *(float(np.clip(one, low, high)) for one in self.numbers))

    def scaled(self, name: str, factor: float) -> Figure:
        return Figure(name, *(factor * one for one in self.numbers))


def answer_of(figures: Sequence[Figure], remarks: Sequence[str]) -> dict[str, Any]:
    """As `fedpriv.data.asked.Answer` has it."""
    values, low, high = np.array([one.numbers for one in figures]).T
    names = tuple(one.name for one in figures)
    return {"names": names, "values": values, "low": low, "high": high, "remarks": tuple(remarks)}


@dataclass(frozen=True)
class Counts:
    """Noisy counts [k] of rows. noise: how the noise moves them, [k, m] times independent draws of variance 1. spread:
    how many rows may be one person's.
    """

    numbers: np.ndarray
    noise: np.ndarray
    spread: int = 1

    def total(self, of: np.ndarray) -> tuple[float, float]:
        """(of @ numbers, standard deviation of its noise)."""
        return float(of @ self.numbers), float(np.linalg.norm(of @ self.noise))

    def clear(self, of: np.ndarray) -> bool:
        """Whether so many rows are there that the noise is small beside them."""
        number, std = self.total(of)
        return number >= max(CLEAR * std, 1.0)

    def share(self, name: str, part: np.ndarray, of: np.ndarray) -> Figure:
        """X/N of X = part @ numbers among N = of @ numbers, 0 <= part <= of (Fieller)."""
        (x, _), (n, _) = self.total(part), self.total(of)
        moved = part @ self.noise, of @ self.noise
        rows = Z**2 * self.spread * max(n, 0.0)
        square = n**2 - Z**2 * (moved[1] @ moved[1]) + rows  # times a^2
        linear = -2 * (x * n - Z**2 * (moved[0] @ moved[1])) - rows
        constant = x**2 - Z**2 * (moved[0] @ moved[0])
        inner = linear**2 - 4 * square * constant
        value = float(np.clip(x / n, 0, 1)) if n > 0 else 0.5
        if not self.clear(of) or square <= 0:
            return Figure(name, value, 0.0, 1.0)
        root = math.sqrt(max(inner, 0.0))
        low, high = (float(np.clip((-linear + side * root) / (2 * square), 0, 1)) for side in (-1, 1))
        return Figure(name, value, min(low, value), max(high, value))

    def mean(self, name: str, of: np.ndarray, among: np.ndarray, variance: float | None = None) -> Figure:
        """of @ numbers / (among @ numbers) by the delta method. variance: of one row; None: a row's number is `of`."""
        n = max(self.total(among)[0], 1.0)
        value = self.total(of)[0] / n
        one = float(np.maximum(self.numbers, 0.0) @ (of - value * among) ** 2) / n if variance is None else variance
        error = Z * math.hypot(math.sqrt(self.spread * one / n), self.total((of - value * among) / n)[1])
        return Figure(name, value, value - error, value + error)


@dataclass(frozen=True)
class Scores:
    """Of a model of classes. positive: place of the class that two classes' scores are of. threshold: from which score
    on that class is predicted.
    """

    classes: tuple[str, ...]
    positive: int = 1
    threshold: float = 0.5
    bins: int = BINS

    @property
    def binary(self) -> bool:
        return len(self.classes) == 2

    @property
    def size(self) -> int:
        return 2 * self.bins + (0 if self.binary else len(self.classes) ** 2)

    @cached_property
    def edges(self) -> np.ndarray:
        """[B + 1], of two classes with the threshold in place of the nearest."""
        edges = scipy.special.betaincinv(SHAPE, SHAPE, np.linspace(0, 1, self.bins + 1))
        if self.binary:
            edges[1 + np.abs(edges[1:-1] - self.threshold).argmin()] = self.threshold
        return edges

    @cached_property
    def middles(self) -> np.ndarray:
        """m [B]."""
        places = scipy.special.betainc(SHAPE, SHAPE, self.edges)
        return np.asarray(scipy.special.betaincinv(SHAPE, SHAPE, (places[1:] + places[:-1]) / 2))

    @property
    def length(self) -> float:
        return 1.0 if self.binary else math.sqrt(2)

    def vectors(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """float64 [n, size], each of length at most 1, of any scores [n, classes] and classes [n] (-1: missing)."""
        k, (matrix, length) = len(self.classes), factor(self.bins)
        known = (targets >= 0) & (targets < k)
        scores = np.clip(np.nan_to_num(scores, nan=0.0, posinf=0.0, neginf=0.0), 0.0, 1.0)
        likeliest = np.full(len(scores), self.positive) if self.binary else scores.argmax(axis=1)
        yes, score = targets == likeliest, scores[np.arange(len(scores)), likeliest]
        place = np.searchsorted(self.edges[1:-1], score, side="right")
        vectors = np.zeros((len(scores), self.size))
        for rows, part, column in ((known & ~yes, 0, place), (known & yes, self.bins, self.bins - 1 - place)):
            vectors[rows, part : part + self.bins] = matrix.T[column[rows]] / length
        if not self.binary:
            rows = np.flatnonzero(known)
            vectors[rows, 2 * self.bins + targets[rows] * k + likeliest[rows]] = 1.0
        return vectors / self.length

    @cached_property
    def map(self) -> np.ndarray:
        """From a sum to the counts n_0b, n_1b and, of more than two classes, of (class, likeliest): [size, size]."""
        matrix, length = factor(self.bins)
        counts = np.diff(length * matrix, axis=0, prepend=0.0)
        whole = np.eye(self.size)
        whole[: self.bins, : self.bins] = counts
        whole[self.bins : 2 * self.bins, self.bins : 2 * self.bins] = counts[::-1]
        return whole * self.length

    def answer(self, total: np.ndarray, std: float, spread: int = 1) -> dict[str, Any]:
        """What `fedpriv.data.asked.Answer` says of a noisy sum [size]; std: of the noise on each number."""
        return self.read(Counts(np.nan_to_num(self.map @ total), self.map * std, spread))

    def read(self, counts: Counts) -> dict[str, Any]:
        """The same of counts n_0b, n_1b (and of classes by predictions) from anywhere."""
        no, yes, every = self.cells(1, 0), self.cells(0, 1), self.cells(1, 1)
        rows, error = counts.total(every)
        figures = [Figure("rows", rows, rows - Z * error, rows + Z * error)]
        remarks = self._too_few(counts)
        names = self.classes
        if self.binary:
            names = self.classes[1 - self.positive], self.classes[self.positive]
            base = counts.share(f"share of {names[1]}", yes, every)
            predicted = self.cells(1 - self._above, 1 - self._above), self.cells(self._above, self._above)
            figures += [
                base,
                counts.share("accuracy", self.right, every),
                counts.share("sensitivity", yes * predicted[1], yes),
                counts.share("specificity", no * predicted[0], no),
                counts.share("precision", yes * predicted[1], predicted[1]),
                self.auc(counts),
                self.brier(counts),
                _of_the_share_alone(base),
            ]
            parts = [of * side for of in (no, yes) for side in predicted]
        else:
            figures += [counts.share("accuracy", yes, every), self.auc(counts), self.brier(counts)]
            parts = list(np.eye(self.size)[2 * self.bins :])
        if (slope := self.slope(counts)) is None:
            remarks.append("calibration slope: not told of so many rows at this noise")
        else:
            figures.append(slope)
        pairs = itertools.product(names, names)
        cells = [f"{name} predicted {other}" for name, other in pairs]
        figures += [counts.share(cell, part, sum(parts)) for cell, part in zip(cells, parts, strict=True)]
        figures += self._curves(counts)
        return answer_of(figures, remarks)

    # --- parts of a table of outcomes by bins ----------------------------------------------------------------

    def cells(self, no: ArrayLike, yes: ArrayLike) -> np.ndarray:
        """Weights [size] of n_0b and n_1b."""
        weights = np.zeros(self.size)
        weights[: self.bins], weights[self.bins : 2 * self.bins] = no, yes
        return weights

    def _halves(self, counts: Counts) -> tuple[np.ndarray, np.ndarray]:
        return counts.numbers[: self.bins], counts.numbers[self.bins : 2 * self.bins]

    @cached_property
    def _above(self) -> np.ndarray:
        """0 or 1 [B]: of the bins from the threshold on."""
        return (self.edges[:-1] >= self.threshold).astype(float)

    @property
    def right(self) -> np.ndarray:
        return self.cells(1 - self._above, self._above) if self.binary else self.cells(0, 1)

    # --- figures ---------------------------------------------------------------------------------------------

    def auc(self, counts: Counts) -> Figure:
        """Of more than two classes it tells right from wrong."""
        n0, n1 = self._halves(counts)
        if not self._clear(counts):
            return Figure("AUC", 0.5, 0.0, 1.0)
        below, above = self._before @ n0 / n0.sum(), n1 @ self._before / n1.sum()
        value = float(np.clip(n1 @ below / n1.sum(), 1e-6, 1 - 1e-6))
        slopes = self.cells((above - value) / n0.sum(), (below - value) / n1.sum())
        sampling = sum(np.maximum(n, 0) @ (v - value) ** 2 / n.sum() ** 2 for n, v in ((n1, below), (n0, above)))
        pairs = 1 / n0.sum() + 1 / n1.sum()
        one = Z**2 * counts.spread * float(np.clip(sampling / (value * (1 - value)), pairs / 12, pairs / 3))
        noise = Z**2 * counts.total(slopes)[1] ** 2
        middle, square = value + one / 2, 1 + one
        width = math.sqrt(max(middle**2 - square * (value**2 - noise), 0.0))
        return Figure("AUC", value, (middle - width) / square, (middle + width) / square).within(0, 1)

    @cached_property
    def _before(self) -> np.ndarray:
        """[j, i]: by how much a row of outcome 1 in bin j is above one of outcome 0 in bin i (`auc`)."""
        near = np.full(self.bins - 1, 1 / 12)
        near[[0, -1]] = 1 / 8
        return (
            np.tril(np.ones((self.bins, self.bins)), -1) + np.eye(self.bins) / 2 + np.diag(near, -1) - np.diag(near, 1)
        )

    def brier(self, counts: Counts) -> Figure:
        """Mean of (m_b - y)^2."""
        return counts.mean(
            "Brier score", self.cells(self.middles**2, (1 - self.middles) ** 2), self.cells(1, 1)
        ).within(0, 1)

    def slope(self, counts: Counts) -> Figure | None:
        """beta, its ends at most `MOST_SLOPE`; None where both are, or no beta fits."""
        x, z = self._logits, np.stack([np.ones(self.bins), self._logits])
        rows = np.maximum(sum(self._halves(counts)), 0.0)

        def statistic(alpha: float, beta: float) -> float:
            p = scipy.special.expit(alpha + beta * x)
            score = np.stack([self.cells(-p * one, (1 - p) * one) for one in z])
            noise, moved = score @ counts.noise, score @ counts.numbers
            variance = noise @ noise.T + counts.spread * (z * (rows * p * (1 - p))) @ z.T + 1e-9 * np.eye(2)
            return float(moved @ np.linalg.solve(variance, moved))

        def excess(beta: float) -> float:
            return float(scipy.optimize.minimize_scalar(lambda alpha: statistic(alpha, beta)).fun) - CRITICAL

        best = float(scipy.optimize.minimize(lambda t: statistic(*t), (0.0, 1.0), method="Nelder-Mead").x[1])
        ends = []
        if excess(best) > 0:
            return None
        for side in (-0.1, 0.1):
            inner, outer = 0.0, side
            while excess(best + outer) <= 0 and abs(best + outer) < MOST_SLOPE:
                inner, outer = outer, 2 * outer
            end = math.copysign(MOST_SLOPE, side)
            if abs(best + outer) < MOST_SLOPE:
                end = float(scipy.optimize.brentq(excess, best + inner, best + outer))
            ends.append(end)
        return None if ends == [-MOST_SLOPE, MOST_SLOPE] else Figure("calibration slope", best, *ends)

    @property
    def _logits(self) -> np.ndarray:
        return np.asarray(scipy.special.logit(self.middles.clip(NEAREST, 1 - NEAREST)))

    def _curves(self, counts: Counts) -> list[Figure]:
        """Of each group of bins the share of outcome 1; of two classes sensitivity and specificity at its edge."""
        n0, n1 = self._halves(counts)
        no, yes, figures, later = self.cells(1, 0), self.cells(0, 1), [], []
        for first, last in self._groups(counts):
            inside = (np.arange(self.bins) >= first) & (np.arange(self.bins) < last)
            of, rows = self.cells(inside, inside), np.where(inside, np.maximum(n0 + n1, 0.0), 0.0)
            mean = float(rows @ self.middles / rows.sum()) if rows.any() else float(self.middles[first])
            ends = f"{self.edges[first]:.3g} to {self.edges[last]:.3g}"
            figures.append(counts.share(f"observed at {ends}, mean score {mean:.3g}", of * yes, of))
            if self.binary and first:
                from_here, edge = np.arange(self.bins) >= first, f"{self.edges[first]:.3g}"
                later.append(counts.share(f"sensitivity at {edge}", self.cells(0, from_here), yes))
                later.append(counts.share(f"specificity at {edge}", self.cells(~from_here, 0), no))
        return figures + later

    def _groups(self, counts: Counts) -> list[tuple[int, int]]:
        """(first bin, the one after the last): side by side, with a tenth of the rows, and enough for the noise."""
        borders, number = [0], np.arange(self.bins)
        least = counts.total(self.cells(1, 1))[0] / POINTS
        for last in range(1, self.bins):
            here, rest = (number >= borders[-1]) & (number < last), number >= last
            if all(
                counts.total(of)[0] >= least and counts.clear(of)
                for of in (self.cells(here, here), self.cells(rest, rest))
            ):
                borders.append(last)
        return list(itertools.pairwise([*borders, self.bins]))

    def _clear(self, counts: Counts) -> bool:
        return counts.clear(self.cells(1, 0)) and counts.clear(self.cells(0, 1))

    def _too_few(self, counts: Counts) -> list[str]:
        if not self._clear(counts):
            what = "rows of each class" if self.binary else "rows that are right, and wrong"
            return [f"too few {what} for this noise: of the AUC and of shares from 0 to 1 nothing can be said"]
        n0, n1 = self._halves(counts)
        alike = float(np.maximum(n0, 0) @ np.maximum(n1, 0) / (n0.sum() * n1.sum()))
        words = (
            "of the pairs that the AUC compares lie in one bin, and count as if scores were spread over it: of a model "
            "that says few different ones no interval holds the AUC or Brier score; more bins tell them apart"
        )
        return [f"{alike:.0%} {words}"] if alike > ALIKE else []

    # --- before anything is spent ------------------------------------------------------------------------------

    def needs(self, std: float) -> float:
        """Rows below which the noise alone makes the accuracy's half-width `USELESS`, half of them right."""
        return Z * std * float(np.linalg.norm((self.right - self.cells(0.5, 0.5)) @ self.map)) / USELESS

    def expects(self, std: float, rows: float) -> str:
        """Half-widths to be expected of so many rows, of a model with AUC 0.8."""
        place = np.searchsorted(self.edges[1:-1], scipy.special.expit(x := np.linspace(-4, 4, 801)), side="right")
        density = scipy.stats.norm.pdf(x, [[-0.6], [0.6]])
        no, yes = (np.bincount(place, one / one.sum(), self.bins) for one in density)
        told = []
        for share in (0.5, 0.1):
            counts = Counts(rows * self.cells((1 - share) * no, share * yes), self.map * std)
            accuracy, auc = counts.share("", self.right, self.cells(1, 1)), self.auc(counts)
            told.append(
                f"accuracy {50 * (accuracy.high - accuracy.low):.1f} points, AUC {(auc.high - auc.low) / 2:.3f}"
            )
        what = "positive" if self.binary else "right"
        return f"half-widths to expect of {rows:,.0f} rows, half of them {what}: {told[0]}; a tenth of them: {told[1]}"


def _of_the_share_alone(base: Figure) -> Figure:
    """Brier score of a model that says the share of the positive class to everybody."""
    value, *ends = (share * (1 - share) for share in (base.value, base.low, base.high))
    return Figure(
        "Brier score of the share alone", value, min(ends), 0.25 if base.low <= 0.5 <= base.high else max(ends)
    )


# --- numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Residuals:
    """Of a model of numbers. low, high: the target's range; bound: c, in its units."""

    low: float
    high: float
    bound: float

    #: Numbers of a row before its bin's.
    MOMENTS = 6

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def size(self) -> int:
        return self.MOMENTS + 2 * PREDICTION_BINS

    @property
    def length(self) -> float:
        return math.sqrt(8)

    @property
    def edges(self) -> np.ndarray:
        return np.linspace(self.low, self.high, PREDICTION_BINS + 1)

    def vectors(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """float64 [n, size], each of length at most 1, of any predictions [n, 1] and targets [n], both in [-1, 1] by
        the target's range.
        """
        known = np.isfinite(targets)
        y = np.clip(np.where(known, targets, 0.0), -1.0, 1.0)
        p = np.clip(np.nan_to_num(scores[:, 0], nan=-1.0, posinf=1.0, neginf=-1.0), -1.0, 1.0)
        u = np.clip((y - p) * self.half / self.bound, -1.0, 1.0)
        place = np.clip(((p + 1) / 2 * PREDICTION_BINS).astype(np.int64), 0, PREDICTION_BINS - 1)
        vectors = np.zeros((len(y), self.size))
        moments = (np.ones(len(y)), u, 2 * u**2 - 1, 8 * u**4 - 8 * u**2 + 1, y, 2 * y**2 - 1)
        vectors[:, : self.MOMENTS] = np.stack(moments, axis=1)
        vectors[np.arange(len(y)), self.MOMENTS + place] = 1.0
        vectors[np.arange(len(y)), self.MOMENTS + PREDICTION_BINS + place] = y
        return vectors * known[:, None] / self.length

    def answer(self, total: np.ndarray, std: float, spread: int = 1) -> dict[str, Any]:
        """As of `Scores`."""
        counts = Counts(np.nan_to_num(total) * self.length, np.eye(self.size) * (std * self.length), spread)
        one, u, second, fourth, y, square = np.eye(self.size)[: self.MOMENTS]
        rows, error = counts.total(one)
        figures, remarks = [Figure("rows", rows, rows - Z * error, rows + Z * error)], []
        if not counts.clear(one):
            return answer_of(figures, ["too few rows for this noise: nothing can be said"])
        mse = (second + one) / 2  # u^2 = (T_2 + 1)/2, u^4 = (T_4 + 4 T_2 + 3)/8
        squared = float(np.clip(counts.total(mse)[0] / rows, 0, 1))
        quartic = float(np.clip(counts.total(fourth + 4 * second + 3 * one)[0] / (8 * rows), squared**2, 1))
        bias = counts.mean("", u, one, max(squared - (counts.total(u)[0] / rows) ** 2, 0.0))
        found = counts.mean("", mse, one, quartic - squared**2).within(0, 1)
        figures.append(bias.scaled("bias (target less prediction)", self.bound))
        ends = (self.bound * math.sqrt(part) for part in (found.value, found.low, found.high))
        figures.append(Figure("RMSE", *ends))
        middle = counts.total(y)[0] / rows
        spread_of_y = (counts.total(square)[0] / rows + 1) / 2 - middle**2
        if spread_of_y > 0:
            scale = (self.bound / self.half) ** 2
            left = scale * squared / spread_of_y  # 1 - R^2
            moved = scale * (mse - squared * one) - left * (
                (square + one) / 2 - 2 * middle * y - (spread_of_y - middle**2) * one
            )
            errors, others = scale**2 * (quartic - squared**2), 2 * spread_of_y**2
            sampling = max(errors + left**2 * others - 2 * left * errors, 0.0) / rows
            width = Z * math.hypot(math.sqrt(spread * sampling), counts.total(moved / rows)[1]) / spread_of_y
            figures.append(Figure("R squared", 1 - left, 1 - left - width, min(1 - left + width, 1.0)))
        else:
            remarks.append("R squared: the target's spread is not told from 0 at this noise")
        if found.value * self.bound < self.bound / 100:
            remarks.append(f"errors are small beside the bound of {self.bound:g}: a smaller one costs less noise")
        return answer_of(figures + self._curve(counts, squared), remarks)

    def _curve(self, counts: Counts, squared: float) -> list[Figure]:
        figures = []
        for place, (left, right) in enumerate(itertools.pairwise(self.edges)):
            of, y = np.eye(self.size)[[self.MOMENTS + place, self.MOMENTS + PREDICTION_BINS + place]]
            if counts.clear(of):
                one = counts.mean("", y, of, squared * (self.bound / self.half) ** 2).scaled("", self.half)
                ends = (float(np.clip(part + (self.low + self.high) / 2, self.low, self.high)) for part in one.numbers)
                figures.append(Figure(f"mean at a prediction of {left:.6g} to {right:.6g}", *ends))
        return figures

    def needs(self, std: float) -> float:
        """Rows below which the noise on their number alone is too large for any mean."""
        return CLEAR * std * self.length

    def expects(self, std: float, rows: float) -> str:
        """Half-widths to be expected of so many rows, the noise alone, of errors that are small beside the bound."""
        wide = Z * std * self.length * self.bound / rows
        small = self.bound * math.sqrt(min(Z * std * self.length * math.sqrt(0.5) / rows, 1.0))
        return f"the noise alone in {rows:,.0f} rows: bias to {wide:.3g}; an RMSE below {small:.3g} is not told from 0"
