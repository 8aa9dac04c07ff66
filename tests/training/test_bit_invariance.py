"""One example (person) more, or another in its place, changes no bit of what the others add to a clipped sum.

Each way of computing a sum is called as a run calls it, at numbers of rows around the borders of its blocks: the sum
of all rows less that of all but one is the sum of this one alone. Float64 sums are right within `ALLOWED`, and one
last bit of one float32 gradient moves them by more. Some thetas make terms of 3 10^9 cancel, so that last bits decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.mechanisms.clipped_sums import made_up
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.scaling import clipped_rows
from fedpriv.mechanisms.tasks import Classification, Multilabel, NextToken, Regression, Task
from fedpriv.training.sequential import Clipping, FlatModel, LocalData, SequentialTrainer
from fedpriv.training.stacked_gradients import Chain
from fedpriv.training.trained_part import train_part
from fedpriv.training.vectorised import VectorisedTrainer

#: Of sums of some hundred vectors of length 1 at most.
ALLOWED = 1e-11
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

Sum = Callable[[Tensor, LocalData], Tensor]


def task_of(outputs: int, kind: str = "") -> Task:
    labels = tuple(f"output {number}" for number in range(outputs))
    if kind == "labels":
        return Multilabel(labels)
    return Regression(labels) if outputs == 1 else Classification(labels)


@dataclass(frozen=True)
class Case:
    """A way of computing a sum. block: rows that it computes at a time; side: examples are pictures of this side,
    0: vectors, or token ids.
    """

    sums: Sum
    theta: Tensor
    block: int
    shape: tuple[int, ...]
    task: Task
    persons: bool = False
    vocabulary: int | None = None

    def rows(self, count: int, seed: int) -> LocalData:
        random = torch.Generator().manual_seed(seed)
        inputs = made_up(count, *self.shape, vocabulary=self.vocabulary, random=random)
        targets = self.task.blank(count)
        if targets.is_floating_point():
            targets = torch.rand(targets.shape, generator=random).round()
        else:
            targets = torch.randint(0, self.task.num_outputs, targets.shape, generator=random)
        unit = torch.randperm(count, generator=random) // 2 * 7 if self.persons else None
        return LocalData(inputs, targets, unit)

    def thetas(self, seed: int) -> Iterator[tuple[str, Tensor]]:
        random = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self.theta.shape, generator=random)
        yield "own", self.theta
        yield "drawn", drawn
        hostile = drawn.clone()
        hostile[:2] = torch.tensor([3e9, -3e9])
        yield "hostile", hostile


def some(data: LocalData, kept: Tensor) -> LocalData:
    return LocalData(data.inputs[kept], data.targets[kept], None if data.unit is None else data.unit[kept])


def moves(case: Case, counts: tuple[int, ...] = (), seed: int = 0) -> Iterator[tuple[str, int, float]]:
    """(theta, rows, how far the sum is from that of all but one and that one's) for the first and the last row (all
    rows of their persons): without the first one all others have another place.
    """
    block = case.block
    borders = {1, 2, block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1}
    for name, theta in case.thetas(seed):
        for count in counts or sorted(borders - {0}):
            data = case.rows(count, count)
            if name == "hostile" and case.vocabulary is None:  # terms that cancel but for their last bits
                data.inputs.flatten(1)[:, 1] = data.inputs.flatten(1)[:, 0]
            whole = case.sums(theta, data)
            assert torch.isfinite(whole).all()
            for row in {0, count - 1}:
                one = torch.arange(count) == row if data.unit is None else data.unit == data.unit[row]
                apart = case.sums(theta, some(data, ~one)) + case.sums(theta, some(data, one))
                yield name, count, float((whole - apart).norm())


# --- the ways ----------------------------------------------------------------------------------------------


def local(batch: int, clipping: str = "fedpriv") -> LocalConfig:
    return LocalConfig(epochs=1, batch_size=batch, lr=0.1, momentum=0.0, sampler="poisson", clipping=clipping)  # type: ignore[arg-type,call-arg]


def of_trainer(
    kind: type[SequentialTrainer],
    module: nn.Module,
    shape: tuple[int, ...],
    task: Task,
    batch: int,
    device: str,
    persons: bool = False,
    beside: int = 0,
    clipping: str = "fedpriv",
    vocabulary: int | None = None,
) -> Case:
    """As a client's. beside: clients that are computed with it, the first of which has no rows."""
    model = FlatModel(module, device, task=task, vocabulary=vocabulary)
    trainer = kind(model, local(batch, clipping))

    def sums(theta: Tensor, data: LocalData) -> Tensor:
        others = [some(data, torch.arange(len(data)) < 3 * number) for number in range(beside)]
        asked = [Clipping(theta, own, 1.0) for own in (data, *others)]
        return trainer.clipped_sums(asked)[0].total.cpu()

    case = Case(sums, model.theta.cpu().clone(), 1, shape, task, persons, vocabulary)
    way = trainer.per_example(shape, units=persons)
    by_hand = Chain.of(module, task) is not None and clipping == "fedpriv"
    return replace(case, block=trainer._rows if by_hand else way.physical or 1)


