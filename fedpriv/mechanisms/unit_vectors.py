"""Mechanisms that release the direction of a vector: u = x/|x| in R^d, and an estimate of u at the server.

| name | on the wire | E|estimate|^2 | private by |
|---|---|---|---|
| `privunit` | d numbers | 1/m^2 | a cap (`fedpriv.mechanisms.privunit`) |
| `projunit` | k numbers | (d - 1 + k E[T^2]) / (m c)^2, c = E|Au| | PrivUnit of Au/|Au|, A [k, d] Gaussian and public |
| `hadamard` | k numbers | d'/(k m^2), for d = d' | the same with k rows of H D, D random signs |
| `sketch` | b bits | (d b + b (b - 1) l 2/pi) / (b^2 l^2 2/pi) | randomised response among 2^b symbols |
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
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.level_quantisation import padded
from fedpriv.mechanisms.noise import NoiseSource, add_normal
from fedpriv.mechanisms.privunit import (
    BLUR,
    CapLaw,
    PrivUnit,
    direction,
    private_unit,
    release_unit,
    uniform_of,
)
from fedpriv.mechanisms.unit_projections import (
    Key,
    mean_length,
    project,
    project_back,
    project_fast,
    project_fast_back,
)

#: Most bits of a sketch: the symbols of randomised response are counted in a double.
MOST_BITS = 16
_SIGN_MEAN = math.sqrt(2 / math.pi)  # E|N(0, 1)|


class UnitMechanism(ABC):
    """law: what a release costs; None: a Gaussian's, which its standard deviation says."""

    law: CapLaw | None

    @abstractmethod
    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        """What is sent for vectors [..., d], of which the direction alone counts: [..., numbers or bytes]."""

    @abstractmethod
    def decode(self, sent: Tensor, key: Key) -> Tensor:
        """The estimate of u (float32 [..., d])."""

    @property
    @abstractmethod
    def second_moment(self) -> float:
        """E|estimate|^2."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Length of what is sent."""

    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Whole(UnitMechanism):
    """PrivUnit in R^d."""

    setting: PrivUnit

    @property
    def law(self) -> CapLaw:  # type: ignore[override]
        return self.setting.law

    @property
    def width(self) -> int:
        return self.setting.cap.dimension

    @property
    def second_moment(self) -> float:
        return self.setting.second_moment

    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        return release_unit(vectors, self.setting, noise)

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        return sent


@dataclass(frozen=True)
class Projected(UnitMechanism):
    """ProjUnit: PrivUnit in R^k of a public Gaussian projection."""

    setting: PrivUnit
    dimension: int

    @property
    def law(self) -> CapLaw:  # type: ignore[override]
        return self.setting.law

    @property
    def width(self) -> int:
        return self.setting.cap.dimension

    @property
    def second_moment(self) -> float:
        cap = self.setting.cap
        blur = BLUR**2 * self.dimension if cap.dimension > 1 else 0.0
        square = self.dimension - 1 + cap.dimension * cap.mean_square + blur
        return square / (cap.mean * mean_length(cap.dimension)) ** 2

    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        return release_unit(project(direction(vectors), key, self.width), self.setting, noise)

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

    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        return release_unit(project_fast(direction(vectors), key, self.width), self.setting, noise)

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        scale = math.sqrt(padded(self.dimension) / self.width)
        return (project_fast_back(sent, key, self.dimension) * scale).float()


@dataclass(frozen=True)
class SignSketch(UnitMechanism):
    """b signs of public projections, by randomised response among 2^b symbols."""

    dimension: int
    epsilon: float
    bits: int

    dtype = torch.uint8

    @property
    def kept(self) -> float:
        """l: the probability that the true symbol is not replaced by a uniform one."""
        return 1.0 - self.replaced

    @property
    def replaced(self) -> float:
        return _replaced(self.epsilon, self.bits)

    @property
    def law(self) -> CapLaw:  # type: ignore[override]
        """Drawn from whole words: exact, but for the threshold's rounding, less than 2^-50 of it."""
        return CapLaw(self.epsilon + 2.0**-48, self.kept + self.replaced * 2.0**-self.bits)

    @property
    def width(self) -> int:
        return -(-self.bits // 8)

    @property
    def second_moment(self) -> float:
        b, square = self.bits, _SIGN_MEAN**2
        return (self.dimension * b + b * (b - 1) * self.kept * square) / (b * b * self.kept**2 * square)

    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        signs = (project(direction(vectors), key, self.bits) >= 0).numpy()  # bool [..., b]
        symbol = signs @ (1 << np.arange(self.bits))
        words = noise.integers(0, 2**32, (*symbol.shape, _sketch_words(self.epsilon, self.bits)))
        uniform = noise.integers(0, 2**self.bits, symbol.shape).numpy()
        sent = np.where(uniform_of(words) < self.replaced, uniform, symbol)
        digits = (sent[..., None] >> np.arange(self.bits)) & 1
        return torch.from_numpy(np.packbits(digits.astype(np.uint8), axis=-1, bitorder="little"))

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        digits = np.unpackbits(sent.numpy(), axis=-1, count=self.bits, bitorder="little")
        signs = torch.from_numpy(2.0 * digits - 1.0)
        return (project_back(signs, key, self.dimension) / (self.bits * self.kept * _SIGN_MEAN)).float()


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

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        return sent


def _replaced(epsilon: float, bits: int) -> float:
    return 2.0**bits / (math.exp(epsilon) + 2.0**bits - 1.0)


def _sketch_words(epsilon: float, bits: int) -> int:
    """So many that the probability of a replacement is exact to 2^-60 of itself."""
    return min(31, math.ceil((60 - math.log2(_replaced(epsilon, bits))) / 32))


def best_bits(epsilon: float) -> int:
    """The bits whose estimate is shortest: of b l^2, up to `MOST_BITS`."""
    return max(range(1, MOST_BITS + 1), key=lambda b: b * (1 - _replaced(epsilon, b)) ** 2)


def unit_mechanism(
    name: str, dimension: int, epsilon: float, projections: int = 64, bits: int | None = None, std: float = 0.0
) -> UnitMechanism:
    """The mechanism of this name whose release costs epsilon; std: of ``gaussian``, which has its own price.

    projections: k, of which no more than d are used (of the Hadamard form, d'). bits: None for the best.
    Raises OptionError for a value that is not allowed.
    """
    if name == "privunit":
        return Whole(private_unit(dimension, epsilon))
    if name == "projunit":
        return Projected(private_unit(min(projections, dimension), epsilon), dimension)
    if name == "hadamard":
        return HadamardProjected(private_unit(min(projections, padded(dimension)), epsilon), dimension)
    if name == "sketch":
        if not 0 < epsilon <= 500:
            raise OptionError("epsilon", epsilon, "must be more than 0 and at most 500")
        if bits is not None and not 1 <= bits <= MOST_BITS:
            raise OptionError("bits", bits, f"must be from 1 to {MOST_BITS}")
        return SignSketch(dimension, epsilon, best_bits(epsilon) if bits is None else bits)
    if name == "gaussian":
        return GaussianUnit(dimension, std)
    raise OptionError("mechanism", name, "must be privunit, projunit, hadamard, sketch or gaussian")
