"""Inputs that are centred and scaled by released numbers, and clipped sums of rows that these numbers come from.

A model whose first layer is Linear on all inputs x in R^k gives the same outputs on x' = (x - m)/s, entry by entry,
with the weights W' = W diag(s) and the bias b' = b + W m. Steps of gradients with respect to W' and b' are better
conditioned where inputs have other means and sizes; theta itself stays that of x (`Scaling`).

Why a row moves a clipped sum of rows (`clipped_rows`) by less than (1 - 2^-12) of its bound, rounding included:
case 1 of `fedpriv.mechanisms.per_example`, with the row itself (or the mean of a person's rows, float64) in place of
its gradient. It depends on nothing but the row and numbers that all rows share (differences and absolute values are
taken entry by entry, each rounded as IEEE 754 says); the vector that is measured is the one that is added; blocks of
2^16 rows are added in float64, each within gamma(2^16), then at most 2^-37 of the bound a row. `clipped_sums.excess`
holds for more rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.mechanisms.bookkeeping import add_rows, without
from fedpriv.mechanisms.clipped_sums import LARGEST_BATCH, ClippedSum
from fedpriv.mechanisms.noise import clip_factors


def clipped_rows(rows: Tensor, bound: float, unit: Tensor | None = None) -> ClippedSum:
    """The sum over rows [n, k] of vectors clipped to ``bound``; unit (int64 [n]): over persons' means."""
    vectors = rows.double()
    if unit is not None:
        _, member, counts = torch.unique(unit, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(counts), rows.shape[1], dtype=torch.float64)
        vectors = sums.index_add_(0, member, vectors) / counts.unsqueeze(1)
    norms, total = torch.linalg.vector_norm(vectors, dim=1), torch.zeros(rows.shape[1], dtype=torch.float64)
    for some, lengths in zip(vectors.split(LARGEST_BATCH), norms.split(LARGEST_BATCH), strict=True):
        add_rows(total, clip_factors(lengths, bound), without(some, ~torch.isfinite(lengths)))
    return ClippedSum(total, norms, 0.0)


@dataclass(frozen=True)
class Scaling:
    """shift: m [k]; log_scale: ln s [k] (zeros: inputs as they are), of a model whose theta [d] begins with W [o, k]
    and b [o].
    """

    shift: NDArray[np.float64]
    log_scale: NDArray[np.float64]
    outputs: int

    @property
    def bound(self) -> float:
        """B: the length of a row spread evenly over [-1, 1]^k, to which rows are clipped."""
        return math.sqrt(len(self.shift) / 3)

    @property
    def weights(self) -> int:
        """Numbers of W."""
        return self.outputs * len(self.shift)

    def forward(self, theta: NDArray[np.float32]) -> NDArray[np.float32]:
        """theta' [d]: of scaled inputs."""
        found = theta.astype(np.float64)
        weight, bias = self._parts(found)
        bias += weight @ self.shift
        weight *= np.exp(self.log_scale)
        return found.astype(np.float32)

    def back(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """What an update [d] of theta' is for theta."""
        found = update.astype(np.float64)
        weight, bias = self._parts(found)
        weight /= np.exp(self.log_scale)
        bias -= weight @ self.shift
        return found

    def inputs(self, rows: Tensor) -> Tensor:
        """x' (float32 [n, ...]) of examples [n, ...] with k numbers each, entry by entry."""
        scale = torch.from_numpy(np.exp(self.log_scale).astype(np.float32))
        shift = torch.from_numpy(self.shift.astype(np.float32))
        return ((rows.flatten(1) - shift) / scale).view(rows.shape)

    def _parts(self, found: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        weight = found[: self.weights].reshape(self.outputs, -1)
        return weight, found[self.weights : self.weights + self.outputs]
