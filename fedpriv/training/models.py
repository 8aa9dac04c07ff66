"""Image classifiers as ordered, named blocks, and one flat vector of all their parameters.

Every model is an ``nn.Sequential`` of named blocks, so that "the last two blocks" or "the base layers" is a
slice of the flat parameter vector (`Layout`). No in-place activations (per-example gradients need the inputs)
and no BatchNorm (its running statistics are neither clipped nor noised); ResNets use GroupNorm.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpriv.config import ModelConfig
from fedpriv.errors import OptionError

Shape = tuple[int, int, int]  # channels, height, width

#: Pictures with a side below this get the linear model under `model=auto`: two 5x5 convolutions do not fit.
SMALLEST_CNN_SIDE = 16


@dataclass(frozen=True)
class Block:
    """A named block and the slice of the flat parameter vector that it owns."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Exchange:
    """Slices of a flat vector: what comes down to a client in a round, what goes up, and what it keeps between its
    participations. What is kept and does not come down is known to the client alone.
    """

    down: slice
    up: slice
    kept: slice

    def seen_from(self, start: int) -> Exchange:
        """The same slices of a vector that begins at ``start`` of this one; what lies before it is cut off."""
        down, up, kept = (
            slice(max(0, part.start - start), max(0, part.stop - start)) for part in (self.down, self.up, self.kept)
        )
        return Exchange(down, up, kept)


