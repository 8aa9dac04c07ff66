"""Two-sample check of the inputs: do members and non-members differ by their inputs, whatever a model says of them?

The members and non-members of m pairs of one class each. If coins chose the members, the sign of every difference
between two examples of a pair is a fair coin, independent of the others. So for features f of an example, the statistic
T = max_f |sum_i d_if| / sqrt(sum_i d_if^2), d_i = f(member i) - f(non-member i), has the same law when whole pairs are
turned at random: its rank among random turns is a p value without any assumption on the examples, and, since the
maximum is turned, corrected for all features at once (Westfall and Young 1993). Features: of a table's row its inputs;
of a picture itself in coarse blocks, its light, contrast, roughness, place, size and slant; each for all pairs and for
every class alone, which also shows wrong labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks.targets import Sides

Values = NDArray[np.float64]

#: Random turns of the pairs, and the p value from which on the two sides are said to differ.
TURNS, DIFFER = 1999, 0.001

#: Blocks of a picture's coarse version along each side, at most.
BLOCKS = 7
#: Inputs of a table that are compared, at most.
MOST = 1000


@dataclass(frozen=True)
class Inputs:
    """The p value of "nothing but coins distinguishes members from non-members", and the feature that differs most."""

    p_value: float
    feature: str

    @property
    def differ(self) -> bool:
        return self.p_value <= DIFFER

    def __str__(self) -> str:
        if self.differ:
            return f"members and non-members differ as inputs: {self.feature}, p <= {DIFFER:g}"
        return f"as inputs, members and non-members do not differ noticeably (p = {self.p_value:.2g})"


def compare(inputs: NDArray[Any], labels: NDArray[np.int64], pairs: Sides, seed: int) -> Inputs:
    """The check of pairs of rows of ``inputs``: pictures (uint8 [n, c, h, w]) or rows of a table (float32 [n, d])."""
    of = features if inputs.ndim == 4 else columns
    names, members = of(inputs[pairs.members])
    differences = members - of(inputs[pairs.others])[1]
    classes = labels[pairs.members]
    rng = np.random.default_rng([seed, 0])
    signs = np.concatenate([np.ones((1, len(pairs))), rng.choice([-1.0, 1.0], (TURNS, len(pairs)))])
    largest, best, where = np.zeros(len(signs)), -1.0, ""
    for label in [None, *np.unique(classes)]:
        part = slice(None) if label is None else classes == label
        length = np.sqrt((differences[part] ** 2).sum(0))
        found = np.abs(signs[:, part] @ differences[part]) / np.where(length > 0, length, 1.0)
        largest = np.maximum(largest, found.max(1))
        if found[0].max() > best:
            best = float(found[0].max())
            where = names[int(found[0].argmax())] + ("" if label is None else f" within class {label}")
    return Inputs(float((largest >= largest[0] * (1 - 1e-12)).mean()), where)


def columns(inputs: NDArray[np.float32]) -> tuple[list[str], Values]:
    """Names [f] and values [n, f] of a table's rows float32 [n, d]: their inputs, of many `MOST` evenly spaced ones."""
    chosen = np.unique(np.linspace(0, inputs.shape[1] - 1, MOST).astype(int))
    return [f"input {column}" for column in chosen], inputs[:, chosen].astype(np.float64)


def features(images: NDArray[np.uint8]) -> tuple[list[str], Values]:
    """Names [f] and values [n, f] of pictures uint8 [n, c, h, w]."""
    pixels = images.astype(np.float64) / 255
    grey = pixels.mean(1)
    mass = grey.sum((1, 2)) + 1e-9
    y, x = (axis.astype(np.float64) for axis in np.mgrid[: grey.shape[1], : grey.shape[2]])
    rows, columns = ((grey * axis).sum((1, 2)) / mass for axis in (y, x))
    dy, dx = y - rows[:, None, None], x - columns[:, None, None]
    tall, wide, across = ((grey * part).sum((1, 2)) / mass for part in (dy * dy, dx * dx, dy * dx))
    named = {
        "light": grey.mean((1, 2)),
        "contrast": grey.std((1, 2)),
        "roughness across": np.abs(np.diff(grey, axis=2)).sum((1, 2)),
        "roughness down": np.abs(np.diff(grey, axis=1)).sum((1, 2)),
        "height of the centre": rows,
        "side of the centre": columns,
        "tallness": tall,
        "width": wide,
        "slant": across,
        "slant for its size": across / (tall + wide + 1e-9),
    }
    blocks = [
        pixels[:, :, down][:, :, :, right].mean((2, 3))
        for down in np.array_split(np.arange(grey.shape[1]), min(BLOCKS, grey.shape[1]))
        for right in np.array_split(np.arange(grey.shape[2]), min(BLOCKS, grey.shape[2]))
    ]
    names = [*named, *["a block of pixels"] * (len(blocks) * images.shape[1])]
    return names, np.column_stack([*named.values(), *blocks])
