"""How a model lies in one flat vector: its blocks, the part of it that is exchanged, and where its tensors are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedpriv.common.errors import OptionError

Shape = tuple[int, ...]  # channels, height, width of an example; of a table's row: its inputs
NOTHING = slice(0, 0)


@dataclass(frozen=True)
class Block:
    """A named block and the slice of the flat parameter vector that it owns."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Layers:
    """Which layers travel in a round, as slices of the model's flat vector.

    down: what a client receives; up: what it sends; kept: what it keeps between participations (what it keeps and does
    not receive is known only to the client). held: what the server holds, its theta, the same in every round. absolute:
    of what is sent, where the values themselves are, not how far they moved.
    """

    down: slice
    up: slice
    kept: slice
    held: slice
    absolute: slice = field(default_factory=lambda: NOTHING)

    def seen_from(self, start: int) -> Layers:
        """The same slices relative to a vector that starts at ``start`` of this one; anything before that is cut
        off.
        """
        parts = (self.down, self.up, self.kept, self.held, self.absolute)
        return Layers(*(slice(max(0, part.start - start), max(0, part.stop - start)) for part in parts))

    def sent(self, start: Tensor, update: Tensor) -> Tensor:
        """What of a training from ``start`` [d] is up for release, by its update [d]."""
        if self.absolute != NOTHING:
            update = update.clone()
            update[self.absolute] += start[self.absolute]
        return update[self.up]


@dataclass(frozen=True)
class Layout:
    """How a model's parameters lie in the flat vector: the blocks in order, and every tensor's place.

    tied: (name, other name) of parameters that lie in the block of the first name, and are used in another one too.
    """

    blocks: tuple[Block, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    tied: tuple[tuple[str, str], ...] = ()

    @property
    def num_parameters(self) -> int:
        return self.blocks[-1].stop if self.blocks else 0

    def last_blocks(self, count: int | None, option: str) -> slice:
        """The slice of the last ``count`` blocks; None: two, or one of a model that has only two.

        Raises `OptionError` for ``option`` where no block would be left before them, or a tied parameter would be of
        both parts.
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
        last = {block.name for block in self.blocks[-count:]}
        for pair in self.tied:
            if len({name.partition(".")[0] in last for name in pair}) == 2:
                words = f"{pair[0]} and {pair[1]} are one parameter, which cannot both stay and travel: make two of it"
                raise OptionError(option, count, f"{words}, or count {pair[0].partition('.')[0]} among them")
        return slice(self.blocks[-count].start, self.num_parameters)

    def split(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """(name, view into ``flat`` [d] in the parameter's own shape) in the model's order."""
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = torch.Size(shape).numel()
            yield name, flat[start : start + size].view(shape)
            start += size


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model: a block is a child module, or a parameter of the model's own (a token, positions). A
    parameter with two names is one coordinate, and lies in the block of its first name.
    """
    blocks, names, shapes, start = list[Block](), list[str](), list[tuple[int, ...]](), 0
    known, tied = dict[int, str](), list[tuple[str, str]]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        block = name.partition(".")[0]
        before = known.setdefault(id(parameter), name)
        if before != name:
            tied += [(before, name)] if before.partition(".")[0] != block else []
            continue
        names.append(name)
        shapes.append(tuple(parameter.shape))
        first = blocks.pop().start if blocks and blocks[-1].name == block else start
        start += parameter.numel()
        blocks.append(Block(block, first, start))
    return Layout(tuple(blocks), tuple(names), tuple(shapes), tuple(tied))
