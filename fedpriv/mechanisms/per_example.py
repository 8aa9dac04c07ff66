"""Sums of per-example gradients, each clipped to a bound, by the fastest way that is exact for the model.

Book-keeping (Bu, Wang, Zha and Karypis, "Differentially private optimization on large model at small cost", ICML
2023): one forward pass, one backward pass that stops at the layers' outputs. A layer's per-example gradient is a
product of its input and its output's gradient, so norms and the weighted sum follow from those two:
- Linear: the norm is a product of two norms (Goodfellow 2015), the sum is the matrix product of a plain step.
- Conv2d: per-example gradients as batched matrix products of unfolded inputs, or, where the kernel is large beside
  the picture, the norm from Gram matrices (ghost clipping) and one more weight gradient for the sum.
- GroupNorm: two sums over positions.
Any other layer, a layer that is used twice, or a model that mixes examples: `torch.func` (vmap of grad).

Shapes: b examples, d parameters, p positions of a picture, i and o input and output channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Share of the bound kept back, so that the float32 rounding of a norm cannot carry a gradient over it.
ROUNDING = 1e-5

#: Numbers that a physical batch may hold besides the model (256 MiB).
PHYSICAL_NUMBERS = 2**26

#: Agreement asked of book-keeping with batch-size-1 gradients before it is trusted with a model.
TOLERANCE = 1e-3


#: A smaller factor is none: as a float32 it would have lost digits, and what it is to bound would be longer.
SMALLEST_FACTOR = 1e-30

#: Between these, squares and products of an example's numbers neither vanish nor overflow in float32.
ORDINARY = (1e-9, 1e9)


def clip_factors(norms: Tensor, bound: Tensor | float) -> Tensor:
    """1 / max(1, norm / bound) for norms [...] (float64); 0 for a norm that is no finite number, or beyond all reason.

    What a broken example contributes must not depend on how it is broken: it contributes nothing.
    """
    factors = torch.clamp(bound * (1 - ROUNDING) / norms, max=1.0)  # [DPFL-AGN, Alg. 1 line 10]
    usable = torch.isfinite(norms) & (factors >= SMALLEST_FACTOR)
    return torch.where(usable, factors, torch.zeros_like(factors))


@dataclass(frozen=True)
class ClippedSum:
    """total: sum over the batch of clipped gradients (float32 [d]); norms before clipping (float64 [b]); mean loss."""

    total: Tensor
    norms: Tensor
    loss: float


class PerExampleGradients:
    """Clipped sums of the per-example gradients of cross-entropy for one model.

    mode: ``bookkeeping``, ``vmap``, or None: book-keeping if the model passes a check against batch-size-1 gradients
    on random pictures (never on the client's), otherwise vmap. physical: largest number of examples computed at a
    time, None: as many as `PHYSICAL_NUMBERS` hold.
    """

    def __init__(self, module: nn.Module, mode: str | None = None, physical: int | None = None) -> None:
        self.module, self.mode, self.physical = module, mode, physical
        self._parameters = list(module.parameters())
        self._size = sum(parameter.numel() for parameter in self._parameters)
        self._vmapped: Callable[..., Any] | None = None

    def settle(self, shape: torch.Size, device: torch.device) -> None:
        """Chooses how to compute, at the parameters that the module has now: not at ones that somebody else chose."""
        if self.mode is None or self.physical is None:
            self._settle(shape, device)

    def clipped_sum(self, images: Tensor, labels: Tensor, bound: float, chosen: str = "given") -> ClippedSum:
        """Of pictures [b, c, h, w] and labels [b]; an empty batch gives zeros.

        chosen="median": the bound is the median of this batch's own norms (and ``bound`` for an empty batch), which
        has no useful sensitivity: for the published method only.
        """
        if not len(labels):
            return ClippedSum(torch.zeros(self._size, device=labels.device), torch.zeros(0, dtype=torch.float64), 0.0)
        self.settle(images.shape[1:], labels.device)
        if chosen == "median":
            bound = self._median_norm(images, labels)
        total, norms, loss = torch.zeros(self._size, device=labels.device), [], 0.0
        chunks = zip(images.split(self.physical or 1), labels.split(self.physical or 1), strict=True)
        for some_images, some_labels in chunks:
            part, part_norms, part_loss = self._compute(some_images, some_labels, bound)
            total += part
            norms.append(part_norms)
            loss += part_loss
        return ClippedSum(total, torch.cat(norms).cpu(), loss / len(labels))

    def block_norms(self, images: Tensor, labels: Tensor) -> tuple[list[str], Tensor, Tensor]:
        """Names of the model's blocks (its named children with parameters), norms of each example's gradient within
        each of them (float64 [b, blocks]), and losses [b].
        """
        self.settle(images.shape[1:], labels.device)
        names = list(dict.fromkeys(name.partition(".")[0] for name, _ in self.module.named_parameters()))
        norms, losses = [], []
        for some, of in zip(images.split(self.physical or 1), labels.split(self.physical or 1), strict=True):
            squares, loss = self._squares_by_name(some, of)
            blocks = [sum(value for name, value in squares if name.partition(".")[0] == block) for block in names]
            norms.append(torch.sqrt(torch.stack(blocks, 1)))  # type: ignore[arg-type]
            losses.append(loss)
        return names, torch.cat(norms), torch.cat(losses)

    def _squares_by_name(self, images: Tensor, labels: Tensor) -> tuple[list[tuple[str, Tensor]], Tensor]:
        """(a layer's or a parameter's name, squared norms [b]) one by one; losses [b]."""
        if self.mode == "vmap":
            gradients, losses = self._gradients(images, labels)
            return [(name, _squares(gradient)) for name, gradient in gradients.items()], losses
        trace = _Trace(self.module)
        losses = trace.run(images, labels)
        names = {id(layer): name for name, layer in self.module.named_modules()}
        return [(names[id(seen.layer)], _KINDS[type(seen.layer)][0](seen)) for seen in trace.seen], losses

    def _median_norm(self, images: Tensor, labels: Tensor) -> float:
        norms = self.clipped_sum(images, labels, 1.0).norms
        return max(float(norms.nan_to_num(0.0, 0.0).median()), 1e-6)

    def _compute(self, images: Tensor, labels: Tensor, bound: float) -> tuple[Tensor, Tensor, float]:
        if self.mode == "vmap":
            return self._by_vmap(images, labels, bound)
        return self._by_bookkeeping(images, labels, bound)

    # --- which way ---------------------------------------------------------------------------------------

    def _settle(self, shape: torch.Size, device: torch.device) -> None:
        """Chooses the mode and the physical batch once, from public facts and random pictures."""
        random = torch.Generator().manual_seed(0)
        images = torch.randn(3, *shape, generator=random).to(device)
        labels = torch.zeros(3, dtype=torch.long, device=device)
        numbers = self._size
        if self.mode != "vmap":
            numbers_found = self._agrees_with_single_gradients(images, labels)
            if numbers_found is None and self.mode is None:
                self.mode = "vmap"
            elif numbers_found is not None:
                self.mode, numbers = "bookkeeping", numbers_found
        self.physical = self.physical or max(1, PHYSICAL_NUMBERS // max(1, 3 * numbers))

    def _agrees_with_single_gradients(self, images: Tensor, labels: Tensor) -> int | None:
        """Numbers that an example needs if book-keeping equals batch-size-1 gradients, None where it does not."""
        if not _all_supported(self.module):
            return None
        try:
            trace = _Trace(self.module)
            trace.run(images, labels)
        except _NotTraceable:
            return None
        singles = [_single_gradient(self.module, self._parameters, images[k], labels[k]) for k in range(len(labels))]
        expected = torch.stack([single.double().norm() for single in singles])
        norms = torch.sqrt(trace.squared_norms())
        total = trace.weighted_sum(torch.ones_like(norms))
        close = torch.allclose(norms, expected, rtol=TOLERANCE, atol=1e-6)
        difference = (total - torch.stack(singles).sum(0)).norm()
        if not close or not difference <= TOLERANCE * (expected.sum() + 1e-6):
            return None
        return trace.numbers() // len(labels)

    # --- book-keeping ------------------------------------------------------------------------------------

    def _by_bookkeeping(self, images: Tensor, labels: Tensor, bound: float) -> tuple[Tensor, Tensor, float]:
        trace = _Trace(self.module)
        losses = trace.run(images, labels)
        norms = torch.sqrt(trace.squared_norms())
        factors = clip_factors(norms, bound)
        broken = ~torch.isfinite(norms)
        if broken.any():
            trace.forget(broken)
            losses = torch.where(broken, torch.zeros_like(losses), losses)
        return trace.weighted_sum(factors), norms, float(losses.sum())

    # --- torch.func --------------------------------------------------------------------------------------

    def _gradients(self, images: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Parameter -> gradients of the examples [b, ...], in the model's order; losses [b]."""
        if self._vmapped is None:

            def loss_of(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
                logits = torch.func.functional_call(self.module, parameters, (image.unsqueeze(0),))
                loss = functional.cross_entropy(logits, label.unsqueeze(0))
                return loss, loss.detach()

            gradient = torch.func.grad(loss_of, has_aux=True)
            self._vmapped = torch.func.vmap(gradient, in_dims=(None, 0, 0), randomness="different")
        parameters = {name: value.detach() for name, value in self.module.named_parameters()}
        gradients, losses = self._vmapped(parameters, images, labels)
        return {name: gradients[name] for name in parameters}, losses

    def _by_vmap(self, images: Tensor, labels: Tensor, bound: float) -> tuple[Tensor, Tensor, float]:
        gradients, losses = self._gradients(images, labels)
        flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)
        norms = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
        broken = ~torch.isfinite(norms)
        if broken.any():
            flat[broken] = 0.0
            losses = torch.where(broken, torch.zeros_like(losses), losses)
        return clip_factors(norms, bound).to(flat.dtype) @ flat, norms, float(losses.sum())


def _single_gradient(module: nn.Module, parameters: Sequence[Tensor], image: Tensor, label: Tensor) -> Tensor:
    loss = functional.cross_entropy(module(image.unsqueeze(0)), label.unsqueeze(0))
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])


