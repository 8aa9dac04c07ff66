"""Correlated noise for sums that are released round after round: factors of the prefix sum, and their sensitivity.

The matrix mechanism for streams: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, ICML 2021 (DP-FTRL); Denisov, McMahan,
Rush, Smith, Thakurta, NeurIPS 2022; Choquette-Choo, McMahan, Rush, Thakurta, ICML 2023 (several participations).

A factor is a lower triangular Toeplitz matrix C (T x T) with C[i, j] = c_(i-j), c_0 = 1 >= c_1 >= c_2 >= ... >= 0.
Of the sums s_1..s_T (d numbers each) the mechanism releases w = C s + z with independent normal z, and what is used is
C^-1 w = s + C^-1 z: every sum with noise that later rounds take back in part, so the error of the sum of all rounds so
far, which is where the model is, grows more slowly.

Privacy. A client takes part in at most k rounds, any two of them at least b apart (a pattern), with a vector of length
at most 1 in each; without it they are zero. Write u for a pattern's rounds (0 or 1 for each) and g_i for its vectors:

    ||C G||^2 = sum over i, j in the pattern of <C_i, C_j> <g_i, g_j> <= sum of <C_i, C_j> = ||C u||^2,

as entries are not negative, with equality where all g_i are the same unit vector. The columns satisfy, for i <= j and
m = j - i, <C_i, C_j> = sum for l < T - j of c_l c_(l+m): with m fixed it falls in j (fewer terms, none negative), and
with j fixed it falls in m (c falls). The n-th participation of a pattern cannot come before round (n-1) b (counted from
0), nor the n-th be nearer to the l-th than (n-l) b. So no pattern has larger products than {0, b, 2b, ...}, the first k
of them within T, and fewer participations have fewer terms. Hence

    sensitivity^2 = ||v||^2,   v_i = sum for n < k with n b <= i of c_(i - n b)  (Kalinin and Lampert 2024)

exactly. The same holds of the first t rounds alone, whose matrix is C's upper left block: they move by at most
(v_0^2 + ... + v_(t-1)^2)^(1/2). That what enters later depends on what was released before changes nothing for
independent normal noise and a lower triangular C (Denisov et al. 2022, Theorem 2.1).

bisr (banded inverse square root: Kalinin, McKenna, Upadhyay, Lampert 2025). C^-1 has p diagonals, the first p
coefficients of the square root of 1 - x: 1, -f_1, ..., -f_(p-1), all f_j > 0. So c_0 = 1, c_n = sum for 1 <= j < p of
f_j c_(n-j) > 0, and the proof above needs that c falls. Up to n = p - 1 no f_j is missing, so c is that of
`square_root`, which falls. For n >= p - 1, c_(n+1) - c_n = sum for 1 <= j < p of f_j (c_(n+1-j) - c_(n-j)), a positive
combination of the p - 1 differences before it, none of which is positive: by induction none ever is. What is remembered
is 2 (p - 1) vectors: with y = C s, y_i = s_i + sum of f_j y_(i-j), and what is used is w_i - sum of f_j w_(i-j).

Rounding. A round's sum s_i is of at most n vectors, and exact (`exact_sum`); its length is at most n C, with C the clip
norm. In float64 each s_j enters row i with at most 2 T + 8 roundings, two of each round and some at the end (a product
and an addition; with blt of each round of a buffer, too), so the computed row is off by at most gamma(2 T + 8) n C A_i,
A_i = c_0 + ... + c_i, gamma(m) = m 2^-53 / (1 - m 2^-53) (N. Higham, Accuracy and Stability of Numerical Algorithms,
chapter 3). bisr computes rows from rows, so errors enter later rows as sums do: (c * A)_i in the place of A_i. Two runs
of neighbours are each off by that, and move onto the noise's grid by at most sqrt(d T) steps apart: together

    C ||v|| + 2 gamma(2 T + 10) n C ||A|| + sqrt(d T) std / 2^36,

where 10 instead of 8 pays for the errors' own errors and those of ||v||. `MatrixMechanism.std_for` is sigma times that.

Symbols: c -> coefficients, v -> `moves`, f -> `recursion`, T -> rounds, k -> most, b -> apart, p -> bandwidth, n ->
clients, A -> `MatrixMechanism.rounding`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.noise import NoiseSource, add_normal_finely

Floats = NDArray[np.float64]
Name = Literal["identity", "sqrt", "banded", "bisr", "blt"]

#: Bandwidths that are tried where none is given.
_TRIED = 40


# --- factors --------------------------------------------------------------------------------------------------


def square_root(rounds: int) -> Floats:
    """Of the matrix of ones: c_j = binom(2j, j) / 4^j (Fichtenberger, Henzinger and Upadhyay 2023)."""
    steps = np.arange(1, rounds)
    return np.concatenate([np.ones(1), np.cumprod((2 * steps - 1) / (2 * steps))])


def recursion(bandwidth: int) -> Floats:
    """f_1..f_(p-1) of bisr: sqrt(1 - x) = 1 - sum of f_j x^j, f_1 = 1/2, f_(j+1) = f_j (2j - 1)/(2j + 2)."""
    steps = np.arange(1, bandwidth - 1)
    return np.concatenate([np.full(min(1, bandwidth - 1), 0.5), 0.5 * np.cumprod((2 * steps - 1) / (2 * steps + 2))])


def buffered(alphas: Floats, lambdas: Floats, rounds: int) -> Floats:
    """c_j = sum of alpha lambda^(j-1) from j = 1 on (a buffered linear Toeplitz matrix, Dvijotham et al. 2024)."""
    powers = lambdas[:, None] ** np.arange(rounds - 1)[None, :]
    return np.concatenate([np.ones(1), alphas @ powers])


@lru_cache(maxsize=64)
def coefficients(
    name: Name, rounds: int, most: int, apart: int, bandwidth: int | None = None, buffers: int = 3
) -> tuple[float, ...]:
    """c of a factor, as far as it is not zero. banded: the first ``bandwidth`` of `square_root` (None: as many as give
    the least `error`); bisr: the same of the inverse. blt: with ``buffers`` pairs (alpha, lambda), found by search for
    the least error.
    """
    if name == "identity" or rounds == 1:
        return (1.0,)
    if name == "sqrt":
        return tuple(square_root(rounds).tolist())
    if name in ("banded", "bisr"):
        chosen = bandwidth or best_width(name, rounds, most, apart)
        return tuple(_of_width(name, rounds, chosen).tolist())
    alphas, lambdas = blt_pairs(rounds, most, apart, buffers)
    return tuple(buffered(np.array(alphas), np.array(lambdas), rounds).tolist())


def _of_width(name: Name, rounds: int, width: int) -> Floats:
    """c of banded and bisr."""
    if name == "banded":
        return square_root(rounds)[:width]
    return inverse(np.concatenate([np.ones(1), -recursion(width)]), rounds)


@lru_cache(maxsize=64)
def best_width(name: Name, rounds: int, most: int, apart: int) -> int:
    """p of the least `error` among those that are tried."""
    return min(_bandwidths(rounds, apart), key=lambda width: error(_of_width(name, rounds, width), rounds, most, apart))


def _bandwidths(rounds: int, apart: int) -> list[int]:
    spread = np.geomspace(1, rounds, _TRIED).round().astype(int).tolist()
    return sorted({*spread, min(apart, rounds)})


@lru_cache(maxsize=64)
def blt_pairs(rounds: int, most: int, apart: int, buffers: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(alphas, lambdas) of the least error found. All alphas are positive and sum to less than 1, all lambdas are in
    (0, 1): so c falls, whatever the search ends at.
    """
    from scipy.optimize import minimize  # takes a second to import: only where needed

    def pairs(point: Floats) -> tuple[Floats, Floats]:
        shares = np.exp(np.clip(point[:buffers], -30, 30))
        return shares / (1 + shares.sum()), 1 / (1 + np.exp(-np.clip(point[buffers:], -30, 30)))

    def cost(point: Floats) -> float:
        return math.log(error(buffered(*pairs(point), rounds), rounds, most, apart))

    slow = np.geomspace(0.5, 1 / (2 * rounds), buffers)  # 1 - lambda: memories from two rounds to all of them
    start = np.concatenate([np.log(np.full(buffers, 0.5 / buffers) / 0.5), np.log((1 - slow) / slow)])
    found = minimize(cost, start, method="Nelder-Mead", options={"maxiter": 200 * buffers, "fatol": 1e-5}).x
    alphas, lambdas = pairs(found)
    return tuple(alphas.tolist()), tuple(lambdas.tolist())


