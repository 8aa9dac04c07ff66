"""One-bit quantisation: LDP-FL, groups of Suresh et al. 2022, shared randomness (pairs: clients/coqfl.py).

Every coordinate becomes one bit whose marginal law is exact, whatever the dependence between clients' bits.

Symbols: c -> centre, r -> radius, eps -> epsilon (math.inf: no privacy), p -> probability of a high bit, A -> `step`,
M -> bits, N = 2^M, u -> cell (shared by a pair), pi(j) -> rank (of a member in its group), g -> size (of the group),
v -> own (private uniforms), mu -> private_share. Shapes: [..., d] coordinates; c and r broadcast against them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError

#: Coordinates of one piece of a long vector.
CHUNK = 2**15
#: Coordinates whose group is put in order at a time.
COLUMNS = 2**11


def tanh_half(epsilon: float) -> float:
    """tanh(eps/2) = h - l, the share of the interval that a probability may use; 1 without privacy."""
    return math.tanh(epsilon / 2)


def step(radius: Tensor | float, epsilon: float) -> Tensor | float:
    """A = r / tanh(eps/2): the distance of the two decoded values from the centre."""
    return radius / tanh_half(epsilon)  # [CoQ-FL, eq. 2]


def per_layer(radius: float | Sequence[float], layers: int) -> list[float]:
    """One radius for each named block. Raises `OptionError` for another number of them."""
    found = [float(radius)] * layers if isinstance(radius, int | float) else [float(value) for value in radius]
    if len(found) != layers:
        raise OptionError("strategy.client.radius", found, f"{len(found)} radii for {layers} named blocks")
    return found


def high_probability(values: Tensor, centre: Tensor | float, radius: Tensor | float, epsilon: float) -> Tensor:
    """p(w) [..., d] (float64) = 1/2 + (w - c)/(2r) tanh(eps/2) of values clamped to [c - r, c + r].

    Kept in [l, h] after rounding: a probability beyond them would cost more than eps. Raises ValueError unless r > 0.
    """
    if not bool((torch.as_tensor(radius) > 0).all()):
        raise ValueError("a radius must be positive")
    span = tanh_half(epsilon)
    high = 0.5 + span / 2
    p = values.double().sub(centre).mul_(0.5 * span / radius).add_(0.5)  # [CoQ-FL, eq. 2]
    return p.clamp_(1.0 - high, high)


def decode(bits: Tensor, centre: Tensor | float, radius: Tensor | float, epsilon: float) -> Tensor:
    """c + A for a high bit, c - A for a low one: unbiased for values within the interval, variance A^2 - (w - c)^2."""
    return centre + step(radius, epsilon) * (2 * bits - 1)


def clamped_share(values: Tensor, centre: Tensor | float, radius: Tensor | float) -> Tensor:
    """Fraction [...] of the coordinates outside [c - r, c + r]."""
    return ((values - centre).abs() > radius).double().mean(-1)


# --- bits ------------------------------------------------------------------------------------------------


def independent_bits(p: Tensor, own: Tensor) -> Tensor:
    """High where the client's own uniform v in (0, 1) lies below p: bool [..., d]."""
    return own < p


def group_bits(p: Tensor, rank: Tensor, own: Tensor, size: int) -> Tensor:
    """A member's bits, bool [..., d]: high where U = (pi(j) + v)/g lies below p. Ranks of a uniform permutation of the
    group make U uniform on (0, 1) and the bits of different members negatively dependent.
    """
    return (rank + own) / size < p  # [Suresh et al. 2022, Alg. 1]


# --- shared randomness -----------------------------------------------------------------------------------


def cells_of(stream: bytes, bits: int) -> Tensor:
    """u [d] in {0..2^M - 1} from a stream of d bytes (M <= 8) or 2 d bytes (M <= 16)."""
    words = np.frombuffer(stream, "<u1" if bits <= 8 else "<u2") & (2**bits - 1)
    return torch.from_numpy(words if bits <= 8 else words.astype(np.int32))


