"""What a local step goes along, where that is not the gradient at the parameters.

Symbols: rho -> `Sharpness.radius`, z_k -> `Probes.rows`, phi -> `Probes.smoothing`, K -> how many rows there are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedpriv.common.seeds import generator

#: Of several models [c, ...] on a batch each: (losses [c], gradients, one for each parameter), and losses alone.
Gradients = Callable[[Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]]
Losses = Callable[[Sequence[Tensor]], Tensor]
#: Below any gradient that moves float32 parameters.
_SHORTEST = 1e-30


class StepGradient(ABC):
    """Of one batch."""

    @abstractmethod
    def alone(self, theta: Tensor, grad: Tensor, backward: Callable[[], Tensor], loss: Callable[[], Tensor]) -> Tensor:
        """Writes the step's direction into ``grad`` [d], which is zero, and returns the batch's loss []. backward: adds
        the gradient at ``theta`` [d], which is left as it was, to grad, and returns the loss; loss: that alone.
        """

    @abstractmethod
    def stacked(
        self, thetas: Sequence[Tensor], gradients: Gradients, losses: Losses
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """(losses [c], directions) of several models; ``thetas`` has one tensor [c, ...] for each parameter."""


@dataclass(frozen=True)
class Sharpness(StepGradient):
    """The gradient at w + rho g/||g||, g the gradient at w (sharpness-aware minimisation, Foret et al., ICLR 2021)."""

    radius: float

    def alone(self, theta: Tensor, grad: Tensor, backward: Callable[[], Tensor], loss: Callable[[], Tensor]) -> Tensor:
        found = backward()
        with torch.no_grad():
            here = theta.clone()
            theta.add_(grad * (self.radius / torch.linalg.vector_norm(grad).clamp_min(_SHORTEST)))
            grad.zero_()
        backward()
        with torch.no_grad():
            theta.copy_(here)
        return found

    def stacked(
        self, thetas: Sequence[Tensor], gradients: Gradients, losses: Losses
    ) -> tuple[Tensor, Sequence[Tensor]]:
        found, first = gradients(thetas)
        norms = [torch.linalg.vector_norm(part.flatten(1), dim=1) for part in first]
        factor = self.radius / torch.stack(norms).square().sum(0).sqrt().clamp_min(_SHORTEST)
        away = [theta + _each(factor, part) for theta, part in zip(thetas, first, strict=True)]
        return found, gradients(away)[1]


@dataclass(frozen=True)
class Probes(StepGradient):
    """(1/K) sum_k s_k z_k with s_k = (L(w + phi z_k) - L(w - phi z_k))/(2 phi): two losses, and no backward pass, for
    each z_k. rows: z_k [K, d], public, of length sqrt(d) and at right angles.
    """

    rows: Tensor
    smoothing: float

    def coordinates(self, vector: Tensor) -> Tensor:
        """s [..., K] of a vector (1/K) sum_k s_k z_k [..., d]: K <z_k, vector>/d. One vector after the other, so that
        bits do not depend on how many there are.
        """
        if vector.ndim > 1:
            return torch.stack([self.coordinates(one) for one in vector])
        count, size = self.rows.shape
        return (self.rows @ vector) * (count / size)

    def vector(self, coordinates: Tensor) -> Tensor:
        """(1/K) sum_k s_k z_k [d] of s [K]."""
        return coordinates.to(self.rows.dtype) @ self.rows / len(self.rows)

    def alone(self, theta: Tensor, grad: Tensor, backward: Callable[[], Tensor], loss: Callable[[], Tensor]) -> Tensor:
        here, total = theta.clone(), torch.zeros((), device=theta.device)
        with torch.no_grad():
            for row in self.rows.to(theta.device):
                theta.copy_(here + row * self.smoothing)
                ahead = loss()
                theta.copy_(here - row * self.smoothing)
                behind = loss()
                grad.add_(row * ((ahead - behind) / (2 * self.smoothing * len(self.rows))))
                total += (ahead + behind) / (2 * len(self.rows))
            theta.copy_(here)
        return total

    def stacked(
        self, thetas: Sequence[Tensor], gradients: Gradients, losses: Losses
    ) -> tuple[Tensor, Sequence[Tensor]]:
        found, total = (
            [torch.zeros_like(theta) for theta in thetas],
            torch.zeros(len(thetas[0]), device=thetas[0].device),
        )
        sizes = [theta[0].numel() for theta in thetas]
        for row in self.rows.to(thetas[0].device):
            parts = [part.view(theta[0].shape) for part, theta in zip(row.split(sizes), thetas, strict=True)]
            away = [part * self.smoothing for part in parts]
            ahead = losses([theta + part for theta, part in zip(thetas, away, strict=True)])
            behind = losses([theta - part for theta, part in zip(thetas, away, strict=True)])
            slope = (ahead - behind) / (2 * self.smoothing * len(self.rows))
            for own, part in zip(found, parts, strict=True):
                own.add_(_each(slope, part.expand_as(own)))
            total += (ahead + behind) / (2 * len(self.rows))
        return total, found


def _each(factors: Tensor, of: Tensor) -> Tensor:
    """Each client's factor [c] times its part [c, ...]."""
    return factors.view(-1, *[1] * (of.ndim - 1)) * of


@lru_cache(maxsize=2)  # all clients of a round ask for the same, and the server for each of them
def probes_of(seed: int, server_round: int, size: int, count: int, smoothing: float) -> Probes:
    """The round's `Probes` of ``count`` directions in R^size, from the public seed: uniform, then made right-angled."""
    normal = generator(seed, server_round, "directions").standard_normal((size, count))
    rows = np.linalg.qr(normal)[0].T * math.sqrt(size)
    return Probes(torch.from_numpy(np.ascontiguousarray(rows, np.float32)), smoothing)
