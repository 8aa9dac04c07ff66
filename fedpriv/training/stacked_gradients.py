"""Gradients of many models at once: layer by layer where every layer is known, else by torch.func."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.mechanisms.bookkeeping import ALIGNED, filled
from fedpriv.mechanisms.clipped_sums import ClippedSum, computes_apart, not_apart
from fedpriv.mechanisms.noise import clip_factors, in_threads
from fedpriv.mechanisms.quiet_vmap import quiet_vmap, said_to_be_traced
from fedpriv.mechanisms.rowwise import hooked
from fedpriv.mechanisms.tasks import CLASSES, Classification, Multilabel, Regression, Task

#: How closely a model's gradients under vmap must agree with its ordinary ones before they are used.
TOLERANCE = 1e-3

#: The most rows of a block: products of fewer rows take longer for each.
LARGEST_BLOCK = 2**10


#: Several would divide a product by how many clients there are.
one_thread = partial(in_threads, 1)


def block_for(expected: int) -> int:
    """Rows of equal blocks that hold most Poisson batches of a public expected size, few rows of them blank."""
    most = expected + 2 * math.isqrt(expected)
    blocks = -(-most // LARGEST_BLOCK)
    return -(-most // (ALIGNED * blocks)) * ALIGNED


class Held(Protocol):
    """A client's rows, as `fedpriv.training.sequential.LocalData` has them."""

    @property
    def inputs(self) -> Tensor: ...

    @property
    def targets(self) -> Tensor: ...

    @property
    def unit(self) -> Tensor | None: ...


class _Rows(NamedTuple):
    inputs: Tensor
    targets: Tensor
    unit: Tensor | None = None


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

    @property
    def value(self) -> Tensor:
        return self.outputs.mT @ self.inputs

    def first(self, clients: int) -> _Product:
        """Of the first clients alone."""
        return _Product(self.outputs[:clients], self.inputs[:clients])

    def add_to(self, target: Tensor, alpha: float, beta: float) -> None:
        target.baddbmm_(self.outputs.mT, self.inputs, beta=beta, alpha=alpha)


# --- losses and their derivatives by hand ------------------------------------------------------------------
# (losses [..., n] as the task's own, their gradients with respect to the outputs [..., n, k]), without a graph.


