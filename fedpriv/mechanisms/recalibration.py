"""Recalibration of a linear classifier by noisy counts of rows, by log odds and class.

A classifier trained by clipped gradients ranks well, but its probabilities are too sure or too modest. So its log odds
are cut by B even knots u_1 < ... < u_B, and each row counts at the knots beside its own log odds, for its class: 2B
numbers, whose noisy sum tells the calibration curve. A logistic regression of the class on the log odds is fitted to
these counts (D. R. Cox 1958; J. Platt 1999). The last layer, scaled by its slope and shifted by its intercept, is a
plain model again.

Of more than two classes a row counts for the two that the model finds likeliest, if it is of one of these: given that,
the softmax of outputs t z says sigmoid(t (z_b - z_a)). So the slope is the temperature's inverse (C. Guo et al., ICML
2017), by conditional likelihood, and there is no intercept.

**Why a row moves the sum by less than 1**, whatever the row, the model, c and s are. A row's vector holds 1 - w and w
at two neighbouring knots of one class, 0 <= w <= 1, or it is zero: its length is at most 1. It depends on nothing but
the row and on numbers that all rows share: outputs are summed input by input, each product and each sum float64 by
itself as IEEE 754 says (no matrix product, whose kernel may depend on how many rows there are), and all that follows is
comparisons and operations entry by entry. What is not a number counts as 0. `clipped_rows` clips to 1 and adds the
vectors, or of unit person the means of a person's: its proof and `clipped_sums.excess` hold with the bound 1.

Symbols: n rows, k inputs, o classes, B knots; f = z_b - z_a -> log odds of the higher class b; c, s -> centre, width of
f; u = (f - c)/s. Of two classes b is the second one, of more the likeliest, so that f >= 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Most and fewest knots of the log odds; the outermost stand this many widths from the centre.
MOST_KNOTS, FEWEST_KNOTS, OUTERMOST = 10, 4, 3.0
#: Log odds beyond which nearly all rows are of one class.
SURE = 4.0
#: Standard deviation of intercept and ln slope before anything is known of them; most that they are moved.
PRIOR, MOST = 0.5, 3.0
#: Places between two knots at which a function is compared with its spline; of the fit, whose weights follow it.
NODES, STEPS = 16, 3

Vector = NDArray[np.float64]


def knots(numbers: int) -> Vector:
    """u_1..u_B [B] for a vector with room for so many ``numbers``; none where B is too small."""
    count = min(MOST_KNOTS, numbers // 2)
    if count < FEWEST_KNOTS:
        return np.zeros(0)
    return np.linspace(-OUTERMOST, OUTERMOST, count)


def parts(theta: Vector, outputs: int) -> tuple[Vector, Vector]:
    """Weights [o, k] and biases [o] of a linear model's theta [o (k + 1)]: views."""
    return theta[:-outputs].reshape(outputs, -1), theta[-outputs:]


def counted(inputs: Tensor, targets: Tensor, theta: Vector, outputs: int, centre: float, width: float) -> Tensor:
    """Each row's vector, float64 [n, 2B], of inputs [n, k] and classes int64 [n]: the lower class's knots first."""
    weights, biases = (torch.from_numpy(part) for part in parts(theta, outputs))
    scores = biases.repeat(len(inputs), 1)
    for place in range(inputs.shape[1]):
        scores += inputs[:, place, None].double() * weights[None, :, place]
    high, low = two_likeliest(scores)
    if outputs == 2:
        high, low = torch.ones_like(high), torch.zeros_like(low)
    odds = scores.gather(1, high[:, None])[:, 0] - scores.gather(1, low[:, None])[:, 0]
    places = torch.from_numpy(knots(len(theta)))
    position = ((odds - centre) / width).nan_to_num(0.0)
    left = torch.bucketize(position, places[1:-1])
    right = ((position - places[left]) / (places[left + 1] - places[left])).clamp(0, 1)
    vectors, rows = torch.zeros(len(inputs), 2, len(places), dtype=torch.float64), torch.arange(len(inputs))
    own, there = (targets == high).long(), ((targets == low) | (targets == high)).double()
    vectors[rows, own, left], vectors[rows, own, left + 1] = (1 - right) * there, right * there
    return vectors.flatten(1)


