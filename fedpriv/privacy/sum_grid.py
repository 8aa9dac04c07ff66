"""Grids of sums: how far one unit's data move a sum of whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FloatVector
from fedpriv.common.sum_limits import FEWEST_BITS, MOST_BITS
from fedpriv.mechanisms.integer_noise import RowGrid, packed_size, unpack
from fedpriv.mechanisms.laws import binomial_epsilon, binomial_sensitivities
from fedpriv.mechanisms.noise import fine_step
from fedpriv.mechanisms.whole_numbers import LevelGrid, WholeGrid, from_noisy_levels, rotate_back, width_of
from fedpriv.privacy.events import CLIENT_TO_SERVER, Binomial, DiscreteGaussianSum, PoissonGaussian, SkellamSum, Threat

# --- sum grid ---------------------------------------------------------------------------------------------------------

"""The price of ddgauss and skellam: what whole numbers on their grid (`WholeGrid`) cost.

Lengths are in units of the clip norm C, so that no event moves with C.
"""


@dataclass(frozen=True)
class SumGrid(WholeGrid):
    """The grid with the events of its numbers."""

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


# --- row sum ----------------------------------------------------------------------------------------------------------

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

**A row (person) at S sites** (`privacy.across_sites`).

- In one sum. Its whole numbers at each site move by at most l2, and those of other sites do not. By the triangle
  inequality the sum of sites moves by at most S l2, which is reached where all S sites move the same way. That is the
  mechanism in which each site clips to C/S, beside noise that is S times as long in units of the bound: scaling a sum
  and its noise alike says the same. So C stays the bound of one site, at which a model learns best, and S is in the
  price: for one epsilon sigma grows S times.
- Sampled at each of the S sites by a coin of its own (form=central): with probability 1 - (1 - q)^S the row is in at
  least one sample, and given the coins the sum moves by some w with |w| <= S l2. Take the pair on a line P* = (1 - p)
  N(0, s^2) + p N(S l2, s^2), Q* = N(0, s^2), p = 1 - (1 - q)^S. Map y to y w/(S l2) + sqrt(1 - |w|^2/(S l2)^2) s Z
  along w and s Z across, w drawn as the coins draw it given that one fell: it takes N(S l2, s^2) to N(w, s^2 I) and
  N(0, s^2) to N(0, s^2 I), for each w. As w does not depend on y, P* becomes the law with the row and Q* that
  without, so the true pair is a function of P*, Q* and costs no more. The same map backwards is the other order.
- Seen site by site (form=local, and whoever sees a site's own numbers): S releases, each with its own noise, that
  compose adaptively: S times the same event. For Gaussians without sampling mu^2 adds up, mu sqrt(S) in all: what
  clipping to C/sqrt(S) at each site would give back.

**Not all S sites in each round.** A ledger's total is of one client, as if a person were at S sites like it. It bounds
every person's: let R be the largest count of rounds of the person's sites, m_r <= S how many of them are in round r.
Then sum m_r <= S R.

- Seen site by site: all sites' events are alike (`excess` is that of all rows), and at most S R of them are released.
- form=central: every round is in every client's account, at the price of m_r = S.
- Whole-number noise, seen in sums: round r moves by m_r l2. What its bounds add up (`fedpriv.privacy.integer_laws`)
  are squares of that, and terms that each coordinate that can change adds (T, e, tails, the delta of windows). The
  event has l2 S and dimension S d. R times S^2 l2^2 is at least l2^2 sum m_r^2, and R times S d at least d times the
  number of rounds with m_r > 0; the lesser of the two (k, |v|_1) follows. A window that S d coordinates leave with
  probability delta is left by d of them with delta/S. So R such events cost as much as the person's rounds at least.

Symbols: R -> steps (gamma = C/R), S -> across, sigma -> multiplier (standard deviation of one noise / C), b -> bits,
q -> rate.
"""


