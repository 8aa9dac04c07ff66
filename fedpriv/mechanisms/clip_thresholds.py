"""Rules that move a clip norm C from round to round: pure equations on numbers and tensors.

Symbols: C^t -> clip_norm, eta_C -> learning_rate, b -> share_within, rho -> decay, S_w -> window, s_i -> change,
||Delta_i|| -> norms (the newest last). C and norms have the unit of an update's L2 norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: Where the noise of a client's bit or norm is left open: in units of noise_multiplier, so that it costs at most a
#: tenth of what the release costs (whose multiplier is noise_multiplier / 2).
NOISE_SHARE = 1.6

#: exp overflows float64 not far above this.
LARGEST_EXPONENT = 700.0


def quantile_step(clip_norm: float, share_within: float, learning_rate: float, target: float) -> float:
    """C <- C exp(-eta_C (b - target)): C grows where fewer norms than the target share lie within it.

    b is a noisy mean, so it may leave [0, 1]. [Andrew et al. 2021, section 2.1]
    """
    exponent = -learning_rate * (share_within - target)
    return clip_norm * math.exp(max(-LARGEST_EXPONENT, min(LARGEST_EXPONENT, exponent)))


def geometric(first: float, decay: float, rounds: int) -> float:
    """C^t = C^0 rho^t, with t the ``rounds`` that have passed."""
    return first * decay**rounds


def push(norms: Tensor, norm: Tensor, window: int) -> Tensor:
    """The sliding window [..., <= S_w] after one more norm [...]."""
    return torch.cat([norms, norm.unsqueeze(-1)], dim=-1)[..., -window:]


def window_change(norms: Tensor, clip_norm: float, window: int) -> Tensor:
    """s_i [...] of windows [..., n]: the population standard deviation, positive where the mean lies below C; 0 until
    the window is full.
    """
    if norms.shape[-1] < window:
        return torch.zeros(norms.shape[:-1], dtype=norms.dtype)
    mean, spread = norms.mean(-1), norms.std(-1, correction=0)  # [ADP-FL, eq. 9]
    return torch.where(mean < clip_norm, spread, -spread)  # [ADP-FL, eq. 10]


def adp_step(clip_norm: float, changes: Sequence[float]) -> float:
    """C^t = C^(t-1) - mean_i(s_i) over the clients that reported; may be negative, so the caller applies a floor."""
    return clip_norm - math.fsum(change / len(changes) for change in changes)  # [ADP-FL, eq. 11]
