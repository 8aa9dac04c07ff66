"""How ADP-FL divides a round's epsilon among clients by the lengths of their updates: pure equations on tensors.

Symbols: eps -> epsilon, a -> base_share, C^t -> clip_norm, ||Delta_i|| -> norm, min_j ||Delta_j|| -> least_norm,
eps_i -> the result, sigma_s -> `noise_scale`. Norms and C have the unit of an update's L2 norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def allocated_epsilon(norm: Tensor, clip_norm: float, least_norm: float, epsilon: float, base_share: float) -> Tensor:
    """eps_i [...] (float64) of norms [...]: a eps where the update is clipped; otherwise larger for shorter updates, up
    to eps for the shortest. Not clamped: a norm below ``least_norm`` gives more than eps.
    """
    base = base_share * epsilon
    room = clip_norm - norm.double()
    span = clip_norm - least_norm
    share = room / span if span > 0 else torch.zeros_like(room)
    return torch.where(room <= 0, base, base + share * (epsilon - base))  # [ADP-FL, eq. 12]


def noise_scale(epsilon: Tensor, delta: float) -> Tensor:
    """sigma_s(eps) [...]: standard deviation of the noise in units of the sensitivity S."""
    return torch.sqrt(epsilon + 2 * math.log(1 / delta)) / epsilon  # [ADP-FL, eq. 16]