def two_likeliest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Places (int64 [n] each) of the largest and the second largest score [n, o], of equal ones the first; o >= 2."""
    zeros = torch.zeros(len(scores), dtype=torch.int64)
    best, second = zeros, zeros + 1
    for place in range(1, scores.shape[1]):
        score = scores[:, place]
        first = score > scores.gather(1, best[:, None])[:, 0]
        next_one = (score > scores.gather(1, second[:, None])[:, 0]) | (place == 1)
        second = torch.where(first, best, torch.where(next_one, place, second))
        best = torch.where(first, place, best)
    return best, second


@dataclass(frozen=True)
class Curve:
    """What one sum said: of log odds with this centre and width, noisy counts [B] of the lower and the higher class.

    noise: standard deviation of the noise in a count.
    """

    centre: float
    width: float
    noise: float
    counts: Vector  # [2, B]

    def packed(self) -> Vector:
        """[3 + 2B]."""
        return np.concatenate([[self.centre, self.width, self.noise], self.counts.ravel()])

    @classmethod
    def of(cls, packed: Vector) -> Curve:
        return cls(float(packed[0]), float(packed[1]), float(packed[2]), packed[3:].reshape(2, -1))

    @cached_property
    def odds(self) -> Vector:
        """f at the knots [B]."""
        return self.centre + self.width * knots(self.counts.size)

    @cached_property
    def splines(self) -> tuple[Vector, Vector, Vector]:
        """(f [m]; each knot's share there [m, B]; the matrix [B, m] that makes of a function's values there the nearest
        linear spline). The spline's sum over rows follows from counts; the function is as often above as below it.
        """
        places = np.linspace(self.odds[0], self.odds[-1], NODES * len(self.odds) + 1)
        hats = np.stack([np.interp(places, self.odds, hat) for hat in np.eye(len(self.odds))], axis=1)
        return places, hats, np.linalg.pinv(hats)


def fit(curves: Sequence[Curve], intercept: bool = True) -> tuple[float, float]:
    """(a, b) of the logistic regression sigmoid(a + b f) of the class on the log odds, a = 0 without ``intercept``.

    It solves sum w (y - p)(1, f) = 0: the likelihood's equations with a weight w at each knot, the variance of sampling
    over that of sampling and noise. They are linear in the counts, so that noise moves the solution to no side. They
    are taken in units of their standard deviation, with a normal prior around no change: if noise hides everything,
    nothing changes.
    """
    from scipy.optimize import least_squares  # a quarter of a second to import: only where it is solved
    from scipy.special import expit

    centre, width = (curves[-1].centre if intercept else 0.0), curves[-1].width

    def probabilities(found: Vector, odds: Vector) -> Vector:
        return np.asarray(expit(centre + found[0] + math.exp(found[1]) * (odds - centre)))

    found, free = np.zeros(2), np.array([intercept, True])
    for _ in range(STEPS):
        covariance, tests = 1e-9 * np.eye(2), list[Vector]()
        for curve in curves:
            p, counts = probabilities(found, curve.odds), curve.counts.sum(0).clip(0)
            sampling, noise = counts * p * (1 - p), curve.noise**2 * (p**2 + (1 - p) ** 2)
            weight = (sampling + 1e-9) / (sampling + noise + 1e-9)
            weight[[0, -1]] = 0.0  # the outermost knots stand for whatever lies beyond
            tests.append(np.stack([weight, weight * (curve.odds - centre) / width]))
            covariance += (tests[-1] * (sampling + noise)) @ tests[-1].T

        half = np.linalg.cholesky(covariance[np.ix_(free, free)])

        def residuals(some: Vector, tests: list[Vector] = tests, half: Vector = half) -> Vector:
            whole, sides = np.zeros(2), np.zeros(2)
            whole[free] = some
            for curve, test in zip(curves, tests, strict=True):
                places, hats, spline = curve.splines
                expected = (test @ hats.T * probabilities(whole, places)) @ spline.T
                sides += test @ curve.counts[1] - expected @ curve.counts.sum(0)
            return np.concatenate([np.linalg.solve(half, sides[free]), some / PRIOR])

        found[free] = least_squares(residuals, found[free], bounds=(-MOST, MOST)).x
    slope = math.exp(found[1])
    return (centre + float(found[0]) - slope * centre if intercept else 0.0), slope


def between(low: float, high: float, numbers: int) -> Curve:
    """What to count with outermost knots here, and room for so many numbers."""
    return Curve((low + high) / 2, (high - low) / 2 / OUTERMOST, 0.0, np.zeros((2, len(knots(numbers)))))


def closer(curve: Curve, intercept: bool = True) -> Curve:
    """The same question where the rows are (within three standard deviations of their log odds) and both classes occur
    (within `SURE` of even log odds, by the fit to what was counted).
    """
    counts = np.where(curve.counts.sum(0) > 3 * curve.noise, curve.counts.sum(0), 0.0)
    if not counts.sum():
        return curve
    centre = float(counts @ curve.odds / counts.sum()) if intercept else 0.0
    spread = 3 * math.sqrt(float(counts @ (curve.odds - centre) ** 2 / counts.sum()))
    a, b = fit([curve], intercept)
    low, high = max(centre - spread, (-SURE - a) / b), min(centre + spread, (SURE - a) / b)
    if high - low < spread / 3:
        low, high = centre - spread, centre + spread
    return between(low if intercept else 0.0, max(high, low + curve.width / 10), curve.counts.size)


def first_curve(theta: Vector, outputs: int, shift: Vector, scale: Vector) -> Curve:
    """What to ask first: with centre and width of the log odds of inputs with such means and mean deviations [k], as if
    these were independent; of more than two classes the root mean square over pairs.
    """
    weights, biases = parts(theta, outputs)
    low, high = np.triu_indices(outputs, 1)
    slopes, offsets = weights[high] - weights[low], biases[high] - biases[low]
    means, squares = slopes @ shift + offsets, (1.25 * slopes * scale) ** 2  # of a normal: deviation / mean deviation
    centre = float(means[0]) if outputs == 2 else 0.0
    spread = 3 * max(1e-3, math.sqrt(float((squares.sum(1) + (means - centre) ** 2).mean())))
    return between(centre - spread if outputs == 2 else 0.0, centre + spread, theta.size)


def recalibrated(theta: Vector, outputs: int, intercept: float, slope: float) -> Vector:
    """theta of the model whose log odds are intercept + slope f; of two outputs half of the intercept goes to each."""
    found = theta * slope
    if outputs == 2:
        found[-2:] += [-intercept / 2, intercept / 2]
    return found
