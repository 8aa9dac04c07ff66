"""Mechanisms that release the direction of a vector: u = x/|x| in R^d, and an estimate of u at the server.

| name | on the wire | E|estimate|^2 | private by |
|---|---|---|---|
| `privunit` | d numbers | 1/m^2 | a cap (`fedpriv.mechanisms.privunit`) |
| `projunit` | k numbers | (d - 1 + k E[T^2]) / (m c)^2, c = E|Au| | PrivUnit of Au/|Au|, A [k, d] Gaussian and public |
| `hadamard` | k numbers | d'/(k m^2), for d = d' | the same with k rows of H D, D random signs |
| `sketch` | b bits | (d b + b (b - 1) l 2/pi) / (b^2 l^2 2/pi) | randomised response among 2^b symbols |
| `sqkr` | b bits | 1.7^2 d/(b l^2) + about (1 - 1/b)/l | the same, of b coins (`fedpriv.mechanisms.unit_symbols`) |
| `gaussian` | d numbers | 1 + d std^2 | Gaussian noise, sensitivity 2 |

Each has `release` (the client's, with the noise), `decode` (the server's) and the price. What is sent is the release:
the estimate is post-processing. ``key`` addresses the public randomness; it must differ between clients and rounds, or
their errors would be the same, but hides nothing.

- projunit (Asi, Feldman and Talwar 2022): A u and the part of A orthogonal to u are independent, so E[A^T w] = u E|Au|
  for w = Au/|Au|, and E|A^T V|^2 = E|Au|^2 E[T^2] + d - 1: unbiased and exact for every u.
- hadamard: with Y = |S H D u|^2 d'/k, E<estimate, u> = E sqrt(Y). E Y = 1, and Var Y <= 2/k: the coordinates of H D u
  are sums of random signs, whose fourth moment is at most 3/d'^2 (Khintchine), and rows are drawn without replacement.
  As sqrt(y) >= 1 + (y - 1)/2 - (y - 1)^2/2, the estimate's mean along u is between 1 - 1/k and 1. It is not exactly u.
- sketch: the symbol holds the signs of b public Gaussian projections g_j of u; E[g sign<g, u>] = sqrt(2/pi) u. The
  true symbol stays with probability l, else a uniform one takes its place, l = (e^eps - 1)/(e^eps + 2^b - 1), so that
  the mean is u exactly. Its ratio takes three values, as PrivUnit's: `CapLaw`.
- sqkr: as sketch, of b randomly rounded coefficients of Kashin's representation. At equal bits its estimate is longer
  than a sketch's, which has pi/2 in the place of 1.7^2: no representation has coefficients below sqrt(pi/2)/sqrt(N) for
  every u in many dimensions, since E|<f, u>| is sqrt(2/pi)/sqrt(N).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.kashin import frame_size
from fedpriv.mechanisms.noise import NoiseSource, add_normal
from fedpriv.mechanisms.privunit import BLUR, Capped, Whole, direction, private_unit, release_unit
from fedpriv.mechanisms.privunit import UnitMechanism as UnitMechanism
from fedpriv.mechanisms.unit_projections import (
    Key,
    mean_length,
    project,
    project_back,
    project_fast,
    project_fast_back,
)
from fedpriv.mechanisms.unit_symbols import MOST_BITS, SQKR, SignSketch
from fedpriv.mechanisms.unit_symbols import best_bits as best_bits
from fedpriv.mechanisms.whole_numbers import padded


@dataclass(frozen=True)
class Projected(Capped):
    """ProjUnit: PrivUnit in R^k of a public Gaussian projection."""

    dimension: int

    @property
    def second_moment(self) -> float:
        cap = self.setting.cap
        blur = BLUR**2 * self.dimension if cap.dimension > 1 else 0.0
        square = self.dimension - 1 + cap.dimension * cap.mean_square + blur
        return square / (cap.mean * mean_length(cap.dimension)) ** 2

    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        return release_unit(self.projected(direction(vectors), key), self.setting, noise)

    def release_each(self, vectors: Tensor, keys: Sequence[Key], noise: NoiseSource) -> Tensor:
        rows = [self.projected(unit, key) for unit, key in zip(direction(vectors), keys, strict=True)]
        return release_unit(torch.stack(rows), self.setting, noise)

    def projected(self, units: Tensor, key: Key) -> Tensor:
        """Of unit vectors [..., d]: [..., k]."""
        return project(units, key, self.width)

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        return (project_back(sent, key, self.dimension) / mean_length(self.width)).float()


@dataclass(frozen=True)
class HadamardProjected(Projected):
    """ProjUnit with k rows of the randomised Hadamard transform. second_moment: the least upper bound over u where d is
    a power of two, an upper bound otherwise.
    """

    @property
    def second_moment(self) -> float:
        return self.setting.second_moment * padded(self.dimension) / self.width

    def projected(self, units: Tensor, key: Key) -> Tensor:
        return project_fast(units, key, self.width)

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        scale = math.sqrt(padded(self.dimension) / self.width)
        return (project_fast_back(sent, key, self.dimension) * scale).float()


@dataclass(frozen=True)
class GaussianUnit(UnitMechanism):
    """u + N(0, std^2 I), on the noise's grid: two unit vectors are 2 apart."""

    dimension: int
    std: float

    law = None

    @property
    def width(self) -> int:
        return self.dimension

    @property
    def second_moment(self) -> float:
        return 1.0 + self.dimension * self.std**2

    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        return add_normal(direction(vectors), self.std, noise)

    def release_each(self, vectors: Tensor, keys: Sequence[Key], noise: NoiseSource) -> Tensor:
        return add_normal(direction(vectors), self.std, noise)

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        return sent


def unit_mechanism(
    name: str, dimension: int, epsilon: float, projections: int = 64, bits: int | None = None, std: float = 0.0
) -> UnitMechanism:
    """The mechanism of this name whose release costs epsilon; std: of ``gaussian``, which has its own price.

    projections: k, of which no more than d are used (of the Hadamard form, d'). bits: None for the best; of sqkr
    no more than it has coefficients.
    Raises OptionError for a value that is not allowed.
    """
    if name == "privunit":
        return Whole(private_unit(dimension, epsilon))
    if name == "projunit":
        return Projected(private_unit(min(projections, dimension), epsilon), dimension)
    if name == "hadamard":
        return HadamardProjected(private_unit(min(projections, padded(dimension)), epsilon), dimension)
    if name in ("sketch", "sqkr"):
        if not 0 < epsilon <= 500:
            raise OptionError("epsilon", epsilon, "must be more than 0 and at most 500")
        if bits is not None and not 1 <= bits <= MOST_BITS:
            raise OptionError("bits", bits, f"must be from 1 to {MOST_BITS}")
        if name == "sketch":
            return SignSketch(dimension, epsilon, best_bits(epsilon) if bits is None else bits)
        most = min(MOST_BITS, frame_size(dimension))
        return SQKR(dimension, epsilon, best_bits(epsilon, most) if bits is None else min(bits, most))
    if name == "gaussian":
        return GaussianUnit(dimension, std)
    raise OptionError("mechanism", name, "must be privunit, projunit, hadamard, sketch, sqkr or gaussian")