def _of_classes(task: Classification, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_shares = functional.log_softmax(outputs, dim=-1)
    place = targets.unsqueeze(-1)
    losses = -log_shares.gather(-1, place).squeeze(-1)
    slope = log_shares.exp_()
    return losses, slope.scatter_add_(-1, place, torch.full_like(losses, -1.0).unsqueeze(-1))


def _of_labels(task: Multilabel, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    slope = (torch.sigmoid(outputs) - targets).masked_fill_(targets.isnan(), 0.0)
    return task.losses(outputs, targets), slope.div_(task.num_outputs)


def _of_number(task: Regression, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    wrong = outputs.squeeze(-1) - targets
    kept = wrong if task.huber is None else wrong.clamp(-task.huber, task.huber)
    return task.losses(outputs, targets), kept.unsqueeze(-1)


#: Of the tasks whose models are computed by hand; all others go through torch.func.
SLOPES: dict[type[Task], Callable[..., tuple[Tensor, Tensor]]] = {
    Classification: _of_classes,
    Multilabel: _of_labels,
    Regression: _of_number,
}


class Chain:
    """Flatten, then Linear layers with ReLU between them: the models `linear` and `mlp`, and custom ones like them."""

    def __init__(self, layers: Sequence[tuple[bool, bool]], task: Task = CLASSES) -> None:
        self.layers, self.task = layers, task  # a layer: (has a bias, is followed by ReLU)
        self._slope = SLOPES[type(task)]
        self._blocks: dict[tuple[object, ...], int] = {}

    @classmethod
    def of(cls, module: nn.Module, task: Task = CLASSES) -> Chain | None:
        """None for any other model, and for a task whose derivative is not written by hand."""
        if type(task) not in SLOPES:
            return None
        flat = list(_leaves(module))
        linear = [layer for layer in flat if isinstance(layer, nn.Linear)]
        # Hooks, shared weights and weights that are not trained are handled only by the module itself.
        weights = [weight for layer in linear for weight in layer.parameters()]
        if any(hooked(part) for part in module.modules()) or len(set(map(id, weights))) < len(weights):
            return None
        if not all(weight.requires_grad and not weight._backward_hooks for weight in weights):
            return None
        if any(isinstance(part, Tensor) for layer in linear for part in layer.buffers()):  # frozen: model.train
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
        losses, slope = self._slope(self.task, logits, targets)
        slopes = self._backward(thetas, layer_inputs, slope.mul_(weights.unsqueeze(-1)))
        found: list[_Product | Whole] = []
        for (bias, _), outputs, own in zip(self.layers, slopes, layer_inputs, strict=True):
            found.append(_Product(outputs, own))
            if bias:
                found.append(Whole(outputs.sum(1)))
        return _weighted(losses, weights), found

    def losses(self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Weighted losses [c] alone."""
        logits = self._forward(thetas, inputs)[1]
        return _weighted(self._slope(self.task, logits, targets)[0], weights)

    def rows(
        self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, list[tuple[bool, Tensor, Tensor]]]:
        """(losses [c, b], of each layer: whether it has a bias, gradients of outputs [c, b, o], inputs [c, b, i])."""
        padded = self._padded(thetas)
        layer_inputs, logits = self._forward(padded, _widened(inputs, -inputs.shape[-1] % ALIGNED))
        losses, slope = self._slope(self.task, logits[..., : thetas[-1].shape[1]].contiguous(), targets)
        slopes = self._backward(padded, layer_inputs, _widened(slope, -slope.shape[-1] % ALIGNED))
        weights = [theta.shape[1:] for theta in thetas if theta.ndim == 3]
        found = zip(self.layers, weights, slopes, layer_inputs, strict=True)
        return losses, [(bias, slope[..., :outs], own[..., :ins]) for (bias, _), (outs, ins), slope, own in found]

    def _padded(self, thetas: Sequence[Tensor]) -> list[Tensor]:
        """Parameters for inputs and outputs of a width that is a multiple of `ALIGNED`, with zeros."""
        found, place = [], 0
        for bias, _ in self.layers:
            more = -thetas[place].shape[1] % ALIGNED
            found.append(_widened(thetas[place], -thetas[place].shape[2] % ALIGNED, more))
            if bias:
                found.append(_widened(thetas[place + 1], more))
            place += 1 + bias
        return found

    def block(self, thetas: Sequence[Tensor], wanted: int) -> int:
        """The largest block up to ``wanted`` rows, in halves, of which `computes_apart` finds no row that depends on
        its place or on others (`fedpriv.mechanisms.per_example`): by the code, the number of clients and the number of
        rows of these parameters [c, ...], on random ones. Raises `OptionError` where even single rows do.
        """
        shapes, device = [theta.shape[1:] for theta in thetas], thetas[0].device
        key = (*shapes, len(thetas[0]), device, wanted)
        if key not in self._blocks:
            size = wanted
            while not self._computes_apart(shapes, len(thetas[0]), size, device):
                if size == 1:
                    raise not_apart("a chain of Linear layers", device)
                size //= 2
            self._blocks[key] = size
        return self._blocks[key]

    def _computes_apart(self, shapes: Sequence[Sequence[int]], clients: int, size: int, device: torch.device) -> bool:
        random, thetas = torch.Generator().manual_seed(0), list[Tensor]()

        def draw() -> tuple[Tensor, Tensor]:
            drawn = [torch.randn(clients, *shape, generator=random) / math.sqrt(shape[-1]) for shape in shapes]
            thetas[:] = [theta.to(device) for theta in drawn]
            inputs = torch.randn(size + 1, clients, shapes[0][1], generator=random).to(device)
            return inputs, self.task.blank(size + 1, clients).to(device)

        def parts(inputs: Tensor, targets: Tensor) -> list[Tensor]:
            losses, layers = self.rows(
                thetas, inputs.transpose(0, 1).contiguous(), targets.transpose(0, 1).contiguous()
            )
            return [part.transpose(0, 1) for part in (losses, *(part for _, *both in layers for part in both))]

        def total(inputs: Tensor, targets: Tensor) -> Tensor:
            data = [_Rows(inputs[:, client], targets[:, client]) for client in range(clients)]
            return torch.stack([found.total for found in self._sums(thetas, data, [1.0] * clients, size)])

        return computes_apart(draw, parts, total, clients * size * sum(math.prod(shape) for shape in shapes))

    def clipped(
        self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor, real: Tensor, bounds: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(sums of clipped per-example gradients float64 [c, d], norms float64 [c, b], sums of losses [c]); ``real``
        [c, b] is False for padding, ``bounds`` float64 [c]. As `PerExampleGradients`: a broken example contributes
        nothing; norms and sums are float64, for the reasons given there (2).
        """
        losses, rows = self.rows(thetas, inputs, targets)
        layers = [(bias, outputs.double(), own.double()) for bias, outputs, own in rows]
        norms = torch.zeros(losses.shape, dtype=torch.float64, device=targets.device)
        for bias, outputs, own in layers:
            norms += _squares(outputs) * (_squares(own) + bias)
        norms.sqrt_()
        factors = clip_factors(norms, bounds.unsqueeze(1)).masked_fill_(~real, 0.0).unsqueeze(-1)
        broken = ~torch.isfinite(norms)
        if broken.any():
            losses = losses.masked_fill(broken, 0.0)
            gone = broken.unsqueeze(-1)
            layers = [(bias, slope.masked_fill(gone, 0.0), own.masked_fill(gone, 0.0)) for bias, slope, own in layers]
        parts = []
        for bias, outputs, own in layers:
            weighted = outputs.mul_(factors)
            parts.append(torch.bmm(weighted.mT, own).flatten(1))
            if bias:
                parts.append(weighted.sum(1))
        return torch.cat(parts, dim=1), norms, losses.masked_fill(~real, 0.0).sum(1)

    @one_thread()
    @torch.no_grad()
    def clipped_sums(
        self, thetas: Sequence[Tensor], data: Sequence[Held], bounds: Sequence[float], block: int
    ) -> list[ClippedSum]:
        """Each client's sum, on the parameters' device, at its own parameters [c, ...] over its examples, of ``block``
        at a time at most.

        Every product has one shape, of all clients and `block` rows, whoever has how many rows or none: a library
        takes another kernel for another number of products too (`fedpriv.mechanisms.per_example`).
        """
        return self._sums(thetas, data, bounds, self.block(thetas, block))

    def _sums(
        self, thetas: Sequence[Tensor], data: Sequence[Held], bounds: Sequence[float], size: int
    ) -> list[ClippedSum]:
        device, counts = thetas[0].device, torch.tensor([len(own.targets) for own in data])
        limits = torch.tensor(bounds, dtype=torch.float64, device=device)
        total = torch.zeros(len(data), sum(theta[0].numel() for theta in thetas), dtype=torch.float64, device=device)
        losses, norms = torch.zeros(len(data), device=device), list[Tensor]()
        for start in range(0, int(counts.max()), size):
            inputs, targets = self.block_of(data, start, size, device)
            real = torch.arange(start, start + size) < counts.unsqueeze(1)
            found, lengths, loss = self.clipped(thetas, inputs, targets, real.to(device), limits)
            total += found
            losses += loss
            norms.append(lengths)
        measured = torch.cat(norms, 1).cpu() if norms else torch.zeros(len(data), 0, dtype=torch.float64)
        return [
            ClippedSum(own, lengths[:count].clone(), loss / max(1, count))
            for own, lengths, loss, count in zip(total, measured, losses.tolist(), counts.tolist(), strict=True)
        ]

    def block_of(self, data: Sequence[Held], start: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Each client's rows from ``start`` on, [c, size, ...], and targets: in fresh memory, with blanks behind."""
        parts = [self.prepared(own.inputs[start : start + size]) for own in data]
        targets = [own.targets[start : start + size] for own in data]
        return tuple(torch.stack([filled(part, size) for part in of]).to(device) for of in (parts, targets))  # type: ignore[return-value]

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
    """Any model that `torch.func.vmap` can handle. Its convolutions become one of as many groups as there are models;
    to unfold inputs and take batched products took a third longer on an H200 (docs/benchmarks.md).
    """

    def __init__(self, module: nn.Module, task: Task = CLASSES) -> None:
        names = [name for name, _ in module.named_parameters()]

        def loss(thetas: list[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            logits = torch.func.functional_call(module, dict(zip(names, thetas, strict=True)), (inputs,))
            losses = task.losses(logits, targets) * weights
            return losses.sum(), losses.detach()

        self._gradients, self._losses = quiet_vmap(torch.func.grad(loss, has_aux=True)), quiet_vmap(loss)

    def prepared(self, inputs: Tensor) -> Tensor:
        return inputs

    def gradients(
        self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, list[Whole]]:
        """As `Chain.gradients`, of examples [c, b, channels, height, width]."""
        with said_to_be_traced():
            found, losses = self._gradients(list(thetas), inputs, targets, weights)
        return losses.cumsum(1)[:, -1], [Whole(gradient) for gradient in found]

    def losses(self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """As `Chain.losses`."""
        losses: Tensor = self._losses(list(thetas), inputs, targets, weights)[1]
        return losses.cumsum(1)[:, -1]


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


def _widened(x: Tensor, *zeros: int) -> Tensor:
    """With so many zeros behind its last dimensions, the last one first; x itself, no copy, where there are none."""
    return functional.pad(x, [part for more in zeros for part in (0, more)]) if any(zeros) else x


def _squares(x: Tensor) -> Tensor:
    """Squared norms [c, b] of vectors [c, b, ...], in float64."""
    return torch.linalg.vector_norm(x.double(), dim=-1).square()
