"""Moment normalisation: each picture is set upright and scaled by the moments of its own ink (Casey 1970).

A picture's ink is its brightness, in colour the mean of its channels. With (y, x) the middle of the ink, s_yy, s_xx and
s_xy its variances and covariance,

1. rows are moved sideways until the covariance is 0: column x is read at x + (s_xy / s_yy) (y - middle);
2. along both axes the middle goes to the picture's middle, and the standard deviation s half of the way, on a
   logarithmic scale, to a fixed share of the picture's side: position t is read at middle + (t - centre) sqrt(s / s*).

Both read between pixels linearly, and beyond the edge nothing. The rule knows one picture at a time and no others; a
picture without ink stays as it is.

Shapes: n pictures, c channels, h x w pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.axes import Floats

#: s* as shares of the height and of the width; of 28 pixels these are 5.5 and 4.
TALL, WIDE = 5.5 / 28, 4.0 / 28
#: Most columns that a row is moved for each row, and how far a picture is made smaller or larger at most.
STEEPEST, MOST = 1.0, 2.0
#: Added to standard deviations, in shares of the side: a dot is not made infinitely large.
LEAST = 0.3 / 28
_NOTHING = 1e-6


def normalised(images: Floats) -> Floats:
    """Pictures [n, c, h, w] in 0..1 set upright and scaled."""
    height, width = images.shape[2:]
    upright = sheared(images)
    (down, across), (tall, wide), _ = moments(upright)
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    scaled = upright
    for axis, places, middle, deviation, wanted in (
        (2, rows, down, tall, TALL),
        (3, columns, across, wide, WIDE),
    ):
        side = len(places)
        factor = np.sqrt((deviation + LEAST * side) / (wanted * side)).clip(1 / MOST, MOST)
        centre = (side - 1) / 2
        scaled = read_at(scaled, middle[:, None] + (places - centre) * factor[:, None], axis)
    return with_ink(images, scaled)


def sheared(images: Floats) -> Floats:
    """Pictures whose ink is upright: the covariance of its rows and columns is about 0."""
    height, width = images.shape[2:]
    (down, _), (tall, _), covariance = moments(images)
    slope = (covariance / np.maximum(tall**2, _NOTHING)).clip(-STEEPEST, STEEPEST)
    away = np.arange(height, dtype=np.float32) - down[:, None]
    places = np.arange(width, dtype=np.float32) + (slope[:, None] * away)[:, :, None]
    return with_ink(images, read_at(images, places, 3))


def moments(images: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats], Floats]:
    """((middle's row, its column), their standard deviations, covariance) [n] each, in pixels."""
    ink = images.mean(1)
    height, width = ink.shape[1:]
    rows, columns = np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32)
    by_row, by_column = ink.sum(2), ink.sum(1)
    total = np.maximum(by_row.sum(1), np.float32(_NOTHING))
    down, across = (by_row * rows).sum(1) / total, (by_column * columns).sum(1) / total
    below, beside = rows - down[:, None], columns - across[:, None]
    tall = np.sqrt((by_row * below**2).sum(1) / total)
    wide = np.sqrt((by_column * beside**2).sum(1) / total)
    covariance = ((ink * beside[:, None, :]).sum(2) * below).sum(1) / total
    return (down, across), (tall, wide), covariance


def read_at(images: Floats, places: Floats, axis: int) -> Floats:
    """Values between pixels along an axis (2: rows, 3: columns), linearly, 0 outside.

    places: float [n, h'] of rows, or [n, w'] or [n, h, w'] of columns, in pixels.
    """
    side = images.shape[axis]
    shape = (
        (len(images), 1, -1, 1)
        if axis == 2
        else (len(images), 1, *([1] if places.ndim == 2 else []), *places.shape[1:])
    )
    places = places.reshape(shape)
    first = np.floor(places)
    share = (places - first).astype(np.float32)
    found = np.zeros((), np.float32)
    for offset, weight in ((0, 1 - share), (1, share)):
        index = (first + offset).astype(np.int64)
        weight = weight * ((index >= 0) & (index < side))
        whole = list(images.shape)
        whole[axis] = index.shape[axis]
        found = found + weight * np.take_along_axis(images, np.broadcast_to(index.clip(0, side - 1), whole), axis)
    result: Floats = np.asarray(found, np.float32)
    return result


def with_ink(images: Floats, changed: Floats) -> Floats:
    """The changed pictures, but those that are all black as they are."""
    dark: NDArray[np.bool_] = images.reshape(len(images), -1).max(1) <= 0
    found: Floats = np.where(dark[:, None, None, None], images, changed)
    return found