# --- what they cost, and how good they are --------------------------------------------------------------------


def moves(factor: Floats | tuple[float, ...], rounds: int, most: int, apart: int) -> Floats:
    """v [T]: how far the worst pattern moves each row of C s, in units of the clip norm."""
    row = np.zeros(rounds)
    head = np.asarray(factor, np.float64)[:rounds]
    row[: head.size] = head
    total = np.zeros(rounds)
    for place in range(0, rounds, apart)[:most]:
        total[place:] += row[: rounds - place]
    return total


@lru_cache(maxsize=64)
def overlaps(factor: tuple[float, ...], rounds: int, most: int, apart: int) -> tuple[float, float]:
    """(largest <m_j, m_j>, largest <m_j, m_l> with j < l): m_j is how far the rows of C s are moved by a client that
    takes part in rounds j, j + b, ..., k of them at most, with the same unit vector, j < b.
    """
    first = moves(factor, rounds, most, apart)
    places = range(min(apart, rounds))
    rows = np.stack([np.pad(first[: rounds - place], (place, 0)) for place in places])
    products = rows @ rows.T
    between = products[np.triu_indices(len(rows), 1)]
    return float(products.diagonal().max()), float(between.max(initial=0.0))


def sensitivity(factor: Floats | tuple[float, ...], rounds: int, most: int, apart: int) -> float:
    """||C u|| of the worst pattern."""
    return float(np.linalg.norm(moves(factor, rounds, most, apart)))


