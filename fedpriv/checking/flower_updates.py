"""Worst-case answers of one client: directions, lengths, rounds, forms of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.flower_messages import Trained
from fedpriv.checking.subject import Pair, Probe

#: L2 norms: far above every clip norm, and far below.
LARGE, SMALL = 1e4, 1e-3
LENGTHS = (1e-2, 1e-1, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5)


def plain(size: int, length: float) -> dict[str, NDArray[Any]]:
    """Two arrays of float32, ``size`` equal numbers in all (at least 4), of L2 norm |length|."""
    rows, rest = divmod(size, 4)
    number = length / size**0.5
    return {
        "weight": np.full((rows, 3), number, dtype=np.float32),
        "bias": np.full(rows + rest, number, dtype=np.float32),
    }


def spike(size: int, length: float) -> dict[str, NDArray[Any]]:
    """The same arrays, where one number is ``length`` and all others are 0."""
    found = plain(size, 0.0)
    found["weight"][0, 0] = length
    return found


def trained(update: Mapping[str, NDArray[Any]], **more: Any) -> Trained:
    return Trained(update, **more)


def update_pairs(dims: Sequence[int], adjacency: str, unit: str = "client") -> list[Pair]:
    """Neighbouring answers of one client of equal public sizes. adjacency: replace-one, or zero-out: the other client
    has next to nothing to say (no update at all has a norm of 0, which is a case of its own)."""
    found = []
    for size in dims:
        up, little, one = (Trained(update) for update in (plain(size, LARGE), plain(size, SMALL), spike(size, LARGE)))
        other, tail = (up.scaled(-1.0), f", {size} numbers")
        if adjacency == "replace-one":
            found += [
                Pair("opposite updates" + tail, up, other, adjacency, unit),
                Pair("opposite updates in one of" + tail[1:], one, one.scaled(-1.0), adjacency, unit),
            ]
        found += [Pair("a large and a small update" + tail, up, little, adjacency, unit)]
    return found


def lengths(size: int) -> Probe:
    return Probe("updates of growing length", "length", [Trained(plain(size, length)) for length in LENGTHS], LENGTHS)
