"""Convolutions of many models as products have the values and gradients of torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.mechanisms.bookkeeping import unfolded
from fedpriv.training.convolutions import ByProducts, _Columns
from fedpriv.training.stacked_gradients import Mapped

CLIENTS, EXAMPLES, SIDE = 3, 4, 9
LAYERS = [
    {"kernel_size": 3},
    {"kernel_size": 5, "bias": False},
    {"kernel_size": (3, 1), "padding": (1, 0)},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 1, "stride": (2, 1), "bias": False},
]
OTHERS = [{"kernel_size": 3, "dilation": 2}, {"kernel_size": 3, "padding": "same"}, {"kernel_size": 3, "groups": 2}]


def model_of(layer: dict[str, Any]) -> nn.Module:
    """Two such layers, so that the second passes on a gradient."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 4, **layer), nn.Tanh(), nn.Conv2d(4, 2, **layer), nn.Flatten())
    wide = body(torch.zeros(1, 2, SIDE, SIDE)).shape[1]
    return nn.Sequential(body, nn.Linear(wide, 3)).double()


def gradients(module: nn.Module) -> tuple[Tensor, list[Tensor]]:
    random = torch.Generator().manual_seed(1)
    thetas = [torch.stack([part.detach() * (1 + k / 9) for k in range(CLIENTS)]) for part in module.parameters()]
    inputs = torch.randn(CLIENTS, EXAMPLES, 2, SIDE, SIDE, generator=random, dtype=torch.float64)
    targets = torch.randint(0, 3, (CLIENTS, EXAMPLES), generator=random)
    weights = torch.full((CLIENTS, EXAMPLES), 1 / EXAMPLES, dtype=torch.float64)
    losses, found = Mapped(module).gradients(thetas, inputs, targets, weights)
    return losses, [part.value for part in found]


def counted(calls: list[int]) -> Any:
    real = _Columns.apply

    def apply(*arguments: Any) -> Any:
        calls.append(1)
        return real(*arguments)

    return apply


@pytest.mark.parametrize("layer", [*LAYERS, *OTHERS], ids=str)
def test_products_have_the_convolutions_gradients(layer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = model_of(layer)
    losses, expected = gradients(module)
    columns: list[int] = []
    monkeypatch.setattr(_Columns, "apply", counted(columns))
    with ByProducts():
        products, found = gradients(module)
    torch.testing.assert_close(products, losses, rtol=1e-12, atol=1e-14)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)
    assert len(columns) == (2 if layer in LAYERS else 0)


@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_unfolding_in_one_copy_is_torchs(padding: Any, stride: Any, dilation: Any) -> None:
    """For any strides of the inputs, and for a part of a larger tensor."""
    whole = torch.randn(5, 3, 10, 8)
    for inputs in (whole, whole[1:4], whole.transpose(2, 3), whole.contiguous(memory_format=torch.channels_last)):
        arguments = (inputs, (3, 2), dilation, padding, stride)
        assert torch.equal(unfolded(*arguments), functional.unfold(*arguments))
