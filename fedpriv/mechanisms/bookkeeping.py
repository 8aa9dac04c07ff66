"""Book-keeping: a layer's per-example gradients from its inputs and the gradients of its outputs.

The formula for each layer and its rounding error are in `fedpriv.mechanisms.per_example`, the proof that no example
meets another in `fedpriv.mechanisms.rowwise`.

Shapes: b examples, d parameters, p positions of an example, i (times the kernel) and o input and output channels,
e width of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.mechanisms.film import Film
from fedpriv.mechanisms.rowwise import OF_SEQUENCES, NotRowwise, Rowwise
from fedpriv.mechanisms.tasks import CLASSES, Task

#: Bound on the rounding error of a ghost-clipped example's part of the sum, in units of the clip bound.
DRIFT = 2.0**-28

#: Products of rows this wide, or a multiple of it, give equal rows equal bits (each way looks whether it is so).
ALIGNED = 8

#: Unit roundoff of float64.
ROUNDOFF = 2.0**-53


def gamma(terms: int) -> float:
    """Error of a float64 sum of ``terms`` products, relative to the sum of their absolute values (Higham 2002, 3.1)."""
    return terms * ROUNDOFF / (1 - terms * ROUNDOFF)


# --- one forward and backward pass, and what its layers' gradients are ------------------------------------


@dataclass
class _Seen:
    """A layer with its input [b, ...] and the gradient of its output, then what was computed from these. Of a sequence,
    and of a layer that was called several times, [b, p, ...]: the positions of all calls.

    most: the most examples of a physical batch.
    """

    layer: Any
    inputs: Tensor
    gradient: Tensor
    most: int
    kept: list[Tensor] = field(default_factory=list)  # per-example gradients [b, ...] of parameters
    columns: Tensor | None = None  # where gradients are not formed: inputs [b, i, p], of a convolution unfolded
    rows: Tensor | None = None  # of an embedding: the rows [b, p] that ``kept`` is about

    @classmethod
    def of(cls, layer: nn.Module, calls: list[tuple[Tensor, Tensor]], gradients: list[Tensor], most: int) -> _Seen:
        """calls: (input, output) of each."""
        if len(calls) == 1 and (
            type(layer) not in OF_SEQUENCES or (type(layer) is nn.Linear and calls[0][0].ndim == 2)
        ):
            return cls(layer, calls[0][0], gradients[0], most)
        size = getattr(layer, "normalized_shape", (-1,))

        def positions(parts: list[Tensor], own: Sequence[int]) -> Tensor:
            shaped = [x.reshape(len(x), -1, *(x.shape[-1:] if own == (-1,) else own)) for x in parts]
            return shaped[0] if len(shaped) == 1 else torch.cat(shaped, 1)

        inputs = [given for given, _ in calls]
        ids = isinstance(layer, nn.Embedding)
        return cls(layer, positions(inputs, () if ids else size), positions(gradients, size), most)

    def tensors(self) -> list[Tensor]:
        """All tensors held for this layer."""
        columns = [] if self.columns is None else [self.columns]
        return [self.inputs, self.gradient, *self.kept, *columns]


class Trace:
    """The layers of one pass over a batch, in the order of the model's parameters.

    steps: the model's, if they are known already. Raises `NotRowwise`.
    """

    def __init__(
        self,
        module: nn.Module,
        most: int,
        steps: Rowwise | None = None,
        task: Task = CLASSES,
        precision: str = "float32",
    ) -> None:
        if task.own_loss:  # one example's could be made of others
            raise NotRowwise("its loss is a function of the user's")
        self.steps, self.most, self.task, self.precision = steps or Rowwise(module), most, task, precision
        self.layers = self.steps.layers
        self.seen: list[_Seen] = []

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward pass, then backward pass to the layers' outputs; losses [b]."""
        calls: dict[int, list[tuple[Tensor, Tensor]]] = {id(layer): [] for layer in self.layers}

        def note(layer: nn.Module, inputs: Tensor, outputs: Tensor) -> None:
            calls[id(layer)].append((_float32(inputs.detach()), outputs))

        with mixed(inputs.device, self.precision):
            losses = self.task.losses(self.steps.run(inputs, note), targets)
        if losses.shape != (len(inputs),):  # outputs of another form meet the targets of all examples
            raise NotRowwise(f"its outputs give {len(inputs)} examples losses of the form {tuple(losses.shape)}")
        outputs = [output for layer in self.layers for _, output in calls[id(layer)]]
        found = iter(torch.autograd.grad(losses.sum(), outputs, allow_unused=True))
        self.seen = []
        for layer in self.layers:
            own = calls[id(layer)]
            gradients = [next(found) for _ in own]
            if all(gradient is None for gradient in gradients):
                raise NotRowwise("a layer has no part in the logits")
            both = zip(gradients, own, strict=True)
            whole = [_float32(torch.zeros_like(y) if g is None else g) for g, (_, y) in both]
            self.seen.append(_Seen.of(layer, own, whole, self.most))
        return losses.detach()

    def squared_norms(self) -> Tensor:
        """Upper bounds on the squared norm of each example's whole gradient (float64 [b])."""
        return torch.stack([KINDS[type(seen.layer)][0](seen) for seen in self.seen]).sum(0)

    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> None:
        """Adds the sum over examples of weight (float64 [b]) * gradient to ``total`` (float64 [d]); once, after
        the norms.
        """
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
        """How many numbers this pass holds in memory: outputs are as many as their gradients."""
        return sum(t.numel() for seen in self.seen for t in (seen.gradient, *seen.tensors()))


