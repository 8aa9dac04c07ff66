"""The grid of ddgauss and skellam: what client and server must agree on so that whole numbers add up to a mean.

Lengths are in units of the clip norm C, so that C may move from round to round and no event with it.
Symbols: gamma -> step, sigma -> multiplier (standard deviation of one client's noise / C), b -> bits, n -> clients,
d' -> padded, g = C/gamma, G^2 -> most_square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.integer_noise import discrete_gaussian, skellam
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.whole_numbers import (
    conditional_round,
    rotate_blocks,
    rotate_blocks_back,
    rotated_size,
    rounded_square,
)
from fedpriv.privacy.events import CLIENT_TO_SERVER, DiscreteGaussianSum, SkellamSum, Threat

Law = Literal["gaussian", "skellam"]

#: Half of the modulus in standard deviations of a sum's coordinate, for n vectors of norm C that all point the same
#: way: beyond it a number comes back on the other side, which costs accuracy and no privacy.
SPREAD = 5.0
#: Largest noise of one client in grid steps: a finer grid gains nothing, and its table of the law would be large.
MOST_STEPS = 2.0**16


@dataclass(frozen=True)
class SumGrid:
    """dimension: d; clients: n, of a round; statistics: the noise (standard deviation / range) of each number that
    travels beside the vector.
    """

    law: Law
    dimension: int
    clients: int
    bits: int
    multiplier: float
    statistics: tuple[float, ...] = ()

    @property
    def padded(self) -> int:
        return rotated_size(self.dimension)

    @property
    def numbers(self) -> int:
        """Whole numbers of one release."""
        return self.padded + len(self.statistics)

    @cached_property
    def step(self) -> float:
        """gamma/C: 2^(b-1) gamma is `SPREAD` standard deviations of a coordinate of the sum, whose variance is at most
        n^2 C^2/d' of the vectors (over random signs), n sigma^2 of the noises and n gamma^2/4 of rounding.
        [Kairouz et al. 2021, section 5]

        Raises `OptionError` for too few bits to add so many clients at all.
        """
        n = self.clients
        left = 4.0 ** (self.bits - 1) - SPREAD**2 * n / 4
        if left <= 0:
            raise OptionError("strategy.server.bits", self.bits, f"sums of {n} clients need more")
        wanted = SPREAD * math.sqrt((n * n / self.padded + n * self.multiplier**2) / left)
        return max(wanted, self.multiplier / MOST_STEPS)

    @property
    def sigma(self) -> float:
        """Standard deviation of one client's noise in grid steps."""
        return self.multiplier / self.step

    @cached_property
    def most_square(self) -> int:
        """G^2: no client's whole numbers are longer, whatever its data are."""
        return rounded_square(1 / self.step, self.padded)

    def statistic_steps(self, noise: float) -> int:
        """K, even: grid steps of the range of a number in [0, 1], such that a sum of n of them is held.

        Raises `OptionError` for too few bits.
        """
        spread = self.clients / 2 + SPREAD * math.sqrt(self.clients) * noise
        steps = int(min(2.0 ** (self.bits - 1) / spread, MOST_STEPS / max(noise, 1.0))) // 2 * 2
        if steps < 2:
            raise OptionError("strategy.server.bits", self.bits, "what is told beside a vector needs more")
        return steps

    # --- what it costs -------------------------------------------------------------------------------------

    def event(self, threat: Threat, noises: int, share: float) -> DiscreteGaussianSum | SkellamSum:
        """The vector of one client, in a sum with so many noises. Under replace-one it moves by 2 G.

        share: the part of delta that the bound of one release may use up (skellam).
        """
        return self._event(threat, self.sigma, noises, self.padded, 2 * math.sqrt(self.most_square), share)

    def statistic_event(
        self, threat: Threat, noise: float, noises: int, share: float
    ) -> DiscreteGaussianSum | SkellamSum:
        """One number beside the vector, which moves by its whole range."""
        steps = self.statistic_steps(noise)
        return self._event(threat, noise * steps, noises, 1, float(steps), share)

    def _event(
        self, threat: Threat, sigma: float, noises: int, dimension: int, l2: float, share: float
    ) -> DiscreteGaussianSum | SkellamSum:
        if threat == CLIENT_TO_SERVER:
            noises = 1
        if self.law == "gaussian":
            return DiscreteGaussianSum(threat=threat, sigma=sigma, noises=noises, dimension=dimension, l2=l2)
        variance = sigma * sigma
        return SkellamSum(threat=threat, variance=variance, noises=noises, dimension=dimension, l2=l2, delta=share)

    # --- client --------------------------------------------------------------------------------------------

    def noise(self, sigma: float, shape: Sequence[int], noise: NoiseSource, clients: int = 1) -> Tensor:
        """The noise of so many clients together (int64 [shape]), each of standard deviation sigma in steps.

        More than one, for the auditor: in one piece, a Skellam number exactly, a discrete Gaussian up to
        `fedpriv.privacy.discrete_gaussian.closeness`.
        """
        parts = max(1, math.ceil(clients * sigma * sigma / MOST_STEPS**2 - 1e-9))
        total = torch.zeros(tuple(shape), dtype=torch.int64)
        for _ in range(parts):
            if self.law == "gaussian":
                total += discrete_gaussian(math.sqrt(clients / parts) * sigma, shape, noise)
            else:
                total += skellam(clients / parts * sigma * sigma, shape, noise)
        return total

    def noisy(self, steps: Tensor, noise: NoiseSource) -> Tensor:
        """Whole numbers (int64 [..., d']) of a rotated vector in grid steps [..., d']: rounded, with noise."""
        rounded = conditional_round(steps, self.most_square, noise)
        return rounded + self.noise(self.sigma, rounded.shape, noise)

    def noisy_share(self, share: Tensor, noise_level: float, noise: NoiseSource) -> Tensor:
        """A number [...] of [0, 1] in steps of its range, about the middle, with noise (int64)."""
        steps = self.statistic_steps(noise_level)
        rounded = ((share.double().clamp(0, 1) - 0.5) * steps).round().long()
        return rounded + self.noise(noise_level * steps, tuple(rounded.shape), noise)

    def whole_numbers(self, vector: Tensor, shares: Sequence[Tensor], signs: Tensor, noise: NoiseSource) -> Tensor:
        """A release (int64 [numbers]) of a vector [d] in units of C and the numbers beside it (float [])."""
        found = [self.noisy(rotate_blocks(vector, signs) / self.step, noise)]
        for share, level in zip(shares, self.statistics, strict=True):
            found.append(self.noisy_share(share, level, noise).unsqueeze(-1))
        return torch.cat(found, dim=-1)

    # --- server --------------------------------------------------------------------------------------------

    def decode(
        self, total: NDArray[np.int64], survivors: int, signs: Tensor
    ) -> tuple[NDArray[np.float64], list[float]]:
        """(mean vector [d] in units of C, mean of each number beside it) from the sum of so many releases [numbers]."""
        rotated = torch.from_numpy(total[: self.padded]).double() * (self.step / survivors)
        mean: NDArray[np.float64] = rotate_blocks_back(rotated, signs, self.dimension).numpy()
        beside = [
            float(number) / self.statistic_steps(level) / survivors + 0.5
            for number, level in zip(total[self.padded :], self.statistics, strict=True)
        ]
        return mean, beside
