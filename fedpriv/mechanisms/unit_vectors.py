"""Mechanisms that release the direction of a vector: u = x/|x| in R^d, and an estimate of u at the server.

| name | on the wire | E|estimate|^2 | private by |
|---|---|---|---|
| `privunit` | d numbers | 1/m^2 | a cap (`fedpriv.mechanisms.privunit`) |
| `projunit` | k numbers | (d - 1 + k E[T^2]) / (m c)^2, c = E|Au| | PrivUnit of Au/|Au|, A [k, d] Gaussian and public |
| `sqkr` | b bits | 1.7^2 d/(b l^2) + about (1 - 1/b)/l | randomised response, `fedpriv.mechanisms.unit_symbols` |
| `gaussian` | d numbers | 1 + d std^2 | Gaussian noise, sensitivity 2 |

Each has `release` (the client's, with the noise), `decode` (the server's) and the price. What is sent is the release:
the estimate is post-processing. ``key`` addresses the public randomness; it must differ between clients and rounds, or
their errors would be the same, but hides nothing.

- projunit (Asi, Feldman and Talwar 2022): A u and the part of A orthogonal to u are independent, so E[A^T w] = u E|Au|
  for w = Au/|Au|, and E|A^T V|^2 = E|Au|^2 E[T^2] + d - 1: unbiased and exact for every u.
- sqkr: the symbol holds b randomly rounded coefficients of Kashin's representation. The true symbol stays with
  probability l, else a uniform one takes its place, l = (e^eps - 1)/(e^eps + 2^b - 1), so that the mean is u exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.kashin import frame_size
from fedpriv.mechanisms.noise import NoiseSource, add_normal
from fedpriv.mechanisms.privunit import BLUR, Capped, Whole, direction, private_unit, release_unit
from fedpriv.mechanisms.privunit import UnitMechanism as UnitMechanism
from fedpriv.mechanisms.unit_projections import Key, mean_length, project, project_back
from fedpriv.mechanisms.unit_symbols import MOST_BITS, SQKR
from fedpriv.mechanisms.unit_symbols import best_bits as best_bits


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
        return release_unit(project(direction(vectors), key, self.width), self.setting, noise)

    def release_each(self, vectors: Tensor, keys: Sequence[Key], noise: NoiseSource) -> Tensor:
        rows = [project(unit, key, self.width) for unit, key in zip(direction(vectors), keys, strict=True)]
        return release_unit(torch.stack(rows), self.setting, noise)

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        return (project_back(sent, key, self.dimension) / mean_length(self.width)).float()


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

    projections: k, of which no more than d are used. bits: None for the best; no more than there are coefficients.
    Raises OptionError for a value that is not allowed.
    """
    if name == "privunit":
        return Whole(private_unit(dimension, epsilon))
    if name == "projunit":
        return Projected(private_unit(min(projections, dimension), epsilon), dimension)
    if name == "sqkr":
        if not 0 < epsilon <= 500:
            raise OptionError("epsilon", epsilon, "must be more than 0 and at most 500")
        if bits is not None and not 1 <= bits <= MOST_BITS:
            raise OptionError("bits", bits, f"must be from 1 to {MOST_BITS}")
        most = min(MOST_BITS, frame_size(dimension))
        return SQKR(dimension, epsilon, best_bits(epsilon, most) if bits is None else min(bits, most))
    if name == "gaussian":
        return GaussianUnit(dimension, std)
    raise OptionError("mechanism", name, "must be privunit, projunit, sqkr or gaussian")
