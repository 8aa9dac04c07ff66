"""Linear regression from one noisy sum of moments, with intervals that hold sampling and noise.

Of a row z = (1, x_1, ..., x_p, y) in the schema's scale (numbers in [-1, 1], a category as 0 and 1 against the column's
first one) the sum is of z z'. What is released is M^ = M + E, where E is noise of a known law.

**Why a row's vector is no longer than 1.** Its numbers are 1; x and 2 x^2 - 1 of a column of numbers; a 1 for a
category (its square is itself, its product with another category of the column is 0); and the products of two columns.
A column of numbers adds u + (2u - 1)^2 + u r with u = x^2 in [0, 1], where r >= 0 is the sum of squares of the others
that it is multiplied with. This is convex in u, so largest at an end: 2 + r at u = 1, 1 at u = 0. A column of
categories adds at most 1 + r. So with B columns (the target is one), of them N of numbers, the squares add up to at
most 1 + B + N + B (B - 1)/2: `Moments.length` squared.

**The interval.** Let t = (-beta, 1) and R drop the target's row. At the true beta, R M^ t = R M t + R E t. The first is
sum of x (y - x'beta), by the central limit theorem normal of variance sigma^2 R M R' (errors of one spread), the second
is normal of variance Q(t), exactly. So at the true beta, with V(t) = sigma^2 R M R' + Q(t),

    f(t) = (R M^ t)' V(t)^-1 (R M^ t)    is chi-squared,

whatever M^ is: nothing is inverted, so a noisy M^ that is near a singular one misleads nobody. That a'beta = b is
tested by the least f over all t with a'beta = b (chi-squared of one degree: T. W. Anderson, H. Rubin, 1949; P.
Guggenberger, F. Kleibergen, S. Mavroeidis, L. Chen: On the asymptotic sizes of subset Anderson-Rubin and Lagrange
multiplier tests in linear instrumental variables regression. Econometrica 2012). The interval holds the b that are not
refuted at 5 %. An interval from the estimate's own variance is 95 % only while E is small beside M; the tests show how
it fails.

f is the same for all multiples of t, so t of length 1 are searched. An interval is unbounded if and only if some t
without a target (t_y = 0) is not refuted: the columns cannot be told from collinear ones. Then the column that weighs
most in this t leaves the model, and the answer says so.

**Yes and no, counts.** The first round is that of the linear regression, and theta follows from its sum. A later one
asks for the sums of w x x' and x r, where r is y minus its mean at beta = theta, over the largest mean, so in [-1, 1],
and w the variance there over the largest, in [0, 1] (`Link`). In place of y stands r, and numbers without it are
multiplied by w: no vector is longer than above, whatever theta a server sends, and rounds are the adaptive composition
that `fedpriv.data.questions` has. R M^ t with t = (-(beta - theta) times the largest slope, 1) is the score at beta up
to second order in beta - theta; its variance is that of the model. What is second order no interval holds: an answer
says where it counts (`far`). Columns that a round does not tell from the others keep their theta. At 0 they leave the
model, as in a linear regression; of others, which earlier rounds told, the intervals allow for `HELD`.

A unit that adds the mean of its rows' vectors has its residuals' mean square in sigma^2; the variance of a mean is no
larger. With a cap L on rows, a person's L residuals may be one, and sigma^2 counts L times (Cauchy-Schwarz).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
import scipy

#: Of 5 %.
Z = NormalDist().inv_cdf(0.975)
CRITICAL = Z**2
#: Of a column that leaves the model.
NOT_TOLD = "not told from a combination of the others (collinear, constant, or too rare for this noise)"
#: Of times where no number is asked for.
HAZARD_INTERVALS = 3
#: Of those that leave the model, and of those that leave a later round.
GONE, HELD_BACK = "left out of the model", "held at what earlier rounds gave"
#: Coefficients at most.
MOST_COEFFICIENTS = 64
#: Keeps V from being 0 where there is no noise.
TINY = 1e-9
#: Of beta near which a later round asks, in the schema's scale.
MOST_BETA = 20.0
#: Of linear predictors (log odds, log means) in a last round, root mean square, from which on an answer says so.
FAR = 1.0
#: Standard deviation of the beta that stay as earlier rounds gave them, in the schema's scale: a bet, not measured.
HELD = 1.0
#: Of a number that a server says is a sum.
MOST_SUM = 2.0**40
#: An interval that reaches so many standard errors has no end.
MOST_ERRORS = 1e4


def weighed(z: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """z theta [n], number by number: a row's bits depend on the row alone, which no product of matrices promises."""
    total = np.zeros(len(z))
    for column, factor in zip(z.T, theta, strict=True):
        total += column * factor
    return total


