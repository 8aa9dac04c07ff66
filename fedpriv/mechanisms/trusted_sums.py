"""The noisy sum of a trusted server, and a number of every client that it sums beside it.

Why both cost what the sum alone would. Of a round the server releases S = sum_k clip(g_k, C) + N(0, (z C)^2) and
B = sum_k b_k + N(0, s^2), where b_k is a function of what client k sent, |b_k| <= m, and C of earlier releases. Divided
by their deviations, both are one Gaussian of deviation 1 in d + 1 dimensions, and a client that comes or goes moves its
mean by at most the root of z^-2 + (m/s)^2. `split_for_number` chooses z and s such that this is sigma^-2: the round is
one Gaussian over the cohort, of multiplier sigma, as without the number.

Symbols: s, s_b -> noise of the number, m -> most, C -> clip_norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.mechanisms.noise import NoiseSource, Shape, add_normal_to_sum, clip, finite_or_zero, l2_norm


def with_count(sigma: float, count_noise: float) -> float:
    """Multiplier of a gradient sum (multiplier sigma) and a count of sensitivity 1/2 with noise count_noise, released
    together: (sigma^-2 + (2 s_b)^-2)^(-1/2). [Andrew et al. 2021, Theorem 1]
    """
    if sigma == 0 or count_noise == 0:
        return 0.0
    return 1 / math.sqrt(sigma**-2 + (2 * count_noise) ** -2)


def split_for_number(multiplier: float, share: float, most: float) -> tuple[float, float]:
    """(multiplier of a sum, s of a number of sensitivity ``most``) that together cost what ``multiplier`` costs alone.

    The number gets the share of multiplier^-2, so (most/s)^2 = share/multiplier^2, and the sum's is
    multiplier/sqrt(1 - share). share in [0, 1); at 0 the number's noise is infinite.
    """
    if share == 0:
        return multiplier, math.inf
    return multiplier / math.sqrt(1 - share), most * multiplier / math.sqrt(share)


def split_for_count(multiplier: float, share: float) -> tuple[float, float]:
    """`split_for_number` of a count of sensitivity 1/2: inverse of `with_count`. [Andrew et al. 2021, Theorem 1]"""
    return split_for_number(multiplier, share, 0.5)


def noisy_sum(sent: Iterable[Tensor], shape: Shape, clip_norm: float, multiplier: float, noise: NoiseSource) -> Tensor:
    """What a trusted server releases of the vectors [..., d] it got: sum_k clip(g_k, C) + N(0, (z C)^2), float32 of
    ``shape``. It clips whatever clients send: the guarantee must not depend on them.
    """
    return add_normal_to_sum((clip(one, clip_norm) for one in sent), shape, multiplier * clip_norm, noise)


def within(sent: Tensor, clip_norm: float) -> Tensor:
    """What vectors [..., d] add to the count beside the sum: 1[||g|| <= C] - 1/2, shape [...]. [Andrew et al. 2021]"""
    return torch.where(l2_norm(finite_or_zero(sent)) <= clip_norm, 0.5, -0.5)


def square(sent: Tensor, clip_norm: float) -> Tensor:
    """||clip(g, C)||^2/C^2 of vectors [..., d], in [0, 1]; 0 of a client that is not there, shape [...]."""
    return (l2_norm(clip(finite_or_zero(sent), clip_norm)) / clip_norm).square().clamp(max=1.0)


@dataclass(frozen=True)
class Number:
    """What a trusted server sums beside vectors: ``of`` (vectors [..., d], C) -> [...], ``most`` at most in size."""

    of: Callable[[Tensor, float], Tensor]
    most: float


#: `NoisyGradientOptions.beside` names one.
NUMBERS = {"within": Number(within, 0.5), "square": Number(square, 1.0)}
