"""The noisy sum of a trusted server, and a count beside it.

Symbols: s_b -> count_noise, C -> clip_norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

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


def split_for_count(multiplier: float, share: float) -> tuple[float, float]:
    """(multiplier of a sum, s_b of a count of sensitivity 1/2) that together cost what ``multiplier`` costs alone.

    Inverse of `with_count`: the count gets the share of multiplier^-2, so (2 s_b)^-2 = share/multiplier^2 and the sum's
    is multiplier/sqrt(1 - share). share in [0, 1); at 0 the count's noise is infinite. [Andrew et al. 2021, Theorem 1]
    """
    if share == 0:
        return multiplier, math.inf
    return multiplier / math.sqrt(1 - share), multiplier / (2 * math.sqrt(share))


def noisy_sum(sent: Iterable[Tensor], shape: Shape, clip_norm: float, multiplier: float, noise: NoiseSource) -> Tensor:
    """What a trusted server releases of the vectors [..., d] it got: sum_k clip(g_k, C) + N(0, (z C)^2), float32 of
    ``shape``. It clips whatever clients send: the guarantee must not depend on them.
    """
    return add_normal_to_sum((clip(one, clip_norm) for one in sent), shape, multiplier * clip_norm, noise)


def within(sent: Tensor, clip_norm: float) -> Tensor:
    """What vectors [..., d] add to the count beside the sum: 1[||g|| <= C] - 1/2, shape [...]. [Andrew et al. 2021]"""
    return torch.where(l2_norm(finite_or_zero(sent)) <= clip_norm, 0.5, -0.5)
