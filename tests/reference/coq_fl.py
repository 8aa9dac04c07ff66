"""CoQ-FL's Lemma 2, written from the page."""

from __future__ import annotations

import torch
from torch import Tensor


def pair_covariance(p_a: Tensor, p_b: Tensor, step_length: float) -> Tensor:
    """Lemma 2, M without limit: -4 A^2 p_a p_b where p_a + p_b <= 1, else -4 A^2 (1 - p_a)(1 - p_b)."""
    below = p_a + p_b <= 1
    return -4 * step_length**2 * torch.where(below, p_a * p_b, (1 - p_a) * (1 - p_b))
