"""What sums over rows (or persons) at a site cost, on the grid of `dpsum` (`RowGrid`), where noises add up in a sum.

A site holds the sum S in R^d of its rows' vectors, each clipped to C. Its whole numbers are round(S / gamma). Noise is
added to them: whole-number noise by each site (form=ddgauss, skellam), or Gaussian noise by each site (form=local) or
once by a trusted server (form=central).

**What one row changes.** With a row more S becomes S' with |S' - S| <= C (1 - 2^-12 + excess): the computed sums,
rounding included (`fedpriv.mechanisms.per_example`). Dividing by gamma in float64 errs by less than n R 2^-52 on each
of d coordinates, R = C/gamma grid steps: below R 2^-12 while n sqrt(d) <= 2^39 (`steps` refuses more). Rounding to
the nearest whole number moves a difference of coordinates by 1 at most. So the whole numbers of neighbours differ
by at most R (1 + excess) + sqrt(d) in Euclidean length, by the triangle inequality: `l2`. Nothing is drawn for
rounding, and no vector has to be rotated: the grid is fine, since what a coordinate costs is bits and not privacy.

The modulus 2^b is public; a sum beyond it comes back on the other side, which costs accuracy and no privacy: (T mod
2^b + Y) mod 2^b is a function of T + Y for whole numbers T, also where Y is a real number that a server adds (`noisy`).

**Gaussian noise.** `add_normal_finely` of standard deviation sigma R on whole numbers is a Gaussian mechanism whose
input moves by at most l2 + sqrt(d) `fine_step(sigma R)` (its docstring): `gaussian_event`. If every row takes part
with probability q by a coin of its own, whoever's noise it is, the sum over those who take part is that of a Poisson
sample: a row that is not there changes no other row's coin and no other row's vector.

**No sampling under whole-number noise.** What is known of sampled mechanisms (`fedpriv.privacy.dp_library`) is of
continuous Gaussians. A curve for sampled whole-number noise in d dimensions is not implemented, so it is refused.

Symbols: R -> steps (gamma = C/R), sigma -> multiplier (standard deviation of one noise / C), b -> bits, q -> rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.mechanisms.integer_noise import RowGrid
from fedpriv.mechanisms.noise import fine_step
from fedpriv.privacy.events import DiscreteGaussianSum, PoissonGaussian, SkellamSum, Threat


@dataclass(frozen=True)
class RowSumGrid(RowGrid):
    """The grid with what a row changes and the events of its sums."""

    def l2(self, excess: float = 0.0) -> float:
        """What one row changes, in grid steps. excess: `clipped_sums.excess` of a site's rows."""
        return self.steps * (1 + excess) + math.sqrt(self.dimension)

    def event(self, threat: Threat, noises: int, share: float, excess: float = 0.0) -> DiscreteGaussianSum | SkellamSum:
        """One round, in a sum with so many noises that its observer does not know. share: as `SumGrid.event`."""
        shape = {"noises": noises, "dimension": self.dimension, "l2": self.l2(excess)}
        if self.form == "skellam":
            return SkellamSum(threat=threat, variance=self.sigma**2, delta=share, **shape)  # type: ignore[arg-type]
        return DiscreteGaussianSum(threat=threat, sigma=self.sigma, **shape)  # type: ignore[arg-type]

    def gaussian_event(self, threat: Threat, rate: float, excess: float = 0.0) -> PoissonGaussian:
        """One round with Gaussian noise, in which each row takes part with probability ``rate``."""
        moved = self.l2(excess) + math.sqrt(self.dimension) * fine_step(self.sigma)
        return PoissonGaussian(threat=threat, multiplier=self.sigma / moved, sampling_rate=rate)

    def decode(self, total: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """The noisy sum [d] in units of C from the sum of sites' whole numbers."""
        return total.astype(np.float64) / self.steps
