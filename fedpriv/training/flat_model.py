"""A model as one flat vector: its blocks, the part of it that is exchanged, and where its tensors lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpriv.common.errors import OptionError

Shape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True)
class Block:
    """A named block and the slice of the flat parameter vector that it owns."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Exchange:
    """Slices of a flat vector: what a client receives in a round, what it sends, and what it keeps between
    participations. What it keeps and does not receive is known only to the client.
    """

    down: slice
    up: slice
    kept: slice

    def seen_from(self, start: int) -> Exchange:
        """The same slices relative to a vector that starts at ``start`` of this one; anything before that is cut
        off.
        """
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
    """The layout of a model; a model with parameters outside any named block is refused."""
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

    Loading global parameters, an SGD step and computing an update are then single vector operations.

    channels_last: pass pictures with the channels innermost in memory, for models whose layers are known to support
    it (`prefers_channels_last`).
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
    """Whether a built-in model computes faster on pictures with the channels innermost: on a CPU, pooling and ReLU are
    then vectorised, which saves the small networks a quarter of a training step (ResNets pool once and save nothing).
    A user's model may need the usual order, e.g. for a `view`.
    """
    return device.type == "cpu" and name in ("cnn", "cnn_agn")


def channels_innermost(images: Tensor) -> Tensor:
    """The same pictures [n, c, h, w] with the channels innermost in memory."""
    n, c, h, w = images.shape
    if c > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts are the same in memory: the strides alone tell the first layer which one is meant.
    return images.contiguous().as_strided((n, c, h, w), (h * w, 1, w, 1))


def per_layer(radius: float | Sequence[float], layers: int) -> list[float]:
    """One radius for each named block. Raises `OptionError` for another number of them."""
    found = [float(radius)] * layers if isinstance(radius, int | float) else [float(value) for value in radius]
    if len(found) != layers:
        raise OptionError("strategy.client.radius", found, f"{len(found)} radii for {layers} named blocks")
    return found