# --- one forward and backward pass, and what its layers' gradients are ------------------------------------


class _NotTraceable(Exception):
    """A layer was used twice, not at all, or with an input of another rank."""


def _all_supported(module: nn.Module) -> bool:
    layers = [layer for layer in module.modules() if list(layer.parameters(recurse=False))]
    shared = len({id(p) for p in module.parameters()}) != sum(1 for layer in layers for _ in layer.parameters(False))
    return not shared and all(_supported(layer) for layer in layers)


def _supported(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) in (nn.Linear, nn.GroupNorm)


@dataclass
class _Seen:
    """A layer with its input and output [b, ...], then the gradient of its output, then what was made of these."""

    layer: Any
    inputs: Tensor
    outputs: Tensor
    gradient: Tensor = field(init=False)
    kept: list[Tensor] = field(default_factory=list)  # per-example gradients [b, ...], one per parameter
    #: What the gradient, and gradient and inputs together, were divided by (float64 [b]).
    of_gradient: Tensor = field(init=False)
    of_both: Tensor = field(init=False)

    def scale(self) -> None:
        """Brings the numbers of each example near 1, by powers of 2. A server that chooses theta can make gradients
        whose squares vanish in float32 and inputs that make up for it: such a gradient would seem to have no length.
        """
        self.gradient, self.of_gradient = _near_one(self.gradient)
        self.of_both = self.of_gradient
        if not isinstance(self.layer, nn.GroupNorm):  # whose gradient depends on normalised inputs
            self.inputs, of_inputs = _near_one(self.inputs)
            self.of_both = self.of_gradient * of_inputs


