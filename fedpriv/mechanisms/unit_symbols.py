"""Unit vectors in a few bits: signs that a public key picks, sent by randomised response among their 2^b patterns.

The true symbol stays with probability l, else a uniform one takes its place, l = (e^eps - 1)/(e^eps + 2^b - 1). Of
given signs, the ratio of two inputs' probabilities takes the values e^eps, 1, e^-eps, as PrivUnit's does (`CapLaw`).
The client's own coins have part in the signs, so the law of a release is a mixture of such laws with weights that
depend on u. sup_S P(S) - e^t P'(S) is convex in the pair of weights, so no pair is worse than two symbols without
coins, and the same `CapLaw` holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.mechanisms.kashin import frame_size, kashin, level_of, synthesis
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.privunit import CapLaw, UnitMechanism, direction, uniform_of
from fedpriv.mechanisms.unit_projections import Key, drawn_places

#: Most bits of a symbol: they are counted in a double.
MOST_BITS = 16


@dataclass(frozen=True)
class SQKR(UnitMechanism):
    """Subsampled and quantised Kashin's response (Chen, Kairouz and Ozgur 2020): b public coordinates of Kashin's
    representation, each rounded to one of two values by a coin of the client's.

    With frame coefficients a_1..a_N of u, |a_i| <= c = K/sqrt(N), and b coordinates s_1..s_b drawn without replacement,
    bit j is +1 with probability (1 + a_{s_j}/c)/2. Its mean over coins and response is l a_{s_j}/c, so the estimate
    N c/(b l) sum_j bit_j f_{s_j}, with f_i the frame's vectors, has the mean sum_i a_i f_i = u. Beyond c, which no
    coefficient was seen to be, a_i would be cut off (`fedpriv.mechanisms.kashin`).
    """

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

    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        symbol = self.signs(direction(vectors), key, noise).numpy() @ (1 << np.arange(self.bits))
        words = noise.integers(0, 2**32, (*symbol.shape, _words(self.epsilon, self.bits)))
        uniform = noise.integers(0, 2**self.bits, symbol.shape).numpy()
        sent = np.where(uniform_of(words) < self.replaced, uniform, symbol)
        digits = (sent[..., None] >> np.arange(self.bits)) & 1
        return torch.from_numpy(np.packbits(digits.astype(np.uint8), axis=-1, bitorder="little"))

    def received(self, sent: Tensor) -> Tensor:
        """+1 and -1 (float64 [..., b])."""
        return torch.from_numpy(2.0 * np.unpackbits(sent.numpy(), axis=-1, count=self.bits, bitorder="little") - 1.0)

    @property
    def size(self) -> int:
        """N."""
        return frame_size(self.dimension)

    @property
    def level(self) -> float:
        """K."""
        return level_of(self.dimension)

    @property
    def second_moment(self) -> float:
        """Of estimates of a u whose coefficients have a length of one; of others it is less, since |a|^2 >= |u|^2.

        |f_i|^2 = d/N, the response keeps the whole symbol with probability l, and coins are independent:
        (N c/(b l))^2 [b d/N + l b (b - 1)/(N (N - 1)) sum_{i != j} a_i a_j <f_i, f_j>/c^2].
        """
        size, b, d = self.size, self.bits, self.dimension
        crossed = size * (b - 1) / (b * (size - 1) * self.kept) * (1 - d / size) if size > 1 else 0.0
        return self.level**2 * d / (b * self.kept**2) + crossed

    def signs(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        """The true signs (bool [..., b], true for +1) of unit vectors (float64 [..., d]); noise: for the coins."""
        alike = vectors.ndim == 2 and bool((vectors == vectors[:1]).all())  # the auditor's trials: decomposed once
        chosen = kashin(vectors[:1] if alike else vectors, key)[..., drawn_places(key, self.bits, self.size)]
        chosen = chosen.expand(*vectors.shape[:-1], -1)
        return noise.uniform(chosen.shape).double() < (1 + chosen * (math.sqrt(self.size) / self.level)) / 2

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        coefficients = torch.zeros((*sent.shape[:-1], self.size), dtype=torch.float64)
        scale = math.sqrt(self.size) * self.level / (self.bits * self.kept)  # N c / (b l)
        coefficients[..., drawn_places(key, self.bits, self.size)] = scale * self.received(sent)
        return synthesis(coefficients, key, self.dimension).float()


def _replaced(epsilon: float, bits: int) -> float:
    return 2.0**bits / (math.exp(epsilon) + 2.0**bits - 1.0)


def _words(epsilon: float, bits: int) -> int:
    """So many that the probability of a replacement is exact to 2^-60 of itself; 25 for the largest epsilon."""
    return math.ceil((60 - math.log2(_replaced(epsilon, bits))) / 32)


def best_bits(epsilon: float, most: int = MOST_BITS) -> int:
    """The bits whose estimate is shortest: of b l^2, up to ``most``."""
    return max(range(1, most + 1), key=lambda b: b * (1 - _replaced(epsilon, b)) ** 2)
