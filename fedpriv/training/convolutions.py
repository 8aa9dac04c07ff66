"""Convolutions of many models at once on a GPU, as products of matrices.

Under `torch.func.vmap` the convolutions of c models become one of c groups, for which a GPU's library starts its
kernels c times. Here the inputs of a layer are unfolded, and one batched product does all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Pair = tuple[int, int]


class ByProducts(TorchFunctionMode):
    """While it is entered, two-dimensional convolutions are products; those with groups, dilation or a padding that
    has a name stay what they are.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d and (found := _product(*args, **(kwargs or {}))) is not None:
            return found
        return func(*args, **(kwargs or {}))


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair | str = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor | None:
    """x [n, c, h, w] with weight [o, c, kh, kw]: [n, o, oh, ow]."""
    if isinstance(padding, str) or groups != 1 or _pair(dilation) != (1, 1) or x.ndim != 4:
        return None
    kernel, stride, padding = (weight.shape[2], weight.shape[3]), _pair(stride), _pair(padding)
    sides = zip(x.shape[2:], kernel, stride, padding, strict=True)
    outside = [(size + 2 * more - wide) // step + 1 for size, wide, step, more in sides]
    found = weight.reshape(weight.shape[0], -1) @ _Columns.apply(x, kernel, stride, padding)  # type: ignore[no-untyped-call]
    if bias is not None:
        found = found + bias.unsqueeze(1)
    return found.reshape(weight.shape[0], len(x), *outside).transpose(0, 1)


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class _Columns(torch.autograd.Function):
    """[n, c, h, w] -> what a kernel sees at each place, [c kh kw, n oh ow]; one copy, whatever n is."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
        rows, columns = padding
        x = functional.pad(x, (columns, columns, rows, rows)) if rows or columns else x
        seen = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # [n, c, oh, ow, kh, kw]
        return seen.permute(1, 4, 5, 0, 2, 3).reshape(x.shape[1] * kernel[0] * kernel[1], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.kernel, ctx.stride, ctx.padding = inputs
        ctx.examples, ctx.size = len(x), x.shape[2:]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        columns = slope.reshape(len(slope), ctx.examples, -1).transpose(0, 1)
        return functional.fold(columns, ctx.size, ctx.kernel, 1, ctx.padding, ctx.stride), None, None, None
