"""What torch says to its own developers is silent; its other warnings are heard."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from fedpriv.mechanisms.frozen_gradient import FrozenGradient
from fedpriv.mechanisms.quiet_vmap import NOT_BATCHED, quiet_vmap
from fedpriv.training.stacked_gradients import Mapped


class Renormed(nn.Module):
    """Has an operation that torch's vmap computes one example after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1).renorm(2, 0, 1.0))  # type: ignore[no-any-return]


def test_torch_says_it_by_itself() -> None:
    with pytest.warns(UserWarning, match=NOT_BATCHED):
        torch.func.vmap(lambda x: x.renorm(2, 0, 1.0))(torch.ones(2, 3, 3))


def test_our_calls_are_silent_about_it_and_about_nothing_else() -> None:
    inputs, targets = torch.randn(2, 3, 1, 3, 3), torch.zeros(2, 3, dtype=torch.int64)
    module = Renormed()
    thetas = [torch.stack([value.detach()] * 2) for value in module.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Mapped(module).gradients(thetas, inputs, targets, torch.full((2, 3), 1 / 3))
        FrozenGradient.of(module, inputs[0, 0], targets[0, 0]).mapped()(module, inputs[0], targets[0])

    def loud(x: Tensor) -> Tensor:
        warnings.warn("something else", UserWarning, stacklevel=1)
        return x

    with pytest.warns(UserWarning, match="something else"):
        quiet_vmap(loud)(torch.ones(2))
