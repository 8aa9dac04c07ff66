"""Book-keeping: a layer's per-example gradients from its inputs and the gradients of its outputs.

The formula for each layer and its rounding error are in `fedpriv.mechanisms.per_example`, the proof that no example
meets another in `fedpriv.mechanisms.rowwise`.

Shapes: b examples, d parameters, p positions of an example, i (times the kernel) and o input and output channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.mechanisms.rowwise import NotRowwise, Rowwise
from fedpriv.mechanisms.tasks import CLASSES, Task

#: Bound on the rounding error of a ghost-clipped example's part of the sum, in units of the clip bound.
DRIFT = 2.0**-28

#: Unit roundoff of float64.
ROUNDOFF = 2.0**-53


def gamma(terms: int) -> float:
    """Error of a float64 sum of ``terms`` products, relative to the sum of their absolute values (Higham 2002, 3.1)."""
    return terms * ROUNDOFF / (1 - terms * ROUNDOFF)


# --- one forward and backward pass, and what its layers' gradients are ------------------------------------


@dataclass
class _Seen:
    """A layer with its input and output [b, ...], then the gradient of its output, then what was computed from these.

    most: the most examples of a physical batch.
    """

    layer: Any
    inputs: Tensor
    outputs: Tensor
    most: int
    gradient: Tensor = field(init=False)
    kept: list[Tensor] = field(default_factory=list)  # per-example gradients [b, ...] of parameters
    columns: Tensor | None = None  # of a convolution whose gradients are not formed: unfolded inputs [b, i, p]

    def tensors(self) -> list[Tensor]:
        """All tensors held for this layer."""
        columns = [] if self.columns is None else [self.columns]
        return [self.inputs, self.outputs, self.gradient, *self.kept, *columns]


class Trace:
    """The layers of one pass over a batch, in the order of the model's parameters.

    steps: the model's, if they are known already. Raises `NotRowwise`.
    """

    def __init__(self, module: nn.Module, most: int, steps: Rowwise | None = None, task: Task = CLASSES) -> None:
        self.steps, self.most, self.task = steps or Rowwise(module), most, task
        self.layers = self.steps.layers
        self.seen: list[_Seen] = []

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward pass, then backward pass to the layers' outputs; losses [b]."""
        found: dict[int, _Seen] = {}

        def note(layer: nn.Module, inputs: Tensor, outputs: Tensor) -> None:
            found[id(layer)] = _Seen(layer, inputs.detach(), outputs, self.most)

        losses = self.task.losses(self.steps.run(inputs, note), targets)
        self.seen = [found[id(layer)] for layer in self.layers]
        outputs = [seen.outputs for seen in self.seen]
        gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        for seen, gradient in zip(self.seen, gradients, strict=True):
            if gradient is None:
                raise NotRowwise("a layer has no part in the logits")
            seen.gradient = gradient
        return losses.detach()

    def squared_norms(self) -> Tensor:
        """Upper bounds on the squared norm of each example's whole gradient (float64 [b])."""
        return torch.stack([KINDS[type(seen.layer)][0](seen) for seen in self.seen]).sum(0)

    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> None:
        """Adds the sum over examples of weight (float64 [b]) * gradient to ``total`` (float64 [d])."""
        start = 0
        for seen in self.seen:
            parts = []
            for parameter in seen.layer.parameters(recurse=False):
                parts.append(total[start : start + parameter.numel()].view(len(parameter), -1))
                start += parameter.numel()
            KINDS[type(seen.layer)][1](seen, weights, parts)

    def forget(self, broken: Tensor) -> None:
        """Sets the gradients of these examples to zero: a weight of zero would not do, since 0 * infinity is NaN."""
        for seen in self.seen:
            seen.inputs, seen.gradient = without(seen.inputs, broken), without(seen.gradient, broken)
            seen.kept = [without(part, broken) for part in seen.kept]
            seen.columns = None if seen.columns is None else without(seen.columns, broken)

    def numbers(self) -> int:
        """How many numbers this pass holds in memory."""
        return sum(t.numel() for seen in self.seen for t in seen.tensors())


def without(values: Tensor, broken: Tensor) -> Tensor:
    """A copy of values [b, ...] with zeros for the broken examples [b]."""
    return values.masked_fill(broken.view(-1, *[1] * (values.ndim - 1)), 0.0)