@dataclass(frozen=True)
class Column:
    """A column of a regression. values: the categories, the first is what others are compared with; none: numbers in
    [-1, 1] that stand for middle + half * number.
    """

    name: str
    middle: float = 0.0
    half: float = 1.0
    values: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={value}" for value in self.values[1:]) or (self.name,)

    def numbers(self, given: np.ndarray) -> np.ndarray:
        """float64 [n, k]; rows with NaN where a value is missing. given: as in `fedpriv.data.questions.Values`."""
        if not self.values:
            return given[:, None]
        places = np.arange(1, len(self.values))
        missing = (given < 0) | (given >= len(self.values))  # "other" has no coefficient
        return np.where(missing[:, None], np.nan, given[:, None] == places)


@dataclass(frozen=True)
class Link:
    """The canonical link of yes and no, of counts, or of events at constant hazards. most: the largest count."""

    name: Literal["logistic", "poisson", "hazards"]
    most: float = 1.0

    def near(self, theta: np.ndarray) -> tuple[float, float]:
        """(largest variance of the target at beta = theta over `most`, that over its square): where the weight is 1."""
        if self.name == "logistic":
            return 0.25, 0.25
        top = min(self.most, math.exp(min(theta[0] + np.abs(theta[1:]).sum(), 700.0)))
        return top / self.most, top / self.most**2

    def of(self, eta: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean over `most`, weight: variance over the largest), both in [0, 1]."""
        top = self.near(theta)[0]
        if self.name == "logistic":
            mean = scipy.special.expit(eta)
            return mean, mean * (1 - mean) / top
        mean = np.minimum(np.exp(np.minimum(eta, 700.0)) / self.most, top)
        return mean, mean / top

    def start(self, fit: Fit) -> np.ndarray:
        """beta near which the second round asks, from least squares of the target in [-1, 1]: of yes and no by G. W.
        Haggstrom (Logistic regression and discriminant analysis by ordinary least squares. Journal of Business &
        Economic Statistics 1983); of counts as if x were normal.
        """
        c, moments = fit.coefficients / 2, fit.moments / fit.rows
        share = float(np.clip((fit.matrix[0, -1] / fit.rows + 1) / 2, 0.02, 0.98))
        if self.name == "logistic":
            residual = float(np.clip(fit.residual(np.append(-fit.coefficients, 1.0)) / 4, 0.02, 0.25))
            beta = c / residual
            beta[0] = math.log(share / (1 - share)) + c[0] / residual + (0.5 / share - 0.5 / (1 - share))
            return beta
        beta = c / share
        middle = moments[0, 1:]
        spread = moments[1:, 1:] - np.outer(middle, middle)
        beta[0] = math.log(share * self.most) - beta[1:] @ middle - beta[1:] @ spread @ beta[1:] / 2
        return beta


@dataclass(frozen=True)
class Moments:
    """The sum of z z', as a vector. columns: of x, the target last. link: from x'beta to the mean; theta: the beta near
    which a later round asks, None: in the first one.
    """

    columns: tuple[Column, ...]
    link: Link | None = None
    theta: np.ndarray | None = None
    #: How strongly noise draws theta to 0.
    drawn: ClassVar[float] = 1.0

    @cached_property
    def length(self) -> float:
        """Of the longest row's numbers."""
        numbers, blocks = sum(not column.values for column in self.columns), len(self.columns)
        return math.sqrt(1 + blocks + numbers + blocks * (blocks - 1) / 2)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of z without the target."""
        return ("intercept", *(name for column in self.columns[:-1] for name in column.names))

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return len(self.parts)

    @property
    def compared(self) -> tuple[str, ...]:
        """Coefficients that a reader asks for."""
        return self.names

    @cached_property
    def owners(self) -> list[int]:
        """Of each number of z after the 1 its column."""
        return [place for place, column in enumerate(self.columns) for _ in column.names]

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Numbers of z of two columns, which are multiplied."""
        pairs = itertools.combinations(range(1, len(self.owners) + 1), 2)
        return [(i, j) for i, j in pairs if self.owners[i - 1] != self.owners[j - 1]]

    @cached_property
    def squares(self) -> list[int]:
        """Numbers of z that are no categories."""
        return [i for i, owner in enumerate(self.owners, 1) if not self.columns[owner].values]

    @cached_property
    def parts(self) -> np.ndarray:
        """float64 [size, d, d]: a sum's numbers s, each times its part, add up to M."""
        d, cells = len(self.owners) + 1, []
        cells.append([(0, 0, 1.0), *((i, i, 0.5) for i in self.squares)])  # x^2 = (1 + (2 x^2 - 1))/2
        cells += [[(0, i, 1.0), *([] if i in self.squares else [(i, i, 1.0)])] for i in range(1, d)]
        cells += [[(i, i, 0.5)] for i in self.squares]
        cells += [[(i, j, 1.0)] for i, j in self.pairs]
        parts = np.zeros((len(cells), d, d))
        for place, entries in enumerate(cells):
            for i, j, value in entries:
                parts[place, i, j] = parts[place, j, i] = value
        return parts

    def vectors(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """float64 [n, size], each of length at most 1, of columns [n] each; a row with a missing value adds nothing."""
        z = np.concatenate([column.numbers(one) for column, one in zip(self.columns, given, strict=True)], axis=1)
        weight = np.ones(len(z))
        if self.link is not None and self.theta is not None:
            target = self.columns[-1]
            mean, weight = self.link.of(self.theta[0] + weighed(z[:, :-1], self.theta[1:]), self.theta)
            z[:, -1] = (target.middle + target.half * z[:, -1]) / self.link.most - mean
        return self.products(z, weight)

    def products(self, z: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The vectors of z [n, d - 1], without its 1, where numbers without the target are multiplied by the weight."""
        first, second = np.array(self.pairs, int).reshape(-1, 2).T - 1
        squares = 2 * z[:, np.array(self.squares, int) - 1] ** 2 - 1
        vectors = np.concatenate([np.ones((len(z), 1)), z, squares, z[:, first] * z[:, second]], axis=1)
        vectors[:, 0] *= weight
        vectors[:, 1:] *= np.where(self.parts[1:, -1].any(axis=1), 1.0, weight[:, None])  # not where the target is
        return np.where(np.isnan(vectors).any(axis=1, keepdims=True), 0.0, vectors) / self.length

    def near(self) -> tuple[float, float]:
        """As of `Link`, at theta."""
        assert self.link is not None and self.theta is not None
        return self.link.near(self.theta)

    def needs(self, std: float) -> float:
        """Rows below which no answer is told from none: of a column at the ends of its range, the best there is."""
        return Z * std * self.length

    def fit(self, total: np.ndarray, std: float, spread: int = 1) -> Fit:
        """total: noisy sum [size] of vectors; std: of the noise on each number."""
        matrix = np.tensordot(total * self.length, self.parts, axes=1)
        known = None if self.link is None or self.theta is None else self.near()[1]
        return Fit(matrix, self.parts * (std * self.length), spread, known)

    def zoomed(self, total: np.ndarray, std: float) -> Moments:
        """As the next round asks: near the beta that this round's sum gives, drawn to 0 as far as the noise goes. What
        is not told from a combination of the others stays where it was: it would lead the others astray.
        """
        assert self.link is not None
        whole = self.fit(np.clip(np.nan_to_num(total), -MOST_SUM, MOST_SUM), std)
        kept = whole.identified()
        fit = whole.only(kept)
        ridge = np.diag([0.0, *[self.drawn * std * self.length] * (len(kept) - 1), 0.0])
        theta = np.zeros(len(self.names)) if self.theta is None else self.theta.copy()
        theta[kept] = self.moved(replace(fit, matrix=fit.matrix + ridge), kept)
        return replace(self, theta=np.round(np.clip(theta, -MOST_BETA, MOST_BETA) * 1024) / 1024)

    def moved(self, fit: Fit, kept: Sequence[int]) -> np.ndarray:
        """beta of these columns by Newton's method."""
        assert self.link is not None
        if self.theta is None:
            return self.link.start(fit)
        return np.asarray(self.theta[kept] + fit.coefficients / self.near()[0])

    def told(self, total: np.ndarray, std: float, spread: int = 1) -> tuple[Fit, list[int]]:
        """(what is fitted, its numbers of z)."""
        whole = self.fit(total, std, spread)
        kept = whole.identified()
        fit, theta = whole.only(kept), np.zeros(len(self.names)) if self.theta is None else self.theta
        held = [place for place, one in enumerate(theta) if one and place not in kept]
        if self.link is not None and held:  # R M^ t has beta_k - theta_k of these as well
            size = len(kept) + 1
            unknown = np.zeros((len(held), size, size))
            unknown[:, -1, :-1] = whole.matrix[np.ix_(held, kept)] * (self.near()[0] * HELD)
            fit = replace(fit, noise=np.concatenate([fit.noise, unknown + np.swapaxes(unknown, 1, 2)]))
        return fit, kept

    def left(self, names: Sequence[str]) -> list[str]:
        """In words, which are not in the answer: out of the model, or as earlier rounds gave them."""
        held = [] if self.theta is None else [name for name in names if self.theta[self.names.index(name)]]
        gone = [name for name in names if name not in held]
        return [f"{', '.join(some)}: {NOT_TOLD}; {what}" for some, what in ((gone, GONE), (held, HELD_BACK)) if some]

    def far(self, fit: Fit, kept: Sequence[int]) -> list[str]:
        """In words, where beta lies so far from theta that intervals, which hold to second order, are of no use."""
        step = fit.coefficients / self.near()[0]
        moved = math.sqrt(step @ fit.moments @ step / fit.rows)
        names = ", ".join(self.names[place] for place in kept if self.names[place] in self.compared)
        if moved <= FAR or not names:
            return []
        return [
            f"{names}: far from where the last round asked ({moved:.2g} in log odds or logarithms): no interval holds"
        ]

    def answer(self, total: np.ndarray, std: float, spread: int = 1) -> dict[str, Any]:
        """What `fedpriv.data.asked.Answer` says of it: coefficients in the units of the columns."""
        fit, kept = self.told(total, std, spread)
        rows, error = float(fit.matrix[0, 0]), self.length * std
        remarks = [f"about {max(rows, 0):,.0f} rows without a missing value (+-{Z * error:,.0f})"]
        owners, target = [self.columns[owner] for owner in self.owners[: len(self.names) - 1]], self.columns[-1]
        units = np.diag([1.0, *(1 / column.half for column in owners)])  # from the scale of the schema to the columns'
        units[0, 1:] = [-column.middle / column.half for column in owners]
        scale, offset = target.half, target.middle * (np.arange(len(units)) == 0)
        if self.link is not None and self.theta is not None:  # the first number is a sum of weights, not of rows
            remarks = self.far(fit, kept)
            scale, offset = 1 / self.near()[0], units @ self.theta
        units, offset = units[np.ix_(kept, kept)], offset[kept]
        values, errors = units @ fit.coefficients, np.sqrt(np.einsum("ij,jk,ik->i", units, fit.errors, units))
        ends = np.array([fit.interval(row) for row in units]).T
        zero = [fit.statistic(row, -moved / scale) for row, moved in zip(units, offset, strict=True)]
        p_values = scipy.stats.chi2.sf(zero, 1)
        values, (low, high) = offset + scale * values, offset + scale * ends
        told = np.isfinite(low) & np.isfinite(high)
        held = (
            [] if self.theta is None else [place for place, one in enumerate(self.theta) if one and place not in kept]
        )
        told[0] &= not any(owners[place - 1].middle for place in held)  # where such a column is 0 is not told either
        if left := [name for place, name in enumerate(self.names) if place not in np.array(kept)[told]]:
            remarks += self.left(left)
        numbers = {"values": values, "low": low, "high": high, "errors": scale * errors, "p_values": p_values}
        names = tuple(self.names[place] for place in np.array(kept)[told])
        return {name: one[told] for name, one in numbers.items()} | {"names": names, "remarks": tuple(remarks)}


@dataclass(frozen=True)
class Hazards(Moments):
    """Of persons with times: a sum over K intervals, which are the categories of the first column. theta is always set;
    at first it says a hazard of 1/until for everyone.

    With h(x) = 1 over the expected number of events at beta = theta of a person never censored, at most 1, the
    residual in interval j is r_j = h (event in j - expected events in j) and the weight w_j = h (expected events in
    j)/ top. At the true beta r_j has mean 0 for any h, and variance at most w_j top: intervals hold, and are wide
    where h is far below 1.

    **Why no person's vector is longer than 1.** The w_j are at least 0 and add up to at most 1: numbers without r are
    no longer than those of one row, squared at most 1 + (B - 1) + (N - 1) + (B - 1)(B - 2)/2. The sum of the r_j is
    in [-1, 1], so are its B - 2 products with other columns; the products with intervals are r_2, ..., r_K, with
    squares that add up to at most 2 (an event in one interval, all that was expected in another); 2 r^2 - 1 is left
    out. All together it is `length` squared.
    """

    drawn = 3.0  # a theta that noise leads astray adds more curvature than one near 0 (tools/inference_figure.py)

    @property
    def intervals(self) -> int:
        return len(self.columns[0].values)

    @property
    def compared(self) -> tuple[str, ...]:
        return self.names[self.intervals :]

    @property
    def _baseline(self) -> np.ndarray:
        """Hazards [K] of x = 0 times until."""
        assert self.theta is not None
        return np.asarray(np.exp(self.theta[0] + np.append(0.0, self.theta[1 : self.intervals])))

    @property
    def top(self) -> float:
        """The largest expected number of events at beta = theta of a person who is never censored, up to 1."""
        assert self.theta is not None
        most = math.exp(min(float(np.abs(self.theta[self.intervals :]).sum()), 700.0))
        return min(1.0, float(self._baseline.mean()) * most)

    def near(self) -> tuple[float, float]:
        return self.top, self.top

    def vectors(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """As of `Moments`. given: times over until [n], in [0, 1], columns of x, 0 or 1 for the event; NaN: missing."""
        assert self.theta is not None
        times, *x, events = given
        k, baseline, (top, _) = self.intervals, self._baseline, self.near()
        middle = math.log(baseline.mean())
        z = np.concatenate([column.numbers(one) for column, one in zip(self.columns[1:-1], x, strict=True)], axis=1)
        eta = weighed(z, self.theta[k:])
        share = np.exp(-np.maximum(0.0, middle + eta))  # h
        most = np.exp(np.minimum(eta, -middle))  # h exp(eta), which does not overflow
        place = np.minimum(np.ceil(np.nan_to_num(times) * k - 1e-9).clip(1) - 1, k - 1)
        total = np.zeros((len(times), len(self.parts)))
        for interval in range(k):
            risk = most * baseline[interval] * np.clip(times - interval / k, 0, 1 / k)
            residual = share * events * (place == interval) - risk
            inside = np.broadcast_to(np.arange(1, k) == interval, (len(times), k - 1))
            total += self.products(np.column_stack([inside, z, residual]), risk / top)
        total[:, 1 + len(self.owners) + len(self.squares) - 1] = 0.0  # 2 r^2 - 1
        return total

    def moved(self, fit: Fit, kept: Sequence[int]) -> np.ndarray:
        """beta by Newton's method, after one factor for all hazards that makes as many events as there were."""
        assert self.theta is not None
        known, residuals = fit.matrix[:-1, :-1] * self.near()[0], fit.matrix[:-1, -1]
        expected = max(float(known[0, 0]), 1.0)
        factor = float(np.clip((expected + residuals[0]) / expected, 0.05, 20.0))
        step = np.linalg.lstsq(known * factor, residuals - (factor - 1) * known[:, 0], rcond=None)[0]
        step[0] += math.log(factor)
        return np.asarray(self.theta[kept] + step)

    def answer(self, total: np.ndarray, std: float, spread: int = 1) -> dict[str, Any]:
        """Logarithms of hazard ratios; the ratios in the remarks."""
        found, own = super().answer(total, std, spread), self.compared
        kept = [place for place, name in enumerate(found["names"]) if name in own]
        numbers = {name: found[name][kept] for name in ("values", "low", "high", "errors", "p_values")}
        names = tuple(found["names"][place] for place in kept)
        ratios = np.exp(np.clip([numbers[name] for name in ("values", "low", "high")], -50, 50)).T
        told = [
            f"hazard ratio of {name}: {v:.4g} ({low:.4g} to {high:.4g})"
            for name, (v, low, high) in zip(names, ratios, strict=True)
        ]
        left = [name for name in own if name not in names]
        return numbers | {
            "names": names,
            "remarks": (
                *told,
                *(remark for remark in found["remarks"] if NOT_TOLD not in remark),
                *self.left(left),
            ),
        }


@dataclass(frozen=True)
class Groups:
    """A regression in each group, all at one theta: a row's vector stands in its group's section, as long as it was.

    A coefficient's heterogeneity is Cochran's Q (W. G. Cochran: The combination of estimates from different
    experiments. Biometrics 1954) with each group's own test in place of a weighted square: the least over b of the sum
    over groups of f_g, where f_g tests that the group's coefficient is b. Under one b for all it is chi-squared of as
    many degrees as there are groups but one. Noise is in each f_g: a group of which nothing is told adds nothing.
    """

    moments: Moments
    groups: tuple[str, ...]

    @property
    def link(self) -> Link | None:
        return self.moments.link

    @property
    def size(self) -> int:
        return len(self.groups) * self.moments.size

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{group}: {name}" for group in self.groups for name in self.moments.compared)

    def vectors(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """As of `Moments`, of the groups' places [n] and its columns; a row of no group adds nothing."""
        places, *columns = given
        vectors = np.zeros((len(places), len(self.groups), self.moments.size))
        rows = np.flatnonzero((places >= 0) & (places < len(self.groups)))
        vectors[rows, places[rows]] = self.moments.vectors(columns)[rows]
        return vectors.reshape(len(places), -1)

    def needs(self, std: float) -> float:
        return self.moments.needs(std) * len(self.groups)

    def zoomed(self, total: np.ndarray, std: float) -> Groups:
        whole = total.reshape(len(self.groups), -1).sum(axis=0)
        return replace(self, moments=self.moments.zoomed(whole, std * math.sqrt(len(self.groups))))

    def answer(self, total: np.ndarray, std: float, spread: int = 1) -> dict[str, Any]:
        """Each group's coefficients; how much they differ in the remarks."""
        parts = total.reshape(len(self.groups), -1)
        answers = [self.moments.answer(part, std, spread) for part in parts]
        remarks = []
        for name in self.moments.compared:
            q, p, more = self.heterogeneity(total, std, name, spread), 0.0, len(self.groups) - 1
            p = float(scipy.stats.chi2.sf(q, more))
            told = "< 0.0001" if p < 1e-4 else f"= {p:.2g}"
            share = max(0.0, 1 - more / q) if q > 0 else 0.0
            remarks.append(f"{name}: Cochran's Q {q:.3g} of {more}, p {told}; I^2 {share:.0%}")
        for group, one in zip(self.groups, answers, strict=True):
            remarks += [f"{group}: {remark}" for remark in one["remarks"] if not remark.startswith("hazard ratio")]
        names = tuple(
            f"{group}: {name}" for group, one in zip(self.groups, answers, strict=True) for name in one["names"]
        )
        numbers = ("values", "low", "high", "errors", "p_values")
        found = {name: np.concatenate([one[name] for one in answers]) for name in numbers}
        return found | {"names": names, "remarks": tuple(remarks)}

    def heterogeneity(self, total: np.ndarray, std: float, name: str, spread: int = 1) -> float:
        """Q of a coefficient."""
        fits = [self.moments.fit(part, std, spread) for part in total.reshape(len(self.groups), -1)]
        one = np.eye(len(self.moments.names))[self.moments.names.index(name)]
        middles, variances = np.array([(one @ fit.coefficients, one @ fit.errors @ one) for fit in fits]).T
        weights = 1 / np.maximum(variances, TINY)

        def q(value: float) -> float:
            return sum(fit.statistic(one, value) for fit in fits)

        mean, error = float(weights @ middles / weights.sum()), 1 / math.sqrt(weights.sum())
        ends = (mean - 6 * error, mean + 6 * error)
        found = scipy.optimize.minimize_scalar(q, bounds=ends, method="bounded", options={"xatol": 0.05 * error})
        return min(float(found.fun), q(mean))


@dataclass(frozen=True)
class Fit:
    """Of moments M^ [d, d] with noise, the target last: coefficients, tests, intervals.

    noise: [k, d, d], parts of E of variance 1. spread: how many rows of one residual there may be.
    """

    matrix: np.ndarray
    noise: np.ndarray
    spread: int = 1
    dispersion: float | None = None

    @cached_property
    def rows(self) -> float:
        return max(float(self.matrix[0, 0]), 1.0)

    @cached_property
    def moments(self) -> np.ndarray:
        """R M^ R', without directions of negative length, which noise alone makes."""
        values, vectors = np.linalg.eigh(self.matrix[:-1, :-1])
        return (vectors * np.maximum(values, 0.0)) @ vectors.T

    @cached_property
    def coefficients(self) -> np.ndarray:
        return np.linalg.lstsq(self.matrix[:-1, :-1], self.matrix[:-1, -1], rcond=None)[0]

    def variance(self, t: np.ndarray) -> np.ndarray:
        """V(t) [d - 1, d - 1]."""
        moved = (self.noise @ t)[:, :-1]
        return np.asarray(self.residual(t) * self.moments + moved.T @ moved)

    def residual(self, t: np.ndarray) -> float:
        """sigma^2 of t, times the rows that share one residual."""
        if self.dispersion is not None:
            return self.spread * self.dispersion * float(t[-1] ** 2 + TINY * (t @ t))
        return self.spread * max(float(t @ self.matrix @ t), 0.0) / self.rows

    @cached_property
    def errors(self) -> np.ndarray:
        """Variances and covariances of the coefficients [d - 1, d - 1], as long as the noise is small beside M."""
        inverse = np.linalg.pinv(self.matrix[:-1, :-1])
        return inverse @ self.variance(np.append(-self.coefficients, 1.0)) @ inverse

    def least(self, normal: np.ndarray, start: np.ndarray) -> tuple[float, np.ndarray]:
        """(the least f(t) over t with normal't = 0, this t of length 1), from a start [d]."""
        kept = np.linalg.svd(normal[None])[2][1:].T  # [d, d - 1]
        scale = 1 / np.sqrt(np.maximum(np.einsum("ij,ij->j", kept, self._scale @ kept), 1e-300))
        kept = kept * scale

        def f(u: np.ndarray) -> tuple[float, np.ndarray]:
            length = np.linalg.norm(u)
            t = kept @ u / length
            value, slope = self._f(t)
            inner = kept.T @ slope
            return value, (inner - (inner @ u) * u / length**2) / length

        first = np.linalg.lstsq(kept, start, rcond=None)[0]
        found = scipy.optimize.minimize(f, first / max(np.linalg.norm(first), 1e-300), jac=True, method="BFGS")
        t = kept @ found.x
        return float(found.fun), t / np.linalg.norm(t)

    @cached_property
    def _scale(self) -> np.ndarray:
        """What f's quadratic forms are in length: of directions alike."""
        values, vectors = np.linalg.eigh(self.matrix)
        floor = np.linalg.norm(self.noise, axis=0).max() + 1e-9 * np.abs(values).max()
        return (vectors * np.maximum(np.abs(values), floor)) @ vectors.T

    def _f(self, t: np.ndarray) -> tuple[float, np.ndarray]:
        """f(t) and its slope [d]."""
        variance = self.variance(t)
        g = (self.matrix @ t)[:-1]
        h = np.linalg.solve(variance + (1e-12 * np.trace(variance) + 1e-300) * np.eye(len(g)), g)
        back = np.append(h, 0.0)
        along = self.noise @ back  # [k, d]
        slope = 2 * self.matrix @ back - 2 * (along @ t) @ along
        inside = self.spread * float(h @ self.moments @ h)
        if self.dispersion is not None:
            slope -= 2 * inside * self.dispersion * np.append(TINY * t[:-1], t[-1])
        elif self.residual(t) > 0:
            slope -= 2 * inside / self.rows * (self.matrix @ t)
        return float(g @ h), slope

    def statistic(self, weights: np.ndarray, value: float) -> float:
        """Of the test that weights'beta = value: chi-squared of one degree."""
        along = self.errors @ weights
        moved = self.coefficients + along * (value - weights @ self.coefficients) / max(float(weights @ along), 1e-300)
        return self.least(np.append(weights, value), np.append(-moved, 1.0))[0]

    def interval(self, weights: np.ndarray) -> tuple[float, float]:
        """Of weights'beta: the values around the estimate that are not refuted; infinite where none is."""
        middle, error = float(weights @ self.coefficients), math.sqrt(weights @ self.errors @ weights)

        def excess(value: float) -> float:
            return self.statistic(weights, value) - CRITICAL

        def end(side: float) -> float:
            inner, outer = 0.0, Z * side
            while excess(middle + outer) <= 0:
                inner, outer = outer, 2 * outer
                if abs(outer) >= MOST_ERRORS * error:
                    return math.copysign(math.inf, side)
            return float(scipy.optimize.brentq(excess, middle + inner, middle + outer, xtol=1e-3 * error))

        return end(-error), end(error)

    def identified(self) -> list[int]:
        """The numbers of z without those that are not told from a combination of the others, the target left out."""
        kept = list(range(len(self.matrix) - 1))
        while len(kept) > 1:
            part, no_target = self.only(kept), np.append(np.zeros(len(kept)), 1.0)
            nearest = np.linalg.eigh(part.matrix[:-1, :-1])[1].T[:2]  # to collinear columns
            least, t = min((part.least(no_target, np.append(one, 0.0)) for one in nearest), key=lambda one: one[0])
            if least > CRITICAL:
                break
            weights = np.abs(t[1:-1]) * np.sqrt(np.maximum(np.diag(part.moments)[1:], 0.0))
            kept.pop(1 + len(weights) - 1 - int(np.argmax(weights[::-1] > 0.8 * weights.max())))
        return kept

    def only(self, kept: Sequence[int]) -> Fit:
        places = [*kept, len(self.matrix) - 1]
        noise = self.noise[:, places][:, :, places]
        return replace(self, matrix=self.matrix[np.ix_(places, places)], noise=noise)