def inverse(factor: Floats | tuple[float, ...], rounds: int) -> Floats:
    """First column of C^-1 [T]: the reciprocal of a power series, by Newton's steps x <- 2 x - c x^2."""
    row, found = np.asarray(factor, np.float64), np.ones(1)
    while found.size < rounds:
        size = min(2 * found.size, rounds)
        wrong = np.convolve(row[:size], np.convolve(found, found)[:size])[:size]
        found = np.pad(2 * found, (0, size - found.size)) - np.pad(wrong, (0, size - wrong.size))
    return found


def error(factor: Floats | tuple[float, ...], rounds: int, most: int, apart: int) -> float:
    """Root of the mean square error, over all rounds, of a coordinate of the sum so far, at noise multiplier 1 and clip
    norm 1.
    """
    rows = np.cumsum(inverse(factor, rounds))  # of the matrix of ones times C^-1, Toeplitz as well
    mean = float(np.sum((rounds - np.arange(rounds)) * rows**2)) / rounds
    return math.sqrt(mean) * sensitivity(factor, rounds, most, apart)


# --- the mechanism --------------------------------------------------------------------------------------------


class Past:
    """Sum for j >= 1 of c_j x_(i-j), of the vectors that were pushed."""

    def __init__(self, factor: tuple[float, ...]) -> None:
        self._weights = factor[1:]
        self._last: deque[Tensor] = deque(maxlen=len(self._weights))  # the newest first

    def sum(self, like: Tensor) -> Tensor:
        total = torch.zeros_like(like)
        for weight, vector in zip(self._weights, self._last, strict=False):
            total.add_(vector, alpha=weight)
        return total

    def push(self, vector: Tensor) -> None:
        if self._weights:
            self._last.appendleft(vector.clone())

    def vectors(self) -> list[Tensor]:
        return list(self._last)

    def load(self, vectors: list[Tensor]) -> None:
        self._last = deque(vectors, maxlen=len(self._weights))


class BufferedPast(Past):
    """The same for c_j = sum of alpha lambda^(j-1), from one buffer for each pair."""

    def __init__(self, alphas: tuple[float, ...], lambdas: tuple[float, ...]) -> None:
        super().__init__((1.0,))
        self._pairs = tuple(zip(alphas, lambdas, strict=True))
        self._buffers: list[Tensor] = []

    def sum(self, like: Tensor) -> Tensor:
        total = torch.zeros_like(like)
        for (alpha, _), buffer in zip(self._pairs, self._buffers, strict=False):
            total.add_(buffer, alpha=alpha)
        return total

    def push(self, vector: Tensor) -> None:
        if not self._buffers:
            self._buffers = [torch.zeros_like(vector) for _ in self._pairs]
        for (_, decay), buffer in zip(self._pairs, self._buffers, strict=True):
            buffer.mul_(decay).add_(vector)

    def vectors(self) -> list[Tensor]:
        return self._buffers

    def load(self, vectors: list[Tensor]) -> None:
        self._buffers = list(vectors)