def mixed(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Within, products are computed in ``precision``, and every layer's parameters are rounded for each call anew."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision), cache_enabled=False)


def _float32(x: Tensor) -> Tensor:
    """The same numbers; token ids as they are."""
    return x.float() if x.is_floating_point() else x


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
    if seen.gradient.ndim == 3:
        return _summed_norms(seen, seen.gradient.mT, seen.inputs.mT)
    return squared_lengths(seen.gradient) * (squared_lengths(seen.inputs) + (seen.layer.bias is not None))


def _add_linear(seen: _Seen, weights: Tensor, parts: list[Tensor]) -> None:
    if seen.gradient.ndim == 3:
        return _add_summed(seen, seen.gradient.mT, weights, parts)
    weighted = seen.gradient.double() * weights.unsqueeze(1)
    parts[0].addmm_(weighted.T, seen.inputs.double())
    if len(parts) == 2:
        parts[1] += weighted.sum(0).unsqueeze(1)
    return None


def _conv_norms(seen: _Seen) -> Tensor:
    layer, gradient = seen.layer, seen.gradient.flatten(2)
    columns = unfolded(seen.inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return _summed_norms(seen, gradient, columns)


def unfolded(
    inputs: Tensor,
    kernel: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
    stride: tuple[int, int],
) -> Tensor:
    """`functional.unfold` of [b, c, h, w] in one copy: torch's own starts a GPU once for each example, and takes a
    processor up to twice as long.
    """
    rows, columns = padding
    x = functional.pad(inputs, (columns, columns, rows, rows)) if rows or columns else inputs
    outside = [
        (size - apart * (wide - 1) - 1) // step + 1
        for size, wide, apart, step in zip(x.shape[2:], kernel, dilation, stride, strict=True)
    ]
    strides = x.stride()
    inner = [step * apart for step, apart in zip(strides[2:], dilation, strict=True)]
    outer = [step * far for step, far in zip(strides[2:], stride, strict=True)]
    view = x.as_strided((*x.shape[:2], *kernel, *outside), (*strides[:2], *inner, *outer), x.storage_offset())
    return view.reshape(len(x), -1, outside[0] * outside[1])


def _summed_norms(seen: _Seen, gradient: Tensor, columns: Tensor) -> Tensor:
    """Of the sum over positions of g_p x_p^T, gradient [b, o, p] and columns [b, i, p], and of the bias."""
    outputs, positions, inputs = gradient.shape[1], gradient.shape[2], columns.shape[1]
    seen.kept = [] if seen.layer.bias is None else [gradient.sum(2)]
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
    return _add_summed(seen, seen.gradient.flatten(2), weights, parts)


def _add_summed(seen: _Seen, gradient: Tensor, weights: Tensor, parts: list[Tensor]) -> None:
    """gradient: [b, o, p]."""
    if seen.columns is None:
        return _add_kept(seen, weights, parts)
    gradient = gradient.transpose(0, 1) * weights.view(1, -1, 1)  # [o, b, p], float64
    columns = seen.columns.transpose(0, 1)  # [i, b, p]
    parts[0].addmm_(gradient.flatten(1), columns.flatten(1).double().T)
    return _add_kept(seen, weights, parts[1:])


def _group_norm_norms(seen: _Seen) -> Tensor:
    layer = seen.layer
    normal = functional.group_norm(seen.inputs, layer.num_groups, eps=layer.eps)
    seen.kept = [(seen.gradient * normal).sum((2, 3)), seen.gradient.sum((2, 3))]  # [b, channels] each
    return squared_lengths(seen.kept[0]) + squared_lengths(seen.kept[1])


def _layer_norm_norms(seen: _Seen) -> Tensor:
    layer = seen.layer
    norm = functional.layer_norm if isinstance(layer, nn.LayerNorm) else functional.rms_norm
    normal = norm(seen.inputs, layer.normalized_shape, eps=layer.eps)
    seen.kept = [(seen.gradient * normal).sum(1)]
    if getattr(layer, "bias", None) is not None:
        seen.kept.append(seen.gradient.sum(1))
    return torch.stack([squared_lengths(part) for part in seen.kept]).sum(0)


def _film_norms(seen: _Seen) -> Tensor:
    seen.kept = seen.layer.per_example(seen.inputs, seen.gradient)
    return torch.stack([squared_lengths(part) for part in seen.kept]).sum(0)


def _embedding_norms(seen: _Seen) -> Tensor:
    """An example's gradient is zero outside the rows of its tokens: its other rows [b, p, e] are formed, one for each
    token that occurs, at the places of the first ones, and zeros. It costs what the tokens cost.
    """
    ids, gradient = seen.inputs, seen.gradient
    if seen.layer.padding_idx is not None:
        gradient = gradient.masked_fill((ids == seen.layer.padding_idx).unsqueeze(-1), 0.0)
    sorted_ids, order = ids.sort(dim=1, stable=True)
    begins = torch.ones_like(ids)
    begins[:, 1:] = sorted_ids[:, 1:] != sorted_ids[:, :-1]
    place = torch.empty_like(ids).scatter_(1, order, begins.cumsum(1) - 1)  # of its token among the example's
    seen.rows = torch.zeros_like(ids).scatter_(1, place, ids)
    examples, positions, width = gradient.shape
    place += positions * torch.arange(examples, device=ids.device).unsqueeze(1)
    table = _added_up(gradient.reshape(-1, width), place.view(-1), examples * positions)
    seen.kept = [table.view(examples, positions, width).double()]  # the float32 numbers, which norm and sum both read
    return squared_lengths(seen.kept[0])


def _added_up(values: Tensor, places: Tensor, size: int) -> Tensor:
    """A table [size, e] of the sums of values [n, e] with one place (int64 [n]), in the order of their numbers."""
    if values.is_cuda:  # there index_add_ has no order
        return torch.ops.aten.embedding_dense_backward(values, places, size, -1, False)
    return values.new_zeros(size, values.shape[1]).index_add_(0, places, values)


def _add_embedding(seen: _Seen, weights: Tensor, parts: list[Tensor]) -> None:
    assert seen.rows is not None, "norms come first"
    weighted = seen.kept.pop().mul_(weights.view(-1, 1, 1)).flatten(0, 1)  # in place: memory is what it costs
    parts[0].index_add_(0, seen.rows.view(-1), weighted)


def _add_kept(seen: _Seen, weights: Tensor, parts: list[Tensor]) -> None:
    for part, rows in zip(parts, seen.kept, strict=True):
        add_rows(part, weights, rows)


KINDS: dict[type[nn.Module], tuple[Callable[[_Seen], Tensor], Callable[[_Seen, Tensor, list[Tensor]], None]]] = {
    nn.Linear: (_linear_norms, _add_linear),
    nn.Conv2d: (_conv_norms, _add_conv),
    nn.GroupNorm: (_group_norm_norms, _add_kept),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), (_layer_norm_norms, _add_kept)),
    Film: (_film_norms, _add_kept),
    nn.Embedding: (_embedding_norms, _add_embedding),
}


def filled(values: Tensor, size: int) -> Tensor:
    """values [b, ...] and the first of them again (zeros where there are none), ``size`` rows in all: what fills up
    raises where an example does, and nowhere else. A copy, whose place in memory does not tell where they stood.
    Rows of numbers [b, i] begin at multiples of `ALIGNED` numbers: kernels of a CPU follow the place of a row's first.
    """
    aligned = values.ndim == 2 and values.is_floating_point()
    width = [-(-values.shape[1] // ALIGNED) * ALIGNED] if aligned else values.shape[1:]
    copy = values.new_zeros(size, *width)
    rows = copy[:, : values.shape[1]] if aligned else copy
    rows[: len(values)] = values
    if 0 < len(values) < size:
        rows[len(values) :] = values[0]
    return rows
