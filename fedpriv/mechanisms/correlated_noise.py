"""The correlated Gaussian mechanism (Bao et al. 2021) as Fed-CAD uses it: coefficients and multipliers.

All functions work on float64 tensors of any shape [...]: one entry per trial or client. ``diff`` is Fed-CAD's
Diff, the bound of the change between two updates in units of the clip norm C; ``variance`` is v, the released
noise's variance in units of sigma^2 C^2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Coefficients(NamedTuple):
    """What a release with correlated noise needs; each [...]."""

    reuse: Tensor  # r: share of the last release's noise that is used again
    fresh: Tensor  # s / sigma: standard deviation of the fresh noise in units of sigma C
    variance: Tensor  # v: variance of the release's noise in units of sigma^2 C^2


def published_coefficients(diff: Tensor, previous_variance: Tensor) -> Coefficients:
    """As published. When ``diff`` rises after v has shrunk, r exceeds 1 and the release is less private than
    claimed.
    """
    stay = 1 - diff
    reuse = stay / (stay**2 + previous_variance)  # [Fed-CAD, Alg. 1 line 14]
    fresh = (1 - reuse) + reuse * diff  # [Fed-CAD, Alg. 1 line 15]
    variance = previous_variance / (stay**2 + previous_variance)  # [Fed-CAD, Alg. 1 line 18]
    return Coefficients(reuse, fresh, variance)


def repaired_coefficients(diff: Tensor, previous_variance: Tensor) -> Coefficients:
    """The repair: r is capped at 1, which keeps the multiplier at sigma/2 for every path of ``diff``.

    v is computed from r and s, since the published formula holds only for the uncapped r.
    """
    stay = 1 - diff
    reuse = torch.clamp(stay / (stay**2 + previous_variance), max=1.0)
    fresh = (1 - reuse) + reuse * diff
    return Coefficients(reuse, fresh, fresh**2 + reuse**2 * previous_variance)


def replace_one_multiplier(noise_multiplier: float, diff: Tensor, coefficients: Coefficients) -> Tensor:
    """Noise over sensitivity of one correlated release, under replace-one.

    Given the earlier outputs the release is equivalent to x_i - r x_{i-1} plus fresh noise of standard deviation
    s C; with ||x_i|| <= C and ||x_i - x_{i-1}|| <= D C two data sets shift it by at most
    2 C max(1 - r (1 - D), r - 1 + D). For r <= 1 this is exactly sigma/2.
    """
    reuse, fresh, _ = coefficients
    shift = torch.maximum(1 - reuse * (1 - diff), reuse - 1 + diff)
    return noise_multiplier * fresh / (2 * shift)


def constant_diff_variance(diff: float, participation: int) -> float:
    """v_i = (2D - D^2) / (1 - (1-D)^(2i)) for constant D, i from 1."""
    # [Fed-CAD, Theorem VI.2]
    return float((2 * diff - diff**2) / (1 - (1 - diff) ** (2 * participation)))