class MatrixMechanism:
    """Takes the rounds' sums one after another. What it keeps between rounds is as secret as the sums.

    noise_multiplier: standard deviation / (clip norm * sensitivity), so that the whole run is one Gaussian release of
    this multiplier, whatever the factor is. clip_norm: length of one client's part of a sum. clients: most in a round.
    """

    def __init__(
        self,
        name: Name,
        rounds: int,
        most: int,
        apart: int,
        *,
        noise_multiplier: float,
        clip_norm: float,
        bandwidth: int | None = None,
        buffers: int = 3,
        clients: int = 1,
    ) -> None:
        factor = coefficients(name, rounds, most, apart, bandwidth, buffers)
        self.rounds, self.noise_multiplier = rounds, noise_multiplier
        self.std = noise_multiplier * clip_norm * sensitivity(factor, rounds, most, apart)
        self.most = clients * clip_norm  # length of a round's sum
        reached = np.convolve(moves(factor, rounds, rounds, 1), factor if name == "bisr" else (1.0,))[:rounds]
        gamma = (2 * rounds + 10) * 2.0**-53 / (1 - (2 * rounds + 10) * 2.0**-53)
        self.rounding = 2 * gamma * self.most * float(np.linalg.norm(reached))
        self.recursive = name == "bisr"  # then C^-1 has the band, and what is remembered is what came out
        if self.recursive:
            factor = (1.0, *recursion(bandwidth or best_width(name, rounds, most, apart)).tolist())
        pasts = []
        for _ in range(2):
            blt = name == "blt" and rounds > 1
            pasts.append(BufferedPast(*blt_pairs(rounds, most, apart, buffers)) if blt else Past(factor))
        self._sums, self._used = pasts

    def std_for(self, dimension: int) -> float:
        """Of z, with the price of rounding and of the grid (above, "Rounding")."""
        grid = self.noise_multiplier * math.sqrt(dimension * self.rounds) * 2.0**-36
        if grid >= 1:
            words = f"too much for {dimension} parameters in {self.rounds} rounds"
            raise OptionError("strategy.client.noise_multiplier", self.noise_multiplier, words)
        return (self.std + self.noise_multiplier * self.rounding) / (1 - grid)

    def release(self, total: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        """(row of w, the sum with its correlated noise): float64 [..., d] of the round's sum (float64 [..., d]).

        All that is released is the first, and the second is a function of the first ones so far.
        """
        row = total + self._sums.sum(total)
        released = add_normal_finely(row, self.std_for(total.shape[-1]), noise)
        used = released - self._used.sum(total)
        self._sums.push(row if self.recursive else total)
        self._used.push(released if self.recursive else used)
        return released, used

    def vectors(self) -> dict[str, Floats]:
        """What a checkpoint must hold."""
        return {
            f"{name}.{place:05d}": vector.numpy()
            for name, past in (("sums", self._sums), ("used", self._used))
            for place, vector in enumerate(past.vectors())
        }

    def load_vectors(self, vectors: Mapping[str, Floats]) -> None:
        """Takes back what `vectors` gave."""
        for name, past in (("sums", self._sums), ("used", self._used)):
            own = sorted(key for key in vectors if key.startswith(f"{name}."))
            past.load([torch.from_numpy(np.array(vectors[key], np.float64)) for key in own])


def exact_sum(parts: Iterable[Tensor], like: Tensor, most: float) -> Tensor:
    """Sum of clipped vectors (float32 [d]) in float64 that changes by exactly one part where one is left out: each is
    first moved, towards zero, onto a grid of which the sum's length, at most ``most``, is less than 2^52 steps.
    """
    step, total = math.ldexp(1.0, math.frexp(most)[1] - 52), torch.zeros_like(like, dtype=torch.float64)
    for part in parts:
        total += (part.double() / step).trunc_().mul_(step)
    return total
