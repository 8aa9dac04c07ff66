"""What the rounds of a matrix mechanism cost, one event each (the proof: `fedpriv.mechanisms.matrix_factors`)."""

from __future__ import annotations

import math
from functools import lru_cache

from fedpriv.mechanisms.matrix_factors import Name, coefficients, moves
from fedpriv.privacy.events import Gaussian, Threat


@lru_cache(maxsize=64)
def round_events(
    name: Name, rounds: int, most: int, apart: int, noise_multiplier: float, bandwidth: int | None, buffers: int
) -> tuple[Gaussian, ...]:
    """Events [T] of which the first t compose to what the first t rounds cost, for every t.

    These move by (v_0^2 + ... + v_(t-1)^2)^(1/2) under noise of sigma ||v||, and Gaussians compose by the sum of
    squares: so round i is booked as a Gaussian of multiplier sigma ||v|| / v_i. A round that adds nothing to the worst
    pattern so far costs nothing (infinite). The events are increments: no other set of rounds than the first t has the
    price of its own.
    """
    threat = Threat("client", "add-or-remove-one", "trusted-server")
    v = moves(coefficients(name, rounds, most, apart, bandwidth, buffers), rounds, most, apart)
    length = math.sqrt(math.fsum((v * v).tolist()))
    return tuple(
        Gaussian(threat=threat, multiplier=noise_multiplier * (length / move) if move else math.inf)
        for move in v.tolist()
    )
