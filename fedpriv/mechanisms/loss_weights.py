"""Aggregation weights of clients from their training losses (DP-FedAGS)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def loss_weights(examples: Sequence[int], losses: Sequence[float]) -> list[float]:
    """gamma_k = (n_k L + n L_k) / (2 n L), with n and L the sums; they sum to 1.

    Where all losses are zero the formula is undefined: n_k/n is used. Raises ValueError for a negative or infinite
    loss, NaN, a negative count, no examples at all, or lists of different length.
    """
    if len(examples) != len(losses):
        raise ValueError(f"{len(examples)} counts of examples, {len(losses)} losses")
    for loss in losses:
        if not (math.isfinite(loss) and loss >= 0):
            raise ValueError(f"a loss of {loss}: must be a finite number of at least 0")
    if min(examples, default=0) < 0 or sum(examples) == 0:
        raise ValueError(f"counts of examples {list(examples)}: must be at least 0 and not all 0")
    total = sum(examples)
    largest = max(losses)
    if largest == 0:
        return [count / total for count in examples]
    scaled = [loss / largest for loss in losses]  # their sum stays finite
    loss_sum = sum(scaled)
    pairs = zip(examples, scaled, strict=True)
    return [(count / total + loss / loss_sum) / 2 for count, loss in pairs]  # [DP-FedAGS, eq. 37]
