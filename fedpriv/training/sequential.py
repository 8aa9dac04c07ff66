"""A client's local training: its examples as a model reads them, a model as one flat vector, batches, and SGD."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import DataError, FedprivError, OptionError, OwnCodeError
from fedpriv.common.places import code_at
from fedpriv.config.schema import LocalConfig
from fedpriv.data.types import Dataset, Examples
from fedpriv.mechanisms.clipped_sums import ClippedSum, block_on_gpu, made_up
from fedpriv.mechanisms.per_example import BLOCK, BLOCK_OF_TEXT, PerExampleGradients, block_for
from fedpriv.mechanisms.step_gradients import StepGradient
from fedpriv.mechanisms.tasks import CLASSES, PADDING, Classification, Task
from fedpriv.training.flat_model import layout_of
from fedpriv.training.persons import sums_of_persons
from fedpriv.training.stacked_gradients import Chain
from fedpriv.training.stacked_gradients import block_for as block_of_chain


@dataclass(frozen=True)
class LocalData:
    """One client's training examples (float32 [n, ...], token ids int64 [n, t]) and targets [n, ...]; unit: int64 [n],
    where rows of one person are to be clipped together.
    """

    inputs: Tensor
    targets: Tensor  # on the examples' device: usually the CPU, or the model's device
    unit: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)


def inputs_of(dataset: Dataset, examples: Examples, rows: np.ndarray) -> Tensor:
    """What a model reads of these rows (int64 [b]): normalised examples float32 [b, c, h, w], or their public features
    [b, d, 1, 1], or a table's rows [b, d], or token ids int64 [b, t]. Features are used as they are: a mean or
    deviation of them over a data set would be a release.
    """
    if dataset.vocabulary is not None:
        return ids_of(examples.inputs[rows], dataset.vocabulary)
    if examples.inputs.dtype != np.uint8:
        return torch.from_numpy(np.ascontiguousarray(examples.inputs[rows]))
    if examples.features is None:
        return normalise(examples.inputs[rows], dataset.mean, dataset.std)
    return torch.from_numpy(examples.features[rows])[:, :, None, None]


def ids_of(ids: np.ndarray, vocabulary: int) -> Tensor:
    """Token ids as int64. Raises `DataError` for one outside the vocabulary: a GPU would not come back from it."""
    if ids.size and not (ids.min() >= 0 and ids.max() < vocabulary):
        raise DataError(f"token ids from {ids.min()} to {ids.max()}; allowed: 0 (padding) to {vocabulary - 1}")
    return torch.from_numpy(ids.astype(np.int64))


def normalise(inputs: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(inputs / 255 - mean) / std, channel by channel: uint8 [n, c, h, w] -> float32 [n, c, h, w].

    In numpy, because one conversion and two in-place passes take half the time of torch on one thread, and the result
    does not depend on the number of threads.
    """
    scale, shift = scale_and_shift(mean, std)
    pixels = inputs.astype(np.float32)
    pixels *= scale
    pixels -= shift
    return torch.from_numpy(pixels)


