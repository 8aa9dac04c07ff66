"""Gradients of many models at once: layer by layer where every layer is known, else by torch.func."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.mechanisms.clipping import clip_factors
from fedpriv.mechanisms.rowwise import hooked
from fedpriv.mechanisms.tasks import CLASSES, Task

#: How closely a model's gradients under vmap must agree with its ordinary ones before they are used.
TOLERANCE = 1e-3
#: Random examples by which a product's rows are compared.
TRIED = 32


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes in one thread; afterwards in as many as before."""
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


@dataclass(frozen=True)
class Whole:
    """A gradient [c, ...] as it is."""

    value: Tensor

    def first(self, clients: int) -> Whole:
        """Of the first clients alone."""
        return Whole(self.value[:clients])

    def add_to(self, target: Tensor, alpha: float, beta: float) -> None:
        """target = beta * target + alpha * gradient."""
        if beta != 1.0:
            target.mul_(beta)
        target.add_(self.value, alpha=alpha)


@dataclass(frozen=True)
class _Product:
    """A weight's gradient [c, o, i]: sum over examples of outputs' gradients [c, b, o] times inputs [c, b, i]."""

    outputs: Tensor
    inputs: Tensor

    def first(self, clients: int) -> _Product:
        """Of the first clients alone."""
        return _Product(self.outputs[:clients], self.inputs[:clients])

    def add_to(self, target: Tensor, alpha: float, beta: float) -> None:
        target.baddbmm_(self.outputs.mT, self.inputs, beta=beta, alpha=alpha)