@dataclass(frozen=True)
class RowSumGrid(RowGrid):
    """The grid with what a row changes and the events of its sums."""

    def l2(self, excess: float = 0.0) -> float:
        """What one row changes, in grid steps. excess: `clipped_sums.excess` of a site's rows."""
        return self.steps * (1 + excess) + math.sqrt(self.dimension)

    def event(
        self, threat: Threat, noises: int, share: float, excess: float = 0.0, across: int = 1
    ) -> DiscreteGaussianSum | SkellamSum:
        """One round, in a sum with so many noises that its observer does not know. share: as `SumGrid.event`; across:
        S, sites of one sum that hold a row.
        """
        shape = {"noises": noises, "dimension": across * self.dimension, "l2": across * self.l2(excess)}
        if self.form == "skellam":
            return SkellamSum(threat=threat, variance=self.sigma**2, delta=share, **shape)  # type: ignore[arg-type]
        return DiscreteGaussianSum(threat=threat, sigma=self.sigma, **shape)  # type: ignore[arg-type]

    def gaussian_event(self, threat: Threat, rate: float, excess: float = 0.0, across: int = 1) -> PoissonGaussian:
        """One round with Gaussian noise, in which each row takes part with probability ``rate`` at each of the S
        (``across``) sites of one sum that hold it.
        """
        moved = across * self.l2(excess) + math.sqrt(self.dimension) * fine_step(self.sigma)
        rate = rate if across == 1 else -math.expm1(across * math.log1p(-rate)) if rate < 1 else 1.0
        return PoissonGaussian(threat=threat, multiplier=self.sigma / moved, sampling_rate=rate)

    def decode(self, total: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """The noisy sum [d] in units of C from the sum of sites' whole numbers."""
        return total.astype(np.float64) / self.steps


# --- binomial grid ----------------------------------------------------------------------------------------------------

"""cpSGD's grid (`LevelGrid`) with what its numbers cost, how many trials meet a budget, and how a server decodes them.

Agarwal et al., NeurIPS 2018. Symbols: X -> bound, k -> levels, s -> step, m -> trials, d' -> padded.
"""


#: Keeps the integers on the wire exact in a float64.
MOST_TRIALS = 2**50
#: Relative error: more than float64 adds to a distance in the rotation, the position between levels, and rounding.
ROUNDING = 1e-9
#: Share of delta that the bounds of a run's releases may use up; the rest is for their composition.
SHARE = 0.01


def delta_share(delta: float, rounds: int) -> float:
    """The part of delta that one of a run's releases may use up."""
    return SHARE * delta / rounds


@dataclass(frozen=True)
class BinomialGrid(LevelGrid):
    """The grid with the event of its numbers, and the server's side of it."""

    @property
    def num_bytes(self) -> int:
        return packed_size(self.padded, width_of(self.largest))

    def sensitivities(self, clip_norm: float | None = None) -> tuple[float, float, float]:
        """(L1, L2, Linf) in real units under replace-one, of vectors of length ``clip_norm`` (default: the grid's
        own).
        """
        return binomial_sensitivities(clip_norm or self.clip_norm, self.step, self.levels, self.padded)

    def event(self, threat: Threat, share: float, clients: int = 1, clip_norm: float | None = None) -> Binomial:
        """A release with the noise of ``clients`` clients, one of which changes (vectors of length ``clip_norm``).

        share: the part of delta that the bound of one release may use up.
        """
        length = (clip_norm or self.clip_norm) * (1 + ROUNDING)
        l1, l2, linf = self.sensitivities(length)
        return Binomial(
            threat=threat,
            step=self.step,
            trials=clients * self.trials,
            dimension=self.padded,
            l1=l1,
            l2=l2,
            linf=linf,
            delta=share,
            distance=2 * length,  # clamping never increases a distance
        )

    def decode(self, packed: NDArray[np.uint8], signs: Tensor) -> FloatVector:
        """float32 [d]: unbiased. Raises ValueError for another number of bytes or a number beyond the largest."""
        if packed.dtype != np.uint8 or packed.shape != (self.num_bytes,):
            raise ValueError(f"expected uint8 [{self.num_bytes}], got {packed.dtype} {list(packed.shape)}")
        numbers = unpack(packed, width_of(self.largest), self.padded, ">").view(np.int64)
        if int(numbers.max()) > self.largest:
            raise ValueError(f"a number of {int(numbers.max())}, at most {self.largest} is possible")
        rotated = from_noisy_levels(torch.from_numpy(numbers), self.bound, self.levels, self.trials)
        vector: FloatVector = rotate_back(rotated, signs, self.dimension).float().numpy()
        return vector

    # --- in a sum ------------------------------------------------------------------------------------------

    def sum_bits(self, clients: int) -> int:
        """Bits of a modulus that holds every sum of so many clients' centred numbers."""
        return width_of(clients * (self.largest + 1))

    def decode_sum(self, total: NDArray[np.int64], survivors: int, signs: Tensor) -> NDArray[np.float64]:
        """The mean (float64 [d]) from the sum of so many clients' centred numbers [d']."""
        mean = torch.from_numpy(total).double() / survivors + (self.largest + 1) // 2
        rotated = from_noisy_levels(mean, self.bound, self.levels, self.trials)
        vector: NDArray[np.float64] = rotate_back(rotated, signs.double(), self.dimension).numpy()
        return vector


@lru_cache(maxsize=4096)
def grid_for(
    dimension: int,
    clip_norm: float,
    levels: int,
    trials: int | None,
    epsilon: float,
    delta: float,
    rounds: int | None = None,
    examples: int = 1,
) -> BinomialGrid:
    """The grid with ``trials``, or with the fewest whose release costs ``epsilon`` at ``delta``.

    rounds: number of rounds that the noise is calibrated for, by the accountant; None: as published, by Theorem 1 for
    one release. examples: divides the sensitivity (``sensitivity=per_example``), which no guarantee relies on.

    Raises `OptionError` where more than 2^50 trials would be needed.
    """
    grid = BinomialGrid(dimension, clip_norm, levels, trials or 0)
    if trials is not None:
        return grid
    from fedpriv.privacy.composition import release_epsilon  # loads the accountants

    length = clip_norm / examples

    def enough(count: int) -> bool:
        if rounds is None:
            return binomial_epsilon(grid.step, count, grid.padded, *grid.sensitivities(length), delta) <= epsilon
        event = replace(grid, trials=count).event(CLIENT_TO_SERVER, delta_share(delta, rounds), clip_norm=length)
        return release_epsilon(event, delta) <= epsilon

    most = 1
    while not enough(most):
        most *= 2
        if most > MOST_TRIALS:
            raise OptionError("strategy.client.epsilon", epsilon, "no 2^50 binomial trials give it: larger, or levels")
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if enough(middle) else (middle, most)
    return replace(grid, trials=most)


def sum_bits(grid: BinomialGrid, given: int | None, clients: int) -> int:
    """Bits of the modulus of sums: as given, or as many as any sum of so many clients needs.

    Raises `OptionError` where that is more than there are.
    """
    needed = max(FEWEST_BITS, grid.sum_bits(clients))
    if given is None and needed > MOST_BITS:
        words = f"sums of {clients} clients need {needed} bits, at most {MOST_BITS} are allowed: fewer trials"
        raise OptionError("strategy.server.bits", "null", words)
    return given or needed
