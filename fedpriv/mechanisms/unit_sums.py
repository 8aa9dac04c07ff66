"""Exact sums of vectors of length at most 1: what one of them changes is its own length, however many others there are.

**Why.** Each vector v [d] is clipped to length 1, scaled by `KEPT` and cut toward zero to multiples of 2^-32, which
makes no coordinate larger. So |c| <= KEPT (1 + (d + 4) 2^-53) < 1 - 2^-12 for d up to 2^16, and a vector with a number
that is not finite counts as zero. The cut vectors are added as whole numbers of 64 bits: exactly, in any order, without
overflow up to 2^30 of them. A vector more or less changes the sum by that vector and nothing else, which is what
`fedpriv.privacy.row_sum` asks of a site's sum (its excess is 0). `as_numbers` rounds a sum of n vectors to 53 bits: two
sums differ by n 2^-52 sqrt(d) more, below 2^-13 for the n sqrt(d) <= 2^39 that the grid admits, and
1 - 2^-11 + 2^-37 + 2^-13 < 1 - 2^-12.
"""

from __future__ import annotations

import numpy as np

#: 1 - 2^-11: room for rounding beside a sum. Who reads a sum divides by it.
KEPT = 1 - 2.0**-11
#: Vectors are whole multiples of 1/PARTS.
PARTS = 2.0**32
#: Vectors in a sum at most.
MOST_VECTORS = 1 << 30


def add_units(total: np.ndarray, vectors: np.ndarray) -> None:
    """Adds vectors (float64 [m, d]), each as above, to a sum in multiples of 1/PARTS (int64 [d])."""
    finite = np.isfinite(vectors).all(axis=1, keepdims=True)
    vectors = np.where(finite, vectors, 0.0)
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=1.0)  # the square of a huge number is not finite
    vectors = vectors / largest
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scale = np.minimum(largest, 1 / np.maximum(lengths, 1e-300)) * KEPT
    total += np.trunc(vectors * scale * PARTS).astype(np.int64).sum(axis=0)


def as_numbers(total: np.ndarray) -> np.ndarray:
    """float64 [d] of a sum in multiples of 1/PARTS."""
    return total / PARTS
