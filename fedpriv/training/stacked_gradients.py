"""Gradients of many models at once: layer by layer where every layer is known, else by torch.func."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.mechanisms.bookkeeping import filled
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.noise import clip_factors
from fedpriv.mechanisms.quiet_vmap import quiet_vmap
from fedpriv.mechanisms.rowwise import hooked
from fedpriv.mechanisms.tasks import CLASSES, Classification, Multilabel, Regression, Task

#: How closely a model's gradients under vmap must agree with its ordinary ones before they are used.
TOLERANCE = 1e-3

#: Products of rows this wide, or a multiple of it, give equal rows equal bits (`Chain.block` looks whether it is so).
ALIGNED = 8


#: The most rows of a block: products of fewer rows take longer for each.
LARGEST_BLOCK = 2**8

#: Rows whose clipped gradients are summed at a time.
ROWS = 2**12


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


# --- losses and their derivatives by hand ------------------------------------------------------------------
# (losses [..., n] as the task's own, their gradients with respect to the outputs [..., n, k]), without a graph.


def _of_classes(task: Classification, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_shares = functional.log_softmax(outputs, dim=-1)
    place = targets.unsqueeze(-1)
    losses = -log_shares.gather(-1, place).squeeze(-1)
    slope = log_shares.exp_()
    return losses, slope.scatter_add_(-1, place, torch.full_like(losses, -1.0).unsqueeze(-1))


def _of_labels(task: Multilabel, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return task.losses(outputs, targets), (torch.sigmoid(outputs) - targets).div_(task.num_outputs)


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

    def rows(
        self, thetas: Sequence[Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, list[tuple[bool, Tensor, Tensor]]]:
        """(losses [c, b], of each layer: whether it has a bias, gradients of outputs [c, b, o], inputs [c, b, i])."""
        padded = self._padded(thetas)
        layer_inputs, logits = self._forward(padded, _widened(inputs, -inputs.shape[-1] % ALIGNED))
        losses, slope = self._slope(self.task, logits, targets)
        slopes = self._backward(padded, layer_inputs, slope)
        weights = [theta.shape[1:] for theta in thetas if theta.ndim == 3]
        found = zip(self.layers, weights, slopes, layer_inputs, strict=True)
        return losses, [(bias, slope[..., :outs], own[..., :ins]) for (bias, _), (outs, ins), slope, own in found]

    def _padded(self, thetas: Sequence[Tensor]) -> list[Tensor]:
        """Parameters for inputs and hidden layers of a width that is a multiple of `ALIGNED`, with zeros."""
        found, place = [], 0
        for number, (bias, _) in enumerate(self.layers):
            more = -thetas[place].shape[1] % ALIGNED if number < len(self.layers) - 1 else 0
            found.append(_widened(thetas[place], -thetas[place].shape[2] % ALIGNED, more))
            if bias:
                found.append(_widened(thetas[place + 1], more))
            place += 1 + bias
        return found

    def block(self, thetas: Sequence[Tensor], wanted: int) -> int:
        """The largest block up to ``wanted`` rows in which equal rows get equal bits wherever they stand, on random
        examples and parameters of these shapes [c, ...]: else an example more would move the others in their blocks and
        change their gradients (`fedpriv.mechanisms.per_example`).
        """
        key = (tuple(tuple(theta.shape[1:]) for theta in thetas), min(2, len(thetas[0])), thetas[0].device, wanted)
        if key not in self._blocks:
            size = wanted
            while size > 1 and not self._alike(key[0], key[1], size, thetas[0].device):
                size //= 2
            self._blocks[key] = size
        return self._blocks[key]

    def _alike(self, shapes: Sequence[tuple[int, ...]], clients: int, size: int, device: torch.device) -> bool:
        random = torch.Generator().manual_seed(0)
        for _ in range(3):
            thetas = [torch.randn(clients, *shape, generator=random).to(device) for shape in shapes]
            row = torch.randn(clients, 1, shapes[0][1], generator=random).to(device)
            targets = self.task.blank(clients, size).to(device)
            losses, layers = self.rows(thetas, row.repeat(1, size, 1), targets)
            parts = [losses.unsqueeze(-1), *(part for _, *both in layers for part in both)]
            if not all(torch.equal(part, part[:, :1].expand_as(part)) for part in parts):
                return False
        return True

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
    def clipped_sum(
        self, theta: Sequence[Tensor], inputs: Tensor, targets: Tensor, bound: float, block: int
    ) -> ClippedSum:
        """One client's sum at its parameters (one tensor each) over examples [n, ...] with their targets, in blocks of
        ``block`` at most: all of them are one computation, as if each were a client's.
        """
        device, rows = theta[0].device, self.prepared(inputs)
        size = self.block([part.unsqueeze(0) for part in theta], block)
        total = torch.zeros(sum(part.numel() for part in theta), dtype=torch.float64)
        norms, loss = [torch.zeros(0, dtype=torch.float64)], 0.0
        if not len(targets):  # a sample that nobody is in
            return ClippedSum(total, norms[0], loss)
        for own, of in zip(rows.split(ROWS), targets.split(ROWS), strict=True):
            blocks = -(-len(of) // size)
            real = torch.arange(blocks * size).view(blocks, size) < len(of)
            own, labels = (filled(part, blocks * size).to(device) for part in (own, of))
            found, lengths, losses = self.clipped(
                [part.expand(blocks, *part.shape) for part in theta],
                own.view(blocks, size, -1),
                labels.view(blocks, size, *labels.shape[1:]),
                real.to(device),
                torch.full((blocks,), bound, dtype=torch.float64, device=device),
            )
            total += found.sum(0).cpu()
            norms.append(lengths.flatten()[: len(of)].cpu())
            loss += float(losses.sum())
        return ClippedSum(total, torch.cat(norms), loss / max(1, len(targets)))

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

        self._gradients = quiet_vmap(torch.func.grad(loss, has_aux=True))

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


def _widened(x: Tensor, *zeros: int) -> Tensor:
    """With so many zeros behind its last dimensions, the last one first; x itself, no copy, where there are none."""
    return functional.pad(x, [part for more in zeros for part in (0, more)]) if any(zeros) else x


def _squares(x: Tensor) -> Tensor:
    """Squared norms [c, b] of vectors [c, b, ...], in float64."""
    return torch.linalg.vector_norm(x.double(), dim=-1).square()