def squared_lengths(x: Tensor) -> Tensor:
    """Sum of squares over all but the first dimension (float64 [b])."""
    return torch.linalg.vector_norm(x.flatten(1).double(), dim=1).square()  # given the dtype, torch is slower


def add_rows(total: Tensor, weights: Tensor, rows: Tensor) -> None:
    """Adds the sum of weights [b] * rows [b, ...] (float32) to ``total`` (float64, as many numbers as a row)."""
    total.view(-1).addmv_(rows.flatten(1).double().T, weights)


def _linear_norms(seen: _Seen) -> Tensor:
    return squared_lengths(seen.gradient) * (squared_lengths(seen.inputs) + (seen.layer.bias is not None))


def _add_linear(seen: _Seen, weights: Tensor, parts: list[Tensor]) -> None:
    weighted = seen.gradient.double() * weights.unsqueeze(1)
    parts[0].addmm_(weighted.T, seen.inputs.double())
    if len(parts) == 2:
        parts[1] += weighted.sum(0).unsqueeze(1)


def _conv_norms(seen: _Seen) -> Tensor:
    layer, gradient = seen.layer, seen.gradient.flatten(2)  # [b, o, p]; columns: [b, i, p]
    columns = functional.unfold(seen.inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    outputs, positions, inputs = gradient.shape[1], gradient.shape[2], columns.shape[1]
    seen.kept = [] if layer.bias is None else [gradient.sum(2)]
    if positions * (inputs + outputs) < inputs * outputs:  # Gram matrices [p, p] cost less than the gradients
        seen.columns = columns
        return _ghost_norms(gradient.double(), columns.double(), seen.most) + sum(map(squared_lengths, seen.kept))
    seen.kept = [torch.bmm(gradient, columns.mT), *seen.kept]  # [b, o, i]
    return sum(map(squared_lengths, seen.kept), torch.zeros((), dtype=torch.float64, device=gradient.device))


def _ghost_norms(gradient: Tensor, columns: Tensor, most: int) -> Tensor:
    """Squares [b] of lengths no less than sum_p g_p x_p^T of [b, o, p] and [b, i, p] (float64), with the slack of item
    3.
    """
    outputs, positions, inputs = gradient.shape[1], gradient.shape[2], columns.shape[1]
    by_columns, by_gradient = columns.mT @ columns, gradient.mT @ gradient
    squares = torch.einsum("bpq,bpq->b", by_columns, by_gradient).clamp(min=0)
    lengths = torch.diagonal(by_columns, dim1=1, dim2=2) * torch.diagonal(by_gradient, dim1=1, dim2=2)
    mass = lengths.sqrt().sum(1)
    slack = 2 * gamma(inputs + outputs + positions**2 + 8) + (gamma(most * positions + 8) / DRIFT) ** 2
    return squares + slack * mass.square()


def _add_conv(seen: _Seen, weights: Tensor, parts: list[Tensor]) -> None:
    if seen.columns is None:
        return _add_kept(seen, weights, parts)
    gradient = seen.gradient.flatten(2).transpose(0, 1) * weights.view(1, -1, 1)  # [o, b, p], float64
    columns = seen.columns.transpose(0, 1)  # [i, b, p]
    parts[0].addmm_(gradient.flatten(1), columns.flatten(1).double().T)
    return _add_kept(seen, weights, parts[1:])


def _group_norm_norms(seen: _Seen) -> Tensor:
    layer = seen.layer
    normal = functional.group_norm(seen.inputs, layer.num_groups, eps=layer.eps)
    seen.kept = [(seen.gradient * normal).sum((2, 3)), seen.gradient.sum((2, 3))]  # [b, channels] each
    return squared_lengths(seen.kept[0]) + squared_lengths(seen.kept[1])


def _add_kept(seen: _Seen, weights: Tensor, parts: list[Tensor]) -> None:
    for part, rows in zip(parts, seen.kept, strict=True):
        add_rows(part, weights, rows)


KINDS: dict[type[nn.Module], tuple[Callable[[_Seen], Tensor], Callable[[_Seen, Tensor, list[Tensor]], None]]] = {
    nn.Linear: (_linear_norms, _add_linear),
    nn.Conv2d: (_conv_norms, _add_conv),
    nn.GroupNorm: (_group_norm_norms, _add_kept),
}


def filled(values: Tensor, size: int) -> Tensor:
    """values [b, ...] and zeros, ``size`` rows in all."""
    missing = size - len(values)
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values
