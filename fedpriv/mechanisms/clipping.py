"""L2 clipping of update vectors [..., d]; leading dimensions are independent trials or clients."""

from __future__ import annotations

import torch
from torch import Tensor

#: Share of the bound held in reserve, so that float32 rounding cannot push a clipped vector over it.
ROUNDING = 1e-6
#: The same of a sum of clipped gradients: for rounding of norms and sum, and for moving it onto the noise's grid.
KEPT_BACK = 2.0**-10


#: Numbers beyond which long vectors are taken one by one: what is made of them on the way stays in a core's cache.
IN_CACHE = 2**20
#: Shorter vectors are taken together, however many: the calls would take longer than the work.
LONG = 2**12


def l2_norm(x: Tensor) -> Tensor:
    """L2 norm [...] in float64 of vectors [..., d]."""
    if _one_by_one(x):
        return torch.stack([l2_norm(row) for row in x])
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)


def _one_by_one(x: Tensor) -> bool:
    return x.ndim == 2 and x.numel() > IN_CACHE and x.shape[1] > LONG


def clip(x: Tensor, bound: float) -> Tensor:
    """clip(x, C) = x / max(1, ||x||_2 / C) for vectors [..., d]; a zero vector stays zero.

    The result's norm is at most ``bound`` in exact arithmetic on the float32 values returned (`ROUNDING`). Divided in
    float64: for an update of norm 1e38 C the factor is not a normal float32, and the result would be too long.
    Raises ValueError unless ``bound`` is positive.
    """
    if not bound > 0:
        raise ValueError(f"clip bound {bound} must be positive")
    if _one_by_one(x):
        return torch.stack([clip(row, bound) for row in x])
    return (x / _excess(l2_norm(x), bound * (1 - ROUNDING))).to(x.dtype)


def clip_factors(norms: Tensor, bound: Tensor | float) -> Tensor:
    """1 / max(1, norm / bound) for norms [...] (float64), less `KEPT_BACK`; 0 for a norm that is not finite.

    What a broken example contributes must not depend on how it is broken: it contributes nothing.
    """
    factors = torch.clamp(bound * (1 - KEPT_BACK) / norms, max=1.0)  # [DPFL-AGN, Alg. 1 line 10]
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def clip_change(x: Tensor, previous: Tensor, bound: Tensor, slack: float) -> Tensor:
    """The point nearest to ``x`` on its segment to ``previous`` whose distance from ``previous`` is <= bound.

    Shapes: ``x`` and ``previous`` [..., d], ``bound`` [...] (float64, > slack). ``slack`` is an absolute length
    reserved for float32 rounding. If ``x`` and ``previous`` lie in a ball, so does the result, since balls are convex.
    """
    change = x - previous
    excess = _excess(l2_norm(change), bound - slack)
    return torch.where(excess > 1, (previous + change / excess).to(x.dtype), x)


def _excess(norm: Tensor, bound: Tensor | float) -> Tensor:
    """max(1, norm / bound) [..., 1]."""
    return torch.clamp(norm / bound, min=1.0).unsqueeze(-1)


def finite_or_zero(x: Tensor) -> Tensor:
    """Replaces vectors [..., d] that have a NaN or infinite coordinate by zero vectors.

    Whether a client replies must not depend on its data: such an update is released as zero plus noise.
    """
    if x.ndim and bool(torch.isfinite(x.sum(-1)).all()):  # one pass instead of four: most of a small client's work
        return x
    finite = torch.isfinite(x).all(dim=-1, keepdim=True)
    return torch.where(finite, x, torch.zeros_like(x))