def ranks_of(stream: bytes, size: int, member: int) -> Tensor:
    """pi(j) [d] of member j from a stream of 8 g d bytes: its place among g random numbers per coordinate.

    Equal numbers (probability below g^2 / 2^65 a coordinate) are ordered by member, so ranks are always a permutation.
    """
    numbers = np.frombuffer(stream, "<u8").reshape(size, -1)  # member by member: no [d, g] array is ever sorted
    own = numbers[member]
    rank = np.zeros(own.size, np.int32)
    for other in range(size):
        if other != member:
            rank += (numbers[other] < own) if other > member else (numbers[other] <= own)
    return torch.from_numpy(rank)


def all_ranks(stream: bytes, size: int) -> Tensor:
    """pi [g, d]: what `ranks_of` gives each of the g members."""
    numbers = np.frombuffer(stream, "<u8").reshape(size, -1)
    ranks = np.empty(numbers.shape, np.int32)
    places = np.arange(size, dtype=np.int32)[np.newaxis]
    for start in range(0, numbers.shape[1], COLUMNS):
        order = np.argsort(numbers[:, start : start + COLUMNS].T, axis=1, kind="stable")
        own = np.empty(order.shape, np.int32)
        np.put_along_axis(own, order, places, 1)
        ranks[:, start : start + COLUMNS] = own.T
    return torch.from_numpy(ranks)


def cell_bytes(dimension: int, bits: int) -> int:
    """Length of the stream that `cells_of` reads."""
    return dimension * (1 if bits <= 8 else 2)


def rank_bytes(dimension: int, size: int) -> int:
    """Length of the stream that `ranks_of` reads."""
    return 8 * size * dimension


# --- the wire --------------------------------------------------------------------------------------------


def pack(bits: Tensor) -> NDArray[np.uint8]:
    """One bit per coordinate, [..., d] bool -> [..., ceil(d/8)] bytes; the last byte is filled with zeros."""
    return np.packbits(bits.numpy().astype(bool), axis=-1, bitorder="little")


def unpack(packed: NDArray[np.uint8], dimension: int) -> Tensor:
    """[d] bool from the bytes of `pack`. Raises ValueError for another length, or where the padding is not zero."""
    expected = -(-dimension // 8)
    if packed.dtype != np.uint8 or packed.shape != (expected,):
        raise ValueError(f"expected {expected} bytes for {dimension} bits, got {packed.dtype} {list(packed.shape)}")
    bits = np.unpackbits(packed, bitorder="little")
    if bits[dimension:].any():
        raise ValueError(f"bits after the last of {dimension} coordinates are set")
    return torch.from_numpy(bits[:dimension].astype(bool))


# --- closed forms ----------------------------------------------------------------------------------------


def group_covariance(p_a: Tensor, p_b: Tensor, size: int, step_length: float, private_share: float = 0.0) -> Tensor:
    """Covariance, at most 0, of what two members of a permutation group of g >= 2 decode to:
    -4 A^2 (1 - mu)^2 (S/g - p_a p_b) / (g - 1), with S = floor(g p_a) + f_a f_b where g p_a and g p_b lie in the same
    cell (f: their fractional parts) and S = g min(p_a, p_b) where they do not.

    Given its rank k a member is high with probability q_k(p) = clip(g p - k, 0, 1), and the sum of q_k over k is g p.
    Two members' ranks are uniform over the g (g - 1) ordered pairs of different ranks and their uniforms are their
    own, so P(high, high) = (g^2 p_a p_b - S)/(g (g - 1)) with S the sum over k of q_k(p_a) q_k(p_b); subtract p_a p_b.
    S/g is at least p_a p_b since both q fall with k (Chebyshev). Where a member uses its private uniform,
    the bits are independent with the same marginals: only the share (1 - mu)^2 remains.
    """
    t_a, t_b = size * p_a, size * p_b
    cell = t_a.floor()
    same_cell = cell + (t_a - cell) * (t_b - cell)
    both = torch.where(cell == t_b.floor(), same_cell, torch.minimum(t_a, t_b))
    return -4 * step_length**2 * (1 - private_share) ** 2 * (both / size - p_a * p_b) / (size - 1)