def of_gradients(
    mode: str,
    module: nn.Module,
    shape: tuple[int, ...],
    task: Task,
    batch: int,
    device: str,
    vocabulary: int | None = None,
) -> Case:
    model = FlatModel(module, device, task=task, vocabulary=vocabulary)
    way = PerExampleGradients(model.module, mode, block=batch, task=task, vocabulary=vocabulary)
    way.settle(shape, torch.device(device))

    def sums(theta: Tensor, data: LocalData) -> Tensor:
        model.load(theta.to(device))
        return way.clipped_sum(data.inputs.to(device), data.targets.to(device), 1.0).total.cpu()

    return Case(sums, model.theta.cpu().clone(), way.physical or 1, shape, task, vocabulary=vocabulary)


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    layers = (
        [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)] if hidden else [nn.Linear(inputs, outputs)]
    )
    return nn.Sequential(nn.Flatten(), *layers)


def pictures(channels: int, outputs: int) -> nn.Module:
    """A convolution whose gradients are formed, one clipped by Gram matrices, a norm, a head."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, outputs),
    )


class Words(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.words(ids)).mean(1))


class Tokens(Words):
    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.words(ids)))


PARTS = ["head", "film", "bias", "lora"]


def part_of(module: nn.Module, part: str) -> nn.Module:
    return train_part(module, ModelConfig(name="cnn", train=part, rank=2))  # type: ignore[arg-type,call-arg]


def ways(outputs: int, device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Every way that a gradient of an example takes, by name."""
    task, kinds = task_of(outputs), {"alone": SequentialTrainer, "cohort": VectorisedTrainer}
    for (name, kind), hidden, persons in itertools.product(kinds.items(), (0, 16), (False, True)):
        for inputs, batch in ((5, 16), (12, 33), (64, 65)):
            words = f"{'mlp' if hidden else 'linear'}, {name}{', persons' * persons}"
            for beside in (0, 3) if name == "cohort" else (0,):
                make = partial(perceptron, inputs, hidden, outputs)
                yield (
                    words,
                    lambda kind=kind, make=make, inputs=inputs, batch=batch, persons=persons, beside=beside: of_trainer(
                        kind, make(), (inputs,), task, batch, device, persons, beside
                    ),
                )
    yield (
        "linear, labels",
        lambda: of_trainer(
            SequentialTrainer, perceptron(12, 0, outputs), (12,), task_of(outputs, "labels"), 33, device
        ),
    )
    for mode in ("bookkeeping", "opacus", "vmap", "singly"):
        for inputs, batch in ((5, 8), (64, 32)):
            yield (
                f"mlp, {mode}",
                lambda mode=mode, inputs=inputs, batch=batch: of_gradients(
                    mode, perceptron(inputs, 16, outputs), (inputs,), task, batch, device
                ),
            )
        yield (
            f"pictures, {mode}",
            lambda mode=mode: of_gradients(mode, pictures(2, outputs), (2, 8, 8), task, 8, device),
        )
        yield f"text, {mode}", lambda mode=mode: of_gradients(mode, Words(outputs), (6,), task, 8, device, 20)
    for part in PARTS:
        yield (
            f"pictures, {part}",
            lambda part=part: of_trainer(
                SequentialTrainer, part_of(pictures(1, outputs), part), (1, 8, 8), task, 16, device
            ),
        )
        yield (
            f"mlp, {part}",
            lambda part=part: of_trainer(
                VectorisedTrainer, part_of(perceptron(12, 8, outputs), part), (12,), task, 33, device, beside=2
            ),
        )
    for persons in (False, True):
        yield (
            f"pictures, cohort{', persons' * persons}",
            lambda persons=persons: of_trainer(
                VectorisedTrainer, pictures(1, outputs), (1, 8, 8), task, 16, device, persons, 2
            ),
        )
    yield (
        "pictures, opacus by option",
        lambda: of_trainer(SequentialTrainer, pictures(1, outputs), (1, 8, 8), task, 16, device, clipping="opacus"),
    )
    if outputs > 1:
        tokens = NextToken(task.labels, 6)
        yield "tokens", lambda: of_trainer(SequentialTrainer, Tokens(outputs), (6,), tokens, 16, device, vocabulary=20)
    for persons in (False, True):
        yield (
            f"inputs{', persons' * persons}",
            lambda persons=persons: Case(
                lambda theta, data: clipped_rows(data.inputs, 1.0, data.unit).total,
                torch.zeros(9),
                16,
                (9,),
                task,
                persons,
            ),
        )


def table(outputs: tuple[int, ...] = (1, 2, 10), device: str = "cpu") -> dict[str, tuple[int, int, float]]:
    """way -> (cases, those that differ, the largest difference in bounds)."""
    found: dict[str, tuple[int, int, float]] = {}
    for many in outputs:
        for name, make in ways(many, device):
            torch.manual_seed(1)
            for _, _, moved in moves(make()):
                cases, bad, worst = found.get(name, (0, 0, 0.0))
                found[name] = cases + 1, bad + (moved > ALLOWED), max(worst, moved)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_one_more_changes_no_bit_of_the_others(outputs: int, device: str) -> None:
    differ = {name: told for name, told in table((outputs,), device).items() if told[1]}
    assert not differ
