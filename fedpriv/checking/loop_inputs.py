"""Data for a loop that takes some: what the user gives, or random data in common shapes, the first that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fedpriv.checking.release_function import NotTaken

#: Examples of data that are made up.
EXAMPLES = 128
#: Shapes of one example, tried in this order.
SHAPES: tuple[tuple[int, ...], ...] = ((16,), (1, 28, 28), (3, 32, 32), (1, 8, 8))


class LoopFailed(NotTaken):
    """The loop ended with an error of its own, or took none of the data that were tried."""


class FromErrors:
    """Shapes that a loop's own errors name: a layer says how long its input must be."""

    def __init__(self, data: Any = None) -> None:
        self.data = data
        self.shapes: list[tuple[int, ...]] = []
        self.again: list[tuple[Any, ...]] = []  # arguments that missed something else, which is there by now

    def learn(self, error: Exception) -> None:
        text = str(error)
        if found := re.search(r"\(\d+x\d+ and (\d+)x\d+\)", text):
            self.shapes.append((int(found.group(1)),))
        elif found := re.search(r"expected input\[[^\]]*\] to have (\d+) channels", text):
            self.shapes += [(int(found.group(1)), side, side) for side in (32, 28)]


def inputs_of(needed: int, given: FromErrors) -> Iterator[tuple[Any, ...]]:
    """Arguments to try. given.data: the user's own, a tuple for several arguments."""
    if needed == 0:
        yield ()
        return
    if given.data is not None:
        data = given.data() if callable(given.data) else given.data
        yield tuple(data) if needed > 1 else (data,)
        return
    tried: set[tuple[int, ...]] = set()
    waiting = list(SHAPES)
    while waiting:
        shape = waiting.pop(0)
        if shape in tried:
            continue
        tried.add(shape)
        for form in ("tensors",) if needed > 1 else ("data set", "pair", "loader"):
            yield _made(shape, form)
            waiting = [one for one in given.shapes if one not in tried] + waiting


def _made(shape: tuple[int, ...], form: str) -> tuple[Any, ...]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    generator = torch.Generator().manual_seed(7)
    features = torch.randn(EXAMPLES, *shape, generator=generator)
    labels = (features.reshape(EXAMPLES, -1)[:, 0] > 0).long()
    if form == "tensors":
        return features, labels
    if form == "pair":
        return ((features, labels),)
    data_set = TensorDataset(features, labels)
    return (data_set,) if form == "data set" else (DataLoader(data_set, batch_size=16, shuffle=True),)