class Chain:
    """Flatten, then Linear layers with ReLU between them: the models `linear` and `mlp`, and custom ones like them."""

    def __init__(self, layers: Sequence[tuple[bool, bool]], task: Task = CLASSES) -> None:
        self.layers, self.task = layers, task  # a layer: (has a bias, is followed by ReLU)
        self._alike: dict[Any, bool] = {}

    @classmethod
    def of(cls, module: nn.Module, task: Task = CLASSES) -> Chain | None:
        """None for any other model."""
        flat = list(_leaves(module))
        linear = [layer for layer in flat if isinstance(layer, nn.Linear)]
        # Hooks, shared weights and weights that are not trained are handled only by the module itself.
        weights = [weight for layer in linear for weight in layer.parameters()]
        if any(hooked(part) for part in module.modules()) or len(set(map(id, weights))) < len(weights):
            return None
        if not all(weight.requires_grad and not weight._backward_hooks for weight in weights):
            return None
        if not flat or type(flat[0]) is not nn.Flatten or (flat[0].start_dim, flat[0].end_dim) != (1, -1):
            return None
        layers: list[tuple[bool, bool]] = []
        for layer in flat[1:]:
            if type(layer) is nn.Linear:
                layers.append((layer.bias is not None, False))
            elif type(layer) is nn.ReLU and layers:
                layers[-1] = (layers[-1][0], True)
            elif type(layer) is not nn.Identity:
                return None
        return cls(layers, task) if layers and not layers[-1][1] else None

    def prepared(self, inputs: Tensor) -> Tensor:
        """Examples in the form that `gradients` takes."""
        return inputs.flatten(1)

    def gradients(
        self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, list[_Product | Whole]]:
        """(weighted losses [c], each parameter's gradient) of examples [c, b, i] with targets and weights [c, b]."""
        layer_inputs, logits = self._forward(thetas, inputs)
        losses, slope = self.task.slope(logits, targets)
        slopes = self._backward(thetas, layer_inputs, slope.mul_(weights.unsqueeze(-1)))
        found: list[_Product | Whole] = []
        for (bias, _), outputs, own in zip(self.layers, slopes, layer_inputs, strict=True):
            found.append(_Product(outputs, own))
            if bias:
                found.append(Whole(outputs.sum(1)))
        return _weighted(losses, weights), found

    def clipped(
        self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor, real: Tensor, bounds: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(sums of clipped per-example gradients float64 [c, d], norms float64 [c, b], sums of losses [c]); ``real``
        [c, b] is False for padding, ``bounds`` float64 [c]. As `PerExampleGradients`: a broken example contributes
        nothing; norms and sums are float64, for the reasons given there (2).
        """
        layer_inputs, slopes, losses = self._of_rows(thetas, inputs, targets)
        norms = torch.zeros(losses.shape, dtype=torch.float64, device=targets.device)
        for (bias, _), outputs, own in zip(self.layers, slopes, layer_inputs, strict=True):
            norms += _squares(outputs) * (_squares(own) + bias)
        norms.sqrt_()
        factors = clip_factors(norms, bounds.unsqueeze(1)).masked_fill_(~real, 0.0).unsqueeze(-1)
        broken = ~torch.isfinite(norms)
        if broken.any():
            losses = losses.masked_fill(broken, 0.0)
            slopes = [outputs.masked_fill(broken.unsqueeze(-1), 0.0) for outputs in slopes]
            layer_inputs = [own.masked_fill(broken.unsqueeze(-1), 0.0) for own in layer_inputs]
        parts = []
        for (bias, _), outputs, own in zip(self.layers, slopes, layer_inputs, strict=True):
            weighted = outputs.double() * factors
            parts.append(torch.bmm(weighted.mT, own.double()).flatten(1))
            if bias:
                parts.append(weighted.sum(1))
        return torch.cat(parts, dim=1), norms, losses.masked_fill(~real, 0.0).sum(1)

    def _of_rows(
        self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """(every layer's inputs [c, b, i], gradients of its outputs [c, b, o], losses [c, b]), such that an example's
        bits do not depend on its place among the rows: where this machine's products of b rows differ by row (30
        inputs: they are no multiple of a register), every example is a product of its own, with a copy of theta.
        """
        c, b = inputs.shape[:2]
        if apart := not self._rows_are_alike(thetas, inputs, targets):
            thetas = [theta.repeat_interleave(b, 0) for theta in thetas]
            inputs, targets = inputs.flatten(0, 1).unsqueeze(1), targets.flatten(0, 1).unsqueeze(1)
        layer_inputs, logits = self._forward(thetas, inputs)
        losses, slope = self.task.slope(logits, targets)
        slopes = self._backward(thetas, layer_inputs, slope)
        if not apart:
            return layer_inputs, slopes, losses
        layer_inputs, slopes = ([part.view(c, b, -1) for part in parts] for parts in (layer_inputs, slopes))
        return layer_inputs, slopes, losses.view(c, b)

    def _rows_are_alike(self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor) -> bool:
        """Whether equal examples get equal bits in every row of a product of these shapes: looked at once, on public
        random numbers (as `fedpriv.mechanisms.per_example` does).
        """
        key = inputs.shape[1], *(theta.shape[1:] for theta in thetas), inputs.device
        if key not in self._alike:
            random = torch.Generator().manual_seed(0)
            own = [torch.randn(TRIED, *theta.shape[1:], generator=random).to(inputs.device) for theta in thetas]
            row = torch.randn(TRIED, 1, inputs.shape[2], generator=random).to(inputs.device)
            layer_inputs, logits = self._forward(own, row.expand(-1, inputs.shape[1], -1).contiguous())
            blank = self.task.blank(TRIED, inputs.shape[1]).to(inputs.device)
            slopes = self._backward(own, layer_inputs, self.task.slope(logits, blank)[1])
            found = [*layer_inputs, *slopes]
            self._alike[key] = all(torch.equal(part, part[:, :1].expand_as(part)) for part in found)
        return self._alike[key]

    def _forward(self, thetas: Sequence[Tensor], inputs: Tensor) -> tuple[list[Tensor], Tensor]:
        """(every layer's inputs [c, b, i], logits [c, b, classes])."""
        layer_inputs, values, place = [], inputs, 0
        for bias, relu in self.layers:
            layer_inputs.append(values)
            weight = thetas[place].mT
            values = torch.baddbmm(thetas[place + 1].unsqueeze(1), values, weight) if bias else values @ weight
            place += 1 + bias
            if relu:
                values = values.relu_()
        return layer_inputs, values

    def _backward(self, thetas: Sequence[Tensor], layer_inputs: Sequence[Tensor], slope: Tensor) -> list[Tensor]:
        """Gradients of every layer's outputs [c, b, o] from the gradient of the logits."""
        found, place = [slope], len(thetas)
        for number in reversed(range(1, len(self.layers))):
            place -= 1 + self.layers[number][0]
            slope = torch.bmm(slope, thetas[place])
            if self.layers[number - 1][1]:
                slope.mul_(layer_inputs[number] > 0)
            found.append(slope)
        return found[::-1]


class Mapped:
    """Any model that `torch.func.vmap` can handle."""

    def __init__(self, module: nn.Module, task: Task = CLASSES) -> None:
        names = [name for name, _ in module.named_parameters()]

        def loss(thetas: list[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            logits = torch.func.functional_call(module, dict(zip(names, thetas, strict=True)), (inputs,))
            losses = task.losses(logits, targets) * weights
            return losses.sum(), losses.detach()

        self._gradients = torch.func.vmap(torch.func.grad(loss, has_aux=True))

    def prepared(self, inputs: Tensor) -> Tensor:
        return inputs

    def gradients(
        self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, list[Whole]]:
        """As `Chain.gradients`, of examples [c, b, channels, height, width]."""
        found, losses = self._gradients(list(thetas), inputs, targets, weights)
        return losses.cumsum(1)[:, -1], [Whole(gradient) for gradient in found]


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested `nn.Sequential`s in the order in which they are applied."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from _leaves(child)
    else:
        yield module


def _weighted(losses: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums [c] of losses [c, b], one after the other: padding of weight 0 changes no bit."""
    return (losses * weights).cumsum(1)[:, -1]


def _squares(x: Tensor) -> Tensor:
    """Squared norms (float64 [c, b]) of vectors [c, b, ...]."""
    return torch.linalg.vector_norm(x.double(), dim=-1).square()