class _Trace:
    """The layers of one pass over a batch, in the order of the model's parameters."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers = [layer for layer in module.modules() if list(layer.parameters(recurse=False))]
        self.seen: list[_Seen] = []

    def run(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward, then backward as far as the layers' outputs; losses [b]. Raises `_NotTraceable`."""
        found: dict[int, _Seen] = {}

        def note(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            if id(layer) in found or inputs[0].ndim != (2 if isinstance(layer, nn.Linear) else 4):
                raise _NotTraceable
            found[id(layer)] = _Seen(layer, inputs[0].detach(), outputs)

        hooks = [layer.register_forward_hook(note) for layer in self.layers]
        try:
            losses = functional.cross_entropy(self.module(images), labels, reduction="none")
        finally:
            for hook in hooks:
                hook.remove()
        if len(found) != len(self.layers):
            raise _NotTraceable
        self.seen = [found[id(layer)] for layer in self.layers]
        gradients = torch.autograd.grad(losses.sum(), [seen.outputs for seen in self.seen])
        for seen, gradient in zip(self.seen, gradients, strict=True):
            seen.gradient = gradient
            seen.scale()
        return losses.detach()

    def squared_norms(self) -> Tensor:
        """Of each example's whole gradient (float64 [b])."""
        return torch.stack([_KINDS[type(seen.layer)][0](seen) for seen in self.seen]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over examples of weight (float64 [b]) * gradient, flat (float32 [d])."""
        parts = [part for seen in self.seen for part in _KINDS[type(seen.layer)][1](seen, weights)]
        return torch.cat([part.reshape(-1) for part in parts])

    def forget(self, broken: Tensor) -> None:
        """Makes the gradients of these examples zero: zero times infinity would not be."""
        for seen in self.seen:
            seen.inputs, seen.gradient = _without(seen.inputs, broken), _without(seen.gradient, broken)
            seen.kept = [_without(part, broken) for part in seen.kept]

    def numbers(self) -> int:
        """Numbers that this pass holds."""
        return sum(t.numel() for seen in self.seen for t in (seen.inputs, seen.outputs, seen.gradient, *seen.kept))


def _without(values: Tensor, broken: Tensor) -> Tensor:
    """A copy of values [b, ...] with zeros for the broken examples [b]."""
    return values.masked_fill(broken.view(-1, *[1] * (values.ndim - 1)), 0.0)


def _squares(x: Tensor) -> Tensor:
    """Sum of squares over all but the first dimension (float64 [b])."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1).double().square()


def _near_one(values: Tensor) -> tuple[Tensor, Tensor]:
    """(values [b, ...] divided by a power of 2 for each example, these powers [b] in float64): 1 for all where no
    example needs it.
    """
    flat = values.flatten(1)
    largest = torch.maximum(flat.amax(1), -flat.amin(1))
    ordinary = (largest == 0) | ((largest > ORDINARY[0]) & (largest < ORDINARY[1]))
    scales = torch.ones_like(largest, dtype=torch.float64)
    if ordinary.all():
        return values, scales
    known = torch.isfinite(largest) & (largest > 0)
    scales[known] = torch.exp2(torch.floor(torch.log2(largest[known].double())))
    return (values.double() / scales.view(-1, *[1] * (values.ndim - 1))).to(values.dtype), scales


def _linear_norms(seen: _Seen) -> Tensor:
    squares = _squares(seen.gradient)
    of_weight = squares * _squares(seen.inputs) * seen.of_both.square()
    return of_weight if seen.layer.bias is None else of_weight + squares * seen.of_gradient.square()


def _linear_sum(seen: _Seen, weights: Tensor) -> list[Tensor]:
    parts = [(seen.gradient * (weights * seen.of_both).float().unsqueeze(1)).T @ seen.inputs]
    if seen.layer.bias is None:
        return parts
    return [*parts, (weights * seen.of_gradient).float() @ seen.gradient]


def _conv_norms(seen: _Seen) -> Tensor:
    layer = seen.layer
    gradient = seen.gradient.flatten(2)  # [b, o, p]
    columns = functional.unfold(seen.inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    outputs, positions, inputs = gradient.shape[1], gradient.shape[2], columns.shape[1]
    if positions * (inputs + outputs) < inputs * outputs:  # Gram matrices [p, p] cost less than the gradients
        squares = ((columns.mT @ columns) * (gradient.mT @ gradient)).sum((1, 2)).double().clamp(min=0)
    else:
        seen.kept = [torch.bmm(gradient, columns.mT)]  # [b, o, i * kernel]
        squares = _squares(seen.kept[0])
    squares = squares * seen.of_both.square()
    return squares if layer.bias is None else squares + _squares(gradient.sum(2)) * seen.of_gradient.square()


def _conv_sum(seen: _Seen, weights: Tensor) -> list[Tensor]:
    layer, of_weight = seen.layer, (weights * seen.of_both).float()
    if seen.kept:
        parts = [torch.tensordot(of_weight, seen.kept[0], 1)]
    else:
        weighted = seen.gradient * of_weight.view(-1, 1, 1, 1)
        parts = [
            torch.nn.grad.conv2d_weight(  # type: ignore[attr-defined]
                seen.inputs, layer.weight.shape, weighted, layer.stride, layer.padding, layer.dilation
            )
        ]
    if layer.bias is None:
        return parts
    return [*parts, torch.tensordot((weights * seen.of_gradient).float(), seen.gradient.sum((2, 3)), 1)]


def _group_norm_norms(seen: _Seen) -> Tensor:
    layer = seen.layer
    normal = functional.group_norm(seen.inputs, layer.num_groups, eps=layer.eps)
    seen.kept = [(seen.gradient * normal).sum((2, 3)), seen.gradient.sum((2, 3))]  # [b, channels] each
    return (_squares(seen.kept[0]) + _squares(seen.kept[1])) * seen.of_gradient.square()


def _group_norm_sum(seen: _Seen, weights: Tensor) -> list[Tensor]:
    return [torch.tensordot((weights * seen.of_gradient).float(), part, 1) for part in seen.kept]


_KINDS: dict[type[nn.Module], tuple[Callable[[_Seen], Tensor], Callable[[_Seen, Tensor], list[Tensor]]]] = {
    nn.Linear: (_linear_norms, _linear_sum),
    nn.Conv2d: (_conv_norms, _conv_sum),
    nn.GroupNorm: (_group_norm_norms, _group_norm_sum),
}
