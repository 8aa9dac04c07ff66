"""cpSGD's grid (`LevelGrid`) with what its numbers cost, how many trials meet a budget, and how a server decodes them.

Agarwal et al., NeurIPS 2018. Symbols: X -> bound, k -> levels, s -> step, m -> trials, d' -> padded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FloatVector
from fedpriv.common.sum_limits import FEWEST_BITS, MOST_BITS
from fedpriv.mechanisms.integer_noise import packed_size, unpack
from fedpriv.mechanisms.laws import binomial_epsilon, binomial_sensitivities
from fedpriv.mechanisms.whole_numbers import LevelGrid, from_noisy_levels, rotate_back, width_of
from fedpriv.privacy.events import CLIENT_TO_SERVER, Binomial, Threat

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
    from fedpriv.privacy.event_costs import release_epsilon  # loads the accountants

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