def scale_and_shift(mean: Sequence[float], std: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """(a, b), float32 [c, 1, 1]: a normalised example is a * pixel - b."""
    scale = 1 / (255 * np.asarray(std, dtype=np.float64))
    shift = np.asarray(mean, dtype=np.float64) / np.asarray(std, dtype=np.float64)
    return tuple(values.astype(np.float32).reshape(-1, 1, 1) for values in (scale, shift))  # type: ignore[return-value]


@dataclass(frozen=True)
class Clipping:
    """One sum of clipped gradients: of ``data`` at ``theta`` [d], each clipped to ``bound``, or to the median of their
    own norms (``chosen``). stays: whether the sum may stay on the model's device. expected: how many rows, a public
    number; None: `local.batch_size`.
    """

    theta: Tensor
    data: LocalData
    bound: float
    chosen: str = "given"
    stays: bool = False
    expected: int | None = None


@dataclass(frozen=True)
class Training:
    """One client's local training from ``theta`` [d]; see `SequentialTrainer.train`."""

    theta: Tensor
    data: LocalData
    rng: np.random.Generator
    proximal_mu: float = 0.0
    drift: Tensor | None = None
    gradient: StepGradient | None = None


@dataclass(frozen=True)
class Told:
    """What a function of the user's (`local.train`) is told: the round, 1 to num_rounds, its learning rate, the options
    `local`, a generator seeded for this client and round, and FedProx's mu (else 0).
    """

    round: int
    num_rounds: int
    lr: float
    local: LocalConfig
    rng: np.random.Generator
    proximal_mu: float = 0.0


@dataclass(frozen=True)
class LocalResult:
    """Delta = theta_local - theta_global (float32 [d], on the model's device) and the mean training loss over the
    batches.
    """

    update: Tensor
    loss: float


def draw_batches(config: LocalConfig, examples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Rows of each batch of one participation.

    shuffle: every epoch is a permutation cut into batches of ``batch_size``. poisson: round(1/q) batches per epoch;
    each includes every example independently at rate q = batch_size/examples, so a batch can be empty. There are
    ``epochs`` epochs, or as many as ``steps`` batches need. At least one example.
    """
    if not config.steps:
        return iter([rows for _ in range(config.epochs) for rows in _epoch(config, examples, rng)])
    return itertools.islice(
        itertools.chain.from_iterable(_epoch(config, examples, rng) for _ in itertools.count()), config.steps
    )


def _epoch(config: LocalConfig, examples: int, rng: np.random.Generator) -> list[np.ndarray]:
    if config.sampler == "shuffle":
        order = rng.permutation(examples)
        return [order[start : start + config.batch_size] for start in range(0, examples, config.batch_size)]
    rate = min(1.0, config.batch_size / examples)
    return [(rng.random(examples) < rate).nonzero()[0] for _ in range(round(1 / rate))]


class FlatModel:
    """A model whose parameters and gradients are views into two flat vectors ``theta`` and ``grad`` [d].

    Loading global parameters, an SGD step and computing an update are then single vector operations.

    channels_last: pass examples with the channels innermost in memory, for models whose layers are known to support
    it (`prefers_channels_last`). vocabulary: of a model that reads token ids.

    statistics: places (int64 [m]) of running statistics, which forward passes in training move in place and gradients
    do not; None: there are none.
    """

    statistics: Tensor | None = None

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        task: Task = CLASSES,
        vocabulary: int | None = None,
    ) -> None:
        self.module, self.channels_last, self.task = model.to(device), channels_last, task
        self.vocabulary = vocabulary
        self.layout = layout_of(self.module)
        size = self.layout.num_parameters
        self.theta = torch.empty(size, device=device)
        self.grad = torch.zeros(size, device=device)
        start, fixed = 0, list[Tensor]()
        for parameter in self.module.parameters():  # in the layout's order
            stop = start + parameter.numel()
            self.theta[start:stop] = parameter.detach().reshape(-1)
            parameter.data = self.theta[start:stop].view(parameter.shape)
            parameter.grad = self.grad[start:stop].view(parameter.shape)
            fixed += [] if parameter.requires_grad else [torch.arange(start, stop, device=device)]
            start = stop
        if fixed:
            self.statistics = torch.cat(fixed)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits [n, classes] of normalised examples [n, channels, height, width]."""
        logits: Tensor = self.module(channels_innermost(inputs) if self.channels_last else inputs)
        return logits

    def made_up(self, *shape: int, random: torch.Generator) -> Tensor:
        """Random examples that this model can read, of this shape in all."""
        return made_up(*shape, vocabulary=self.vocabulary, random=random)

    def load(self, theta: Tensor) -> None:
        """Sets all parameters from a flat vector [d]; a wrong length raises ValueError."""
        if theta.shape != self.theta.shape:
            raise ValueError(f"{theta.numel()} parameters for a model of {self.theta.numel()}")
        self.theta.copy_(theta)


def prefers_channels_last(name: str, device: torch.device) -> bool:
    """Whether a built-in model computes faster on examples with the channels innermost: on a CPU, pooling and ReLU are
    then vectorised, which saves the small networks a quarter of a training step (ResNets pool once and save nothing).
    A user's model may need the usual order, e.g. for a `view`.
    """
    return device.type == "cpu" and name in ("cnn", "cnn_agn")


def channels_innermost(inputs: Tensor) -> Tensor:
    """The same examples [n, c, h, w] with the channels innermost in memory."""
    n, c, h, w = inputs.shape
    if c > 1:
        return inputs.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts are the same in memory: the strides alone tell the first layer which one is meant.
    return inputs.contiguous().as_strided((n, c, h, w), (h * w, 1, w, 1))


_MEAN, _IGNORED = 1, -100  # of nll_loss, as `functional.cross_entropy` has them


class LinearGradient:
    """Loss and gradient of a `FlatModel` that flattens examples and has one Linear layer, without a graph: the products
    that autograd makes, in its order, so the bits are the same. Small clients' steps take a third of their time.

    With logits L = XW' + b [n, C] of inputs X [n, d] and G = dloss/dL [n, C]: dloss/dW = G'X, dloss/db = sum_i G_i.
    """

    def __init__(self, layer: nn.Linear, device: torch.device) -> None:
        self._layer, self._one = layer, torch.ones((), device=device)

    @classmethod
    def of(cls, model: FlatModel) -> LinearGradient | None:
        """None for any other model, for one with hooks, and where a parameter is not trained."""
        chain = Chain.of(model.module)
        if chain is None or len(chain.layers) != 1:
            return None
        (layer,) = (part for part in model.module.modules() if type(part) is nn.Linear)
        if type(model.task) is not Classification:
            return None
        return cls(layer, model.theta.device) if all(part.requires_grad for part in layer.parameters()) else None

    @property
    def holds(self) -> bool:
        """Whether a call of the layer is still a product and no more: hooks and mixed precision may come later."""
        layer = self._layer
        hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
        of_parameters = (part._backward_hooks for part in layer.parameters())
        mixed = torch.is_autocast_enabled(layer.weight.device.type)
        return not (any(hooks) or any(of_parameters) or mixed or "forward" in vars(layer))

    @torch.no_grad()
    def add(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss [] of examples [n, c, h, w] with labels int64 [n], n > 0; adds its gradient to the model's."""
        layer, aten = self._layer, torch.ops.aten
        layer_inputs = inputs.flatten(1)
        shares = torch.log_softmax(functional.linear(layer_inputs, layer.weight, layer.bias), 1)
        loss: Tensor
        loss, weight = aten.nll_loss_forward(shares, labels, None, _MEAN, _IGNORED)
        outputs = aten.nll_loss_backward(self._one, shares, labels, None, _MEAN, _IGNORED, weight)
        outputs = aten._log_softmax_backward_data(outputs, shares, 1, shares.dtype)
        assert layer.weight.grad is not None, "a FlatModel's gradients are there"
        layer.weight.grad.add_(outputs.t().mm(layer_inputs))
        if layer.bias is not None and layer.bias.grad is not None:
            layer.bias.grad.add_(outputs.sum(0))
        return loss


class SequentialTrainer:
    """Trains one client at a time on a model that is built once per process.

    precision: of the products in forward and backward passes (`torch.autocast`); parameters, gradients and updates
    are always float32, so what is clipped, noised and sent has the same dtype.
    """

    #: Of the participation at hand, and of how many (`Method.begin`, the worker).
    round, num_rounds = 1, 1
    #: Whether training runs code of the user's, which may raise for some data alone.
    foreign = False

    def __init__(self, model: FlatModel, config: LocalConfig, precision: str = "float32") -> None:
        self.model, self.config, self.precision = model, config, precision
        self._per_example: dict[bool, PerExampleGradients] = {}
        by_hand = precision == "float32" and config.clipping != "opacus"
        self._chain = Chain.of(model.module, model.task) if by_hand else None
        self._linear = LinearGradient.of(model) if precision == "float32" else None

    @property
    def lr(self) -> float:
        """Learning rate of this round, 1 to num_rounds, by `local.schedule`."""
        config, done = self.config, min(1.0, (self.round - 1) / self.num_rounds)
        if config.schedule == "constant":
            return config.lr
        return config.lr * (1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)

    def clipped_sum(
        self,
        theta: Tensor,
        data: LocalData,
        bound: float,
        chosen: str = "given",
        stays: bool = False,
        expected: int | None = None,
    ) -> ClippedSum:
        """Sum [d] over ``data`` of the per-example gradients at ``theta`` [d], each clipped to ``bound``."""
        device, unit = self.model.theta.device, data.unit
        if self._chain is not None and chosen == "given" and (unit is not None or self._by_hand(data)):
            thetas = [part.unsqueeze(0) for _, part in self.model.layout.split(theta.to(device))]
            sums = self._chain.clipped_sums if unit is None else partial(sums_of_persons, self._chain)
            (found,) = sums(thetas, [data], [bound], block_of_chain(expected or self.config.batch_size))
            return found if stays else replace(found, total=found.total.cpu())
        per_example = self.per_example(data.inputs.shape[1:], units=unit is not None)
        self.model.load(theta.to(device))
        self.model.module.train()
        unit = None if unit is None else unit.to(device)
        found = per_example.clipped_sum(data.inputs.to(device), data.targets.to(device), bound, chosen, unit)
        return found if stays else replace(found, total=found.total.cpu())

    def _by_hand(self, data: LocalData) -> bool:
        """Whether a chain's sums over rows are computed by hand: a GPU has larger blocks for pictures."""
        per_example = self.per_example(data.inputs.shape[1:])
        flat = per_example.physical == 1 or data.inputs.ndim == 2
        return per_example.mode == "bookkeeping" and (flat or self.model.theta.device.type == "cpu")

    def clipped_sums(self, requests: Sequence[Clipping]) -> list[ClippedSum]:
        """Several clients' `clipped_sum`."""
        return [self.clipped_sum(**vars(one)) for one in requests]

    def train_all(self, requests: Sequence[Training]) -> list[LocalResult]:
        """Several clients' `train`; all with one mu, and all or none with a drift."""
        return [self.train(one) for one in requests]

    def per_example(self, shape: Sequence[int], units: bool = False) -> PerExampleGradients:
        """Of the model on examples of this shape, settled once, before any data or parameters of a server are seen.
        units: gradients of single rows are formed, since those of a person are added up before they are clipped.

        Raises `OptionError` for a model whose examples' gradients cannot be told apart for certain.
        """
        if units not in self._per_example:
            # Opacus' formulas, or gradients that are formed: of a person's rows they are added before they are clipped.
            mode = "opacus" if self.config.clipping == "opacus" else "vmap" if units else None
            model, expected = self.model, self.config.batch_size
            block = block_for(expected, BLOCK if model.vocabulary is None else BLOCK_OF_TEXT)
            if model.theta.is_cuda:
                block = block_on_gpu(expected)
            found = PerExampleGradients(
                model.module,
                mode,
                block=block,
                task=model.task,
                vocabulary=model.vocabulary,
                precision=self.precision,
            )
            found.settle(shape, self.model.theta.device)
            self._per_example[units] = found
        return self._per_example[units]

    def accuracy(self, theta: Tensor, data: LocalData, batch_size: int) -> float:
        """Share of the examples (at least one), of sequences of their tokens, that ``theta`` [d] gets right."""
        model = self.model
        model.load(theta.to(model.theta.device))
        model.module.eval()
        with torch.inference_mode():
            batches = zip(data.inputs.split(batch_size), data.targets.cpu().split(batch_size), strict=True)
            right = [
                (model(inputs.to(model.theta.device)).argmax(-1).cpu() == labels).sum() for inputs, labels in batches
            ]
        return int(sum(right)) / max(1, int((data.targets != PADDING).sum()))

    def _mixed(self) -> AbstractContextManager[Any]:
        if self.precision != "bfloat16":  # to enter and leave a context that changes nothing is a tenth of a small step
            return nullcontext()
        return torch.autocast(self.model.theta.device.type, torch.bfloat16)

    def train(self, asked: Training) -> LocalResult:
        """SGD from ``theta`` [d]; with ``proximal_mu`` the loss has the term mu/2 * ||w - theta||^2 (FedProx), with
        ``drift`` [d] the term <drift, w>: it is added to every gradient (SCAFFOLD). ``gradient``: what a step goes
        along.

        A client without examples, or whose batches are all empty, returns a zero update. Random layers (dropout) use
        only torch's global generator: it is seeded from ``rng`` here and restored.
        """
        device = self.model.theta.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            seed = int(asked.rng.spawn(1)[0].integers(2**63))
            torch.default_generator.manual_seed(seed)  # torch.manual_seed records a stack trace, a millisecond
            if device.type == "cuda":
                torch.cuda.default_generators[device.index or 0].manual_seed(seed)
            if self.config.train is not None:
                return self._by_function(self.config.train, asked)
            return self._train(asked)

    def _by_function(self, path: str, asked: Training) -> LocalResult:
        """Training by the user's function, on a copy of the model: what it leaves there meets no other client."""
        if asked.drift is not None or asked.gradient is not None:
            words = "the method changes every gradient, which a function's own training does not"
            raise OptionError("local.train", path, f"{words}; allowed: null")
        model, device = self.model, self.model.theta.device
        if not len(asked.data):
            return LocalResult(torch.zeros(asked.theta.shape, device=device), 0.0)
        model.load(asked.theta.to(device))
        own = copy.deepcopy(model.module).train()
        told = Told(self.round, self.num_rounds, self.lr, self.config, asked.rng, asked.proximal_mu)
        try:
            loss = code_at("local.train", path)(own, asked.data.inputs.to(device), asked.data.targets.to(device), told)
        except FedprivError as error:  # as any other of the function's
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        ends = [parameter.detach().reshape(-1).float() for parameter in own.parameters()]
        if (left := sum(map(len, ends))) != len(model.theta):
            raise OwnCodeError("local.train", path, f"left {left} parameters, of {len(model.theta)}")
        update = torch.cat(ends).to(device) - model.theta
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        return LocalResult(update, float(loss) if isinstance(loss, int | float | Tensor) else math.nan)

    def _batches(self, examples: int, rng: np.random.Generator) -> Sequence[Tensor]:
        """Rows (int64 [b]) of each batch that is not empty, moved to the model's device in one copy (a GPU would wait
        in each step).
        """
        least = 1 if self.model.statistics is None else 2  # one example has no variance
        drawn = [rows for rows in draw_batches(self.config, examples, rng) if rows.size >= least] if examples else []
        if not drawn:
            return ()
        return torch.from_numpy(np.concatenate(drawn)).to(self.model.theta.device).split([len(rows) for rows in drawn])

    def _train(self, asked: Training) -> LocalResult:
        model, config, data, proximal_mu = self.model, self.config, asked.data, asked.proximal_mu
        device = model.theta.device
        start = asked.theta.to(device)
        drift = None if asked.drift is None else asked.drift.to(device)
        model.load(start)
        model.module.train()
        velocity = torch.zeros_like(model.grad) if config.momentum else None
        total_loss, batches, lr = torch.zeros((), device=device), 0, self.lr
        linear = self._linear if self._linear is not None and self._linear.holds else None
        inputs, labels = data.inputs.to(device), data.targets.to(device)

        def loss_of(index: Tensor) -> Tensor:
            with self._mixed():
                return model.task.mean_loss(model(inputs[index]), labels[index])

        def backward(index: Tensor) -> Tensor:
            if linear is not None:
                return linear.add(inputs[index], labels[index])
            loss = loss_of(index)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        for index in self._batches(len(data), asked.rng):
            model.grad.zero_()
            if asked.gradient is None:
                loss = backward(index)
            else:
                both = partial(backward, index), partial(loss_of, index)
                loss = asked.gradient.alone(model.theta, model.grad, *both)
            with torch.no_grad():
                if proximal_mu:
                    model.grad.add_(model.theta - start, alpha=proximal_mu)
                if drift is not None:
                    model.grad.add_(drift)
                if model.statistics is not None:
                    model.grad[model.statistics] = 0  # the proximal term is of what gradients move
                step = model.grad
                if velocity is not None:
                    step = velocity.mul_(config.momentum).add_(model.grad)
                model.theta.add_(step, alpha=-lr)
            total_loss += loss.detach()
            batches += 1
        return LocalResult(model.theta - start, float(total_loss) / batches if batches else 0.0)
