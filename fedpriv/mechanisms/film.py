"""A layer of one factor and one summand for each channel (FiLM: Perez et al., AAAI 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Film(nn.Module):
    """y = scale * x + shift, channel by channel; it begins as the identity.

    channels: how many. dim: where they are in an input [b, ...]: 1 of pictures, -1 of vectors and sequences. scales:
    False for the summand alone (BitFit: Ben Zaken et al., ACL 2022).

    Row k of the result is made of row k of the input alone: the parameters are the same for all rows.
    """

    def __init__(self, channels: int, dim: int, scales: bool = True) -> None:
        super().__init__()
        self.dim = dim
        self.scale = nn.Parameter(torch.ones(channels)) if scales else None
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        shape = self._shape(inputs)
        if self.scale is None:
            return inputs + self.shift.view(shape)
        return inputs * self.scale.view(shape) + self.shift.view(shape)

    def per_example(self, inputs: Tensor, gradient: Tensor) -> list[Tensor]:
        """Each example's gradient [b, channels] of the parameters, in their order, from the layer's inputs and the
        gradient of its outputs, both [b, ...]: sums over all places but the channel's of gradient * x, and of gradient.
        """
        others = [place for place in range(1, inputs.ndim) if place != self.dim % inputs.ndim]
        found = [gradient] if self.scale is None else [gradient * inputs, gradient]
        return [part.sum(others) if others else part for part in found]

    def _shape(self, inputs: Tensor) -> list[int]:
        shape = [1] * inputs.ndim
        shape[self.dim] = -1
        return shape