@dataclass(frozen=True)
class Layout:
    """How a model's parameters lie in the flat vector: the blocks in order, and every tensor's place."""

    blocks: tuple[Block, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_parameters(self) -> int:
        return self.blocks[-1].stop if self.blocks else 0

    def last_blocks(self, count: int | None, option: str) -> slice:
        """The slice of the last ``count`` blocks; None: two, or one of a model that has only two.

        Raises `OptionError` for ``option`` where no block would be left before them.
        """
        blocks = len(self.blocks)
        count = max(1, min(2, blocks - 1)) if count is None else count
        if blocks < 2:
            raise OptionError("model", f"of one named block ({self.blocks[0].name})", f"{option} needs at least 2")
        if count >= blocks:
            words = ", ".join(block.name for block in self.blocks)
            raise OptionError(
                option,
                count,
                f"the model has {blocks} named block{'s' * (blocks != 1)} ({words}): at most {blocks - 1}",
            )
        return slice(self.blocks[-count].start, self.num_parameters)

    def split(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """(name, view into ``flat`` [d] in the parameter's own shape) in the model's order."""
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = torch.Size(shape).numel()
            yield name, flat[start : start + size].view(shape)
            start += size


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model; parameters outside any named block would be a mistake of the model."""
    blocks, names, shapes, start = [], [], [], 0
    for block_name, block in model.named_children():
        first = start
        for name, parameter in block.named_parameters():
            names.append(f"{block_name}.{name}")
            shapes.append(tuple(parameter.shape))
            start += parameter.numel()
        if start > first:
            blocks.append(Block(block_name, first, start))
    if start != sum(parameter.numel() for parameter in model.parameters()):
        raise OptionError("model", type(model).__name__, "every parameter must belong to one named child module")
    return Layout(tuple(blocks), tuple(names), tuple(shapes))


class FlatModel:
    """A model whose parameters and gradients are views into two flat vectors ``theta`` and ``grad`` [d].

    Loading global parameters, an SGD step, an update are then single vector operations.

    channels_last: hand pictures over with the channels innermost in memory, where the model's layers are known to
    take it (`prefers_channels_last`).
    """

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu", channels_last: bool = False) -> None:
        self.module, self.channels_last = model.to(device), channels_last
        self.layout = layout_of(self.module)
        size = self.layout.num_parameters
        self.theta = torch.empty(size, device=device)
        self.grad = torch.zeros(size, device=device)
        start = 0
        for child in self.module.children():
            for parameter in child.parameters():
                stop = start + parameter.numel()
                self.theta[start:stop] = parameter.detach().reshape(-1)
                parameter.data = self.theta[start:stop].view(parameter.shape)
                parameter.grad = self.grad[start:stop].view(parameter.shape)
                start = stop

    def __call__(self, images: Tensor) -> Tensor:
        """Logits [n, classes] of normalised pictures [n, channels, height, width]."""
        logits: Tensor = self.module(channels_innermost(images) if self.channels_last else images)
        return logits

    def load(self, theta: Tensor) -> None:
        """Sets all parameters from a flat vector [d]; a wrong length raises ValueError."""
        if theta.shape != self.theta.shape:
            raise ValueError(f"{theta.numel()} parameters for a model of {self.theta.numel()}")
        self.theta.copy_(theta)


def prefers_channels_last(name: str, device: torch.device) -> bool:
    """Whether a model of ours computes faster on pictures with the channels innermost: on a CPU, pooling and ReLU are
    then vectorised, which saves the small networks a quarter of a training step (ResNets pool once and save nothing).
    A user's own model may need the usual order, for a `view`.
    """
    return device.type == "cpu" and name in ("cnn", "cnn_agn")


def channels_innermost(images: Tensor) -> Tensor:
    """The same pictures [n, c, h, w] with the channels innermost in memory."""
    n, c, h, w = images.shape
    if c > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # One channel lies both ways: only the strides tell the first layer, and by its output all others, which is meant.
    return images.contiguous().as_strided((n, c, h, w), (h * w, 1, w, 1))


def resolve_model(config: ModelConfig, shape: Shape, divided: bool = False) -> ModelConfig:
    """Replaces ``auto`` by the model it stands for on pictures of this shape; ``divided``: of two blocks or more."""
    if config.name != "auto":
        return config
    small = "mlp" if divided else "linear"
    name = "cnn" if min(shape[1:]) >= SMALLEST_CNN_SIDE else small
    return config.model_copy(update={"name": name})


def build_model(config: ModelConfig, shape: Shape, classes: int, seed: int) -> nn.Module:
    """A freshly initialised model, the same for the same seed.

    Raises `OptionError` where pictures are too small for the network, and for a model with BatchNorm, naming the layer.
    """
    config = resolve_model(config, shape)
    with torch.random.fork_rng(devices=[]):  # torch's initialisers know no generator: the global one is put back
        torch.manual_seed(seed)
        if config.name == "custom":
            model = _custom(config, shape, classes)
        else:
            model = _BUILDERS[config.name](config, shape, classes)
    refuse_batch_norm(model, config.name)
    return model


def refuse_batch_norm(model: nn.Module, name: str) -> None:
    """Running statistics (BatchNorm's, InstanceNorm's if it has any) are no parameters: clipping and noise do not cover
    them, and without privacy too they would not travel, so that every engine would give another model.
    """
    for layer, module in model.named_modules():
        keeps_statistics = getattr(module, "track_running_stats", False)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or keeps_statistics:
            raise OptionError(
                "model",
                name,
                f"layer {layer} is {type(module).__name__}, not covered by clipping and noise: GroupNorm is",
            )


def _linear(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _blocks(head=[nn.Flatten(), nn.Linear(_numel(shape), classes)])


def _mlp(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _blocks(
        hidden=[nn.Flatten(), nn.Linear(_numel(shape), config.hidden), nn.ReLU()],
        head=[nn.Linear(config.hidden, classes)],
    )


def _cnn(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    """Two valid 5x5 convolutions, two linear layers: 80,202 parameters on 28x28 grey pictures, 10 classes."""
    channels, height, width = shape
    _at_least(config, shape, SMALLEST_CNN_SIDE)
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return _blocks(
        conv1=[nn.Conv2d(channels, 16, 5), nn.ReLU(), nn.MaxPool2d(2)],
        conv2=[nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()],
        hidden=[nn.Linear(32 * rows * columns, 128), nn.ReLU()],
        head=[nn.Linear(128, classes)],
    )


class _CentreCrop(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        top, left = (images.shape[-2] - self.side) // 2, (images.shape[-1] - self.side) // 2
        return images[..., top : top + self.side, left : left + self.side]


def _cnn_agn(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    """The network of Abadi et al. 2016: 993,098 parameters on 28x28 grey pictures, 10 classes.

    28x28: a valid, then a same-padded convolution; larger pictures are cropped to 24x24 and both are padded.
    """
    channels = shape[0]
    _at_least(config, shape, 28)
    first: list[nn.Module] = [nn.Conv2d(channels, 64, 5)]
    if min(shape[1:]) > 28 or shape[1] != shape[2]:
        first = [_CentreCrop(24), nn.Conv2d(channels, 64, 5, padding=2)]
    last, layers = 384, OrderedDict[str, list[nn.Module]]()
    layers["conv1"] = [*first, nn.ReLU(), nn.MaxPool2d(2)]
    layers["conv2"] = [nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers["hidden"] = [nn.Linear(64 * 6 * 6, 384), nn.ReLU()]
    if config.second_hidden:
        last = config.second_hidden
        layers["hidden2"] = [nn.Linear(384, last), nn.ReLU()]
    layers["head"] = [nn.Linear(last, classes)]
    return _blocks(**layers)


class _Residual(nn.Module):
    """A basic residual block (He et al. 2016) with GroupNorm and out-of-place activations."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.main(images) + self.shortcut(images))


def _resnet(depths: tuple[int, int, int, int], config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    _at_least(config, shape, 8)
    if 64 % config.groups:
        raise OptionError("model.groups", config.groups, "must divide 64, the width of the first stage")
    layers = OrderedDict[str, list[nn.Module]]()
    layers["stem"] = [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.GroupNorm(config.groups, 64), nn.ReLU()]
    inputs = 64
    for stage, depth in enumerate(depths):
        outputs = 64 * 2**stage
        for index in range(depth):
            stride = 2 if stage and not index else 1
            layers[f"stage{stage + 1}_{index + 1}"] = [_Residual(inputs, outputs, stride, config.groups)]
            inputs = outputs
    layers["head"] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return _blocks(**layers)


def _resnet18(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _resnet((2, 2, 2, 2), config, shape, classes)


def _resnet34(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _resnet((3, 4, 6, 3), config, shape, classes)


_BUILDERS = {
    "linear": _linear,
    "mlp": _mlp,
    "cnn": _cnn,
    "cnn_agn": _cnn_agn,
    "resnet18": _resnet18,
    "resnet34": _resnet34,
}


def _custom(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    if config.path is None:
        raise OptionError("model.path", "null", "custom needs the dotted path of a function, package.module.name")
    module, _, name = config.path.rpartition(".")
    try:
        build = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError("model.path", config.path, f"cannot be imported ({error})") from None
    try:
        model = build(shape, classes)
        if not isinstance(model, nn.Module):
            raise OptionError("model.path", config.path, f"must return a torch.nn.Module, not {type(model).__name__}")
        with torch.no_grad():
            logits = model(torch.zeros(2, *shape))
    except OptionError:
        raise
    except Exception as error:  # the user's own code: one line says what it raised
        raise OptionError("model.path", config.path, f"raised {type(error).__name__}: {error}") from error
    if tuple(logits.shape) != (2, classes):
        raise OptionError(
            "model.path", config.path, f"must give logits [n, {classes}], gave {tuple(logits.shape)} for n=2"
        )
    return model


def _blocks(**layers: list[nn.Module]) -> nn.Module:
    return nn.Sequential(OrderedDict((name, nn.Sequential(*modules)) for name, modules in layers.items()))


def _numel(shape: Shape) -> int:
    return shape[0] * shape[1] * shape[2]


def _at_least(config: ModelConfig, shape: Shape, side: int) -> None:
    if min(shape[1:]) < side:
        raise OptionError(
            "model", config.name, f"needs pictures of at least {side}x{side}, these are {shape[1]}x{shape[2]}"
        )
