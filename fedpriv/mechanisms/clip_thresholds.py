"""Rules that move a clip norm C from round to round: pure equations on numbers and tensors (ADP-FL's: in its files).

Symbols: C^t -> clip_norm, eta_C -> learning_rate, b -> share_within, rho -> decay, S_w -> window,
||Delta_i|| -> norms (the newest last). C and norms have the unit of an update's L2 norm.
"""

from __future__ import annotations

import math

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


def window_spread(norms: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation [...] of windows [..., n]; 0 and 0 until they are full."""
    if norms.shape[-1] < window:
        zero = torch.zeros(norms.shape[:-1], dtype=norms.dtype)
        return zero, zero
    return norms.mean(-1), norms.std(-1, correction=0)
