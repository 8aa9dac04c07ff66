"""What the rounds of a matrix mechanism cost (the proof for known cohorts: `fedpriv.mechanisms.matrix_factors`).

**Amplified bands** (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu: (Amplified) Banded Matrix
Factorization, NeurIPS 2023, Theorem 4). C has b diagonals. The clients are in b groups, fixed and public; round i draws
from group i mod b alone, each of its clients with probability q = b K/N by a coin that only the server sees.

A client of group j can take part in the rounds i = j, j + b, ... Its vector of such a round moves rows i..i + b - 1 of
C s, and the blocks of different rounds i share no row. Fix the other clients' coins and all batches; given the rows
before the block, these are known: what others and earlier rounds add to row i, and the client's vector g, |g| <= C's
unit. Given rows of the block so far, so is what others add to the next. So, up to shifts that are functions of what was
released and the same with and without the client, the block is

    with probability q   N((c_0 g, c_1 g, ..., c_(b-1) g), s^2 I),   else   N(0, s^2 I),

and N(0, s^2 I) without the client: a Gaussian over a Poisson sample of rate q, of a vector no longer than ||c||. With
s = sigma ||c|| its multiplier is sigma. A block that the run's end cuts is post-processing of a whole one, and a state
that the client keeps, which may tell earlier coins, is mixed over (joint convexity). Blocks compose adaptively, their
coins being independent: a client costs ceil((T - j)/b) <= ceil(T/b) such events, and after t rounds at most ceil(t/b).
So one is booked with the first of every b rounds, for every client.

Where a resumed run cannot repeat its rounds, it draws and releases those after the checkpoint anew. A client has at
most one block across the checkpoint, whose last rows are released once more under the same coin: given what was
released before they are at most a Gaussian of multiplier sigma, whatever the coin was. The first b rounds of a resumed
run are therefore charged as two Gaussians of multiplier sigma, one for these rows and one, of every rate, for the new
block; later ones as above.

Symbols: c -> coefficients, q -> rate, b -> groups, K -> clients_per_round, N -> num_clients, T -> rounds.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fedpriv.mechanisms.matrix_factors import Name, coefficients, moves
from fedpriv.privacy.events import Event, Gaussian, PoissonGaussian
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS


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
    v = moves(coefficients(name, rounds, most, apart, bandwidth, buffers), rounds, most, apart)
    length = math.sqrt(math.fsum((v * v).tolist()))
    return tuple(
        Gaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier * (length / move) if move else math.inf)
        for move in v.tolist()
    )


@lru_cache(maxsize=64)
def group_events(
    rounds: int, groups: int, clients_per_round: int, num_clients: int, noise_multiplier: float
) -> tuple[Event | None, ...]:
    """Events [T] of amplified bands: one of the first round of every b, None of the others."""
    rate = min(1.0, groups * clients_per_round / max(1, num_clients))
    event = PoissonGaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier, sampling_rate=rate)
    return tuple(None if place % groups else event for place in range(rounds))


def again_event(noise_multiplier: float) -> Gaussian:
    """Of the first b rounds of a resumed run whose groups are drawn anew."""
    return Gaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier / math.sqrt(2))
