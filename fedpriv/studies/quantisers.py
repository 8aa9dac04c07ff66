"""The quantisers of the project as estimators of a mean, and the closed forms of their errors.

n clients hold one vector each, [n, d] with coordinates in [-r, r]. Every client sends one bit per coordinate; the
server averages what the bits decode to. Neighbours form the pairs and groups; who is left over forms a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedpriv.common.places import load_module
from fedpriv.mechanisms import laws, quantisation
from fedpriv.privacy.event_costs import pure_epsilon
from fedpriv.privacy.events import CLIENT_TO_SERVER, PairedQuantisation

#: Random numbers of a group's shared stream that are held at a time.
STREAM = 2**18

#: Where the bits of pairs and groups are.
COQFL = load_module("clients.coqfl")


@dataclass(frozen=True)
class Quantiser:
    """One way to turn the vectors of n clients into bits.

    group_size: 1 independent bits, 2 the antithetic pair (``bits``: M), more a permutation's ranks; private_share: mu.
    antithetic: whether a group of two is that pair, or a permutation of two (Suresh et al. 2022).
    """

    name: str
    epsilon: float
    group_size: int = 1
    bits: int = 8
    private_share: float = 0.0
    antithetic: bool = True

    @property
    def independent_weight(self) -> float:
        """lambda = 1 - (1 - mu)^2."""
        return 1 - (1 - self.private_share) ** 2

    def groups(self, clients: int) -> list[slice]:
        """Neighbours, ``group_size`` at a time."""
        return [slice(first, min(first + self.group_size, clients)) for first in range(0, clients, self.group_size)]

    def joint_epsilon(self, observer: str) -> float:
        """Of one coordinate of one member against ``observer`` (server or server+members), who sees every bit."""
        if self.group_size == 1 or math.isinf(self.epsilon):
            return self.epsilon
        event = PairedQuantisation(
            threat=replace(CLIENT_TO_SERVER, observer=observer),
            epsilon=self.epsilon,
            private_share=self.private_share,
            bits=self.bits,
            group_size=self.group_size,
        )
        return pure_epsilon(event)


def quantisers(epsilon: float, bits: int, private_share: float, sizes: Sequence[int], clients: int) -> list[Quantiser]:
    """Every quantiser of the project; ``sizes`` of the permutation groups (the pair is always there)."""
    grouped = [Quantiser("coqfl", epsilon, 2, bits)]
    grouped += [Quantiser(f"coqfl-g{size}", epsilon, size) for size in sizes if size > 2]
    repaired = [replace(one, name=f"{one.name}-repaired", private_share=private_share) for one in grouped]
    return [
        Quantiser("ldpfl", epsilon),
        Quantiser("sq", math.inf),
        *(one for both in zip(grouped, repaired, strict=True) for one in both),
        Quantiser("corrquant", math.inf, clients, antithetic=False),
    ]


# --- what happens ----------------------------------------------------------------------------------------


def _bits(quantiser: Quantiser, p: Tensor, trials: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Bits, each [trials, d], of one group's members with probabilities p [g, d]; rng draws the shared stream too."""
    size, dimension = p.shape
    draws = trials * dimension
    mu = quantiser.private_share
    if size == 1:
        yield quantisation.independent_bits(p[0], _uniforms(trials, dimension, rng))
    elif size == 2 and quantiser.antithetic:
        stream = rng.bytes(quantisation.cell_bytes(draws, quantiser.bits))
        cell = quantisation.cells_of(stream, quantiser.bits).reshape(trials, dimension)
        for member in range(size):
            own = _uniforms(trials, dimension, rng)
            yield COQFL.mixed_pair_bits(p[member], cell, own, quantiser.bits, member == 0, mu)
    else:
        stream = rng.bytes(8 * size * draws)
        for member in range(size):
            rank = quantisation.ranks_of(stream, size, member).reshape(trials, dimension)
            yield COQFL.mixed_group_bits(p[member], rank, _uniforms(trials, dimension, rng), size, mu)


def _uniforms(trials: int, dimension: int, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.random((trials, dimension)))


def estimate(quantiser: Quantiser, values: Tensor, radius: float, trials: int, rng: np.random.Generator) -> Tensor:
    """Independent estimates [trials, d] of the mean of ``values`` [n, d]."""
    clients, dimension = values.shape
    p = quantisation.high_probability(values, 0.0, radius, quantiser.epsilon)
    total = torch.zeros(trials, dimension, dtype=torch.float64)
    for members in quantiser.groups(clients):
        for bits in _bits(quantiser, p[members], trials, rng):
            total += quantisation.decode(bits.double(), 0.0, radius, quantiser.epsilon)
    return total / clients


def squared_errors(
    quantiser: Quantiser, values: Tensor, radius: float, trials: int, rng: np.random.Generator
) -> Tensor:
    """Mean squared error per coordinate of each of ``trials`` independent estimates: [trials]."""
    width = max(1, min(quantisation.CHUNK, STREAM // quantiser.group_size))
    errors = torch.zeros(trials, dtype=torch.float64)
    for columns in values.split(width, dim=1):
        mean = columns.mean(0)
        for rows in errors.split(max(1, width // columns.shape[1])):  # views: trials are further coordinates
            rows.add_((estimate(quantiser, columns, radius, len(rows), rng) - mean).square().sum(1))
    return errors / values.shape[1]


# --- what must happen ------------------------------------------------------------------------------------


def expected_error(quantiser: Quantiser, values: Tensor, radius: float) -> float:
    """Closed form of the mean squared error per coordinate of the estimated mean of ``values`` [n, d]:
    (sum of A^2 - w_i^2 over clients + 2 * sum of the covariances over pairs within a group) / n^2, mean over d.
    """
    clients, dimension = values.shape
    p = quantisation.high_probability(values, 0.0, radius, quantiser.epsilon)
    step = float(quantisation.step(radius, quantiser.epsilon))
    error = float((step**2 - values.square()).sum())
    error += 2 * sum(_covariances(quantiser, p[members], step) for members in quantiser.groups(clients))
    rounding = 1e-13 * step**2 * values.numel()  # of the largest error there is: what is below it is zero
    return error / (clients**2 * dimension) if error > rounding else 0.0


def _covariances(quantiser: Quantiser, p: Tensor, step: float) -> float:
    """Sum over coordinates and over pairs of members of what one group with probabilities p [g, d] decodes to."""
    size = len(p)
    if size == 2 and quantiser.antithetic:
        first, second = p.numpy()
        both = laws.both_high(first, second, quantiser.independent_weight, quantiser.bits)
        return 4 * step**2 * float((both - first * second).sum())
    pairs = ((p[index], p[index + 1 :]) for index in range(size - 1))
    mu = quantiser.private_share
    return sum(float(quantisation.group_covariance(one, rest, size, step, mu).sum()) for one, rest in pairs)
