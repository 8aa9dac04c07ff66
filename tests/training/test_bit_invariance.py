"""One example (person) more, or another in its place, changes no bit of what the others add to a clipped sum.

Each way of computing a sum is called as a run calls it, at numbers of rows around the borders of its blocks: the sum
of all rows less that of all but one is the sum of this one alone. Float64 sums are right within `ALLOWED`, and one
last bit of one float32 gradient moves them by more. Some thetas make terms of 3 10^9 cancel, so that last bits decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.mechanisms.bookkeeping import filled
from fedpriv.mechanisms.clipped_sums import ClippedSum, made_up
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.scaling import clipped_rows
from fedpriv.mechanisms.tasks import Classification, Multilabel, NextToken, Regression, Task
from fedpriv.training.sequential import Clipping, FlatModel, LocalData, SequentialTrainer
from fedpriv.training.stacked_gradients import Chain, block_for
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
    """A way of computing a sum. block: rows that it computes at a time; shape: of an example; persons: whether rows are
    of persons, two each.
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
            if isinstance(self.task, Multilabel):
                targets[::3, 0] = torch.nan  # unknown
        else:
            targets = torch.randint(0, self.task.num_outputs, targets.shape, generator=random)
        unit = torch.randperm(count, generator=random) // 2 * 7 if self.persons else None
        return LocalData(inputs, targets, unit)

    def thetas(self, seed: int) -> Iterator[tuple[str, Tensor]]:
        random = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self.theta.shape, generator=random)
        yield "drawn", drawn / 4
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
    borders = {1, block - 1, block, block + 1, 2 * block - 1, 2 * block + 1}
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
    return replace(case, block=block_for(batch) if by_hand else way.physical or 1)


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


@pytest.mark.rotates(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_one_more_changes_no_bit_of_the_others(outputs: int, device: str) -> None:
    differ = {name: told for name, told in table((outputs,), device).items() if told[1]}
    assert not differ


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("hidden", [0, 1, 16])
def test_one_more_changes_no_bit_of_the_others_in_a_chain(hidden: int, outputs: int) -> None:
    """The shapes that had another kernel for one block than for two: any block, one output."""
    for inputs, batch in itertools.product((2, 7, 33, 100), (4, 16, 40, 100)):
        torch.manual_seed(1)
        module = perceptron(inputs, hidden, outputs)
        case = of_trainer(SequentialTrainer, module, (inputs,), task_of(outputs), batch, "cpu")
        assert max(moved for *_, moved in moves(case, (case.block, case.block + 1))) < ALLOWED


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("hidden", [0, 16])
def test_whether_a_client_has_rows_changes_no_bit_of_another_clients_sum(
    hidden: int, persons: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are computed together, whether one of them drew nobody or somebody: one product has another kernel here."""
    planted(monkeypatch, of_one)
    model = FlatModel(perceptron(12, hidden, 1), task=task_of(1))
    trainer = VectorisedTrainer(model, local(33))
    case = Case(lambda theta, data: theta, model.theta.clone(), 32, (12,), task_of(1), persons)
    data, other = case.rows(33, 1), case.rows(70, 2)
    for name, theta in case.thetas(3):
        if name == "hostile":
            data.inputs[:, 1] = data.inputs[:, 0]
        found = [
            trainer.clipped_sums([Clipping(theta, own, 1.0) for own in (data, some(other, torch.arange(70) < many))])[0]
            for many in (0, 1, 70)
        ]
        assert all(torch.equal(own.total, found[0].total) and torch.equal(own.norms, found[0].norms) for own in found)


# --- planted kernels: each must be found -------------------------------------------------------------------


class InOneProduct(Chain):
    """All blocks as products of one batch: what a library may compute by another kernel for one than for two."""

    def _sums(self, thetas: Any, data: Any, bounds: Any, size: int) -> list[ClippedSum]:
        (own,) = data
        blocks = -(-len(own.targets) // size)
        inputs, targets = (
            filled(part, blocks * size).view(blocks, size, *part.shape[1:]) for part in (own.inputs, own.targets)
        )
        real = torch.arange(blocks * size).view(blocks, size) < len(own.targets)
        limits = torch.full((blocks,), bounds[0], dtype=torch.float64)
        thetas = [theta[0].expand(blocks, *theta.shape[1:]) for theta in thetas]
        total, norms, losses = self.clipped(thetas, inputs, targets, real, limits)
        return [ClippedSum(total.sum(0), norms.flatten()[: len(own.targets)], float(losses.sum()))]


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """Products of batches as the library gives them, and then changed."""
    for name in ("bmm", "baddbmm"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *given, real=real, **more: change(real(*given, **more)))


def other_kernel(found: Tensor) -> Tensor:
    """The next number, in every place."""
    return torch.nextafter(found, torch.full_like(found, math.inf))


def of_one(found: Tensor) -> Tensor:
    return other_kernel(found) if found.dtype == torch.float32 and len(found) == 1 else found


def of_odd_rows(found: Tensor) -> Tensor:
    if found.dtype != torch.float32:
        return found
    return torch.where(torch.arange(found.shape[1]).view(1, -1, 1) % 2 == 1, other_kernel(found), found)


def of_others(found: Tensor) -> Tensor:
    """Where the row before is another one."""
    return torch.where(found == found.roll(1, 1), found, other_kernel(found)) if found.dtype == torch.float32 else found


def of_many_rows(found: Tensor) -> Tensor:
    """In the last place of blocks of more than eight rows."""
    if found.dtype != torch.float32 or found.shape[1] <= 8:
        return found
    return torch.cat([found[:, :-1], other_kernel(found[:, -1:])], 1)


def chain_of(kind: type[Chain] = Chain, outputs: int = 2) -> tuple[Chain, list[Tensor]]:
    module = perceptron(12, 16, outputs)
    chain = kind.of(module, task_of(outputs))
    assert chain is not None
    return chain, [part.detach().unsqueeze(0) for part in module.parameters()]


def test_another_kernel_for_one_product_is_found_where_blocks_are_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the table, which sees nothing of it where each block is a computation of one shape; and at start."""
    planted(monkeypatch, of_one)
    chain, thetas = chain_of()
    blocked, shapes = chain_of(InOneProduct)[0], [part.shape[1:] for part in thetas]
    theta = torch.cat([part.flatten() for part in thetas])

    def case(way: Chain) -> Case:
        return Case(lambda flat, data: way._sums(parts(flat), [data], [1.0], 8)[0].total, theta, 8, (12,), task_of(2))

    def parts(flat: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in shapes]
        return [part.view(1, *shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]

    assert max(moved for *_, moved in moves(case(chain))) < ALLOWED
    assert max(moved for *_, moved in moves(case(blocked), (8, 9))) > ALLOWED
    assert chain.block(thetas, 8) == 8
    with pytest.raises(OptionError, match=r"model=.*on cpu one row's gradient depends on which others there are"):
        blocked.block(thetas, 8)
    with pytest.raises(OptionError, match="one row's gradient depends on which others there are"):
        blocked.clipped_sums(thetas, [LocalData(torch.randn(9, 12), task_of(2).blank(9))], [1.0], 8)


@pytest.mark.parametrize(("change", "block"), [(of_odd_rows, 1), (of_others, 1), (of_many_rows, 8)])
@pytest.mark.parametrize("clients", [1, 3])
def test_a_place_with_another_kernel_is_found_at_start(
    change: Callable[[Tensor], Tensor], block: int, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, change)
    chain, thetas = chain_of()
    assert chain.block([part.expand(clients, *part.shape[1:]) for part in thetas], 64) == block


def test_a_look_counts_for_its_own_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many clients, and up to as many rows, as were looked at."""
    looked: list[tuple[int, int]] = []

    def alike(self: Chain, shapes: Any, clients: int, size: int, device: torch.device) -> bool:
        looked.append((clients, size))
        return clients == 3 or size <= 8

    monkeypatch.setattr(Chain, "_computes_apart", alike)
    chain, one = chain_of()
    three = [part.expand(3, *part.shape[1:]) for part in one]
    assert [chain.block(*given) for given in ((three, 64), (one, 64), (three, 64), (one, 4))] == [64, 8, 64, 4]
    assert looked == [(3, 64), (1, 64), (1, 32), (1, 16), (1, 8), (1, 4)]


@pytest.mark.parametrize("mode", ["bookkeeping", "opacus"])
def test_a_place_with_another_kernel_is_found_in_any_model(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to single rows; a step that never gives the same is refused."""
    real, calls = functional.linear, itertools.count()

    def odd(*given: Any) -> Tensor:
        found = real(*given)
        return torch.where(torch.arange(len(found)).unsqueeze(1) % 2 == 1, other_kernel(found), found)

    def restless(*given: Any) -> Tensor:
        return real(*given) * (1 + 1e-6 * next(calls))

    shape, task = (1, 8, 8), task_of(3)
    for change, allowed in ((odd, True), (restless, False)):
        monkeypatch.setattr(functional, "linear", change)
        way = PerExampleGradients(pictures(1, 3), mode, block=8, task=task)
        if allowed:
            way.settle(shape, torch.device("cpu"))
            assert way.physical == 1
        else:
            with pytest.raises(OptionError, match="model=Sequential: on cpu one row's gradient depends on"):
                way.settle(shape, torch.device("cpu"))


@pytest.mark.parametrize("outputs", [1, 2, 7])
def test_a_table_of_any_width_is_computed_in_whole_blocks(outputs: int) -> None:
    """Kernels of some CPUs follow where a row begins: of 10, 21 or 30 columns even single rows were refused there."""
    for inputs in range(1, 41):
        way = PerExampleGradients(nn.Linear(inputs, outputs), block=32, task=task_of(outputs))
        way.settle((inputs,), torch.device("cpu"))
        assert way.physical == 32


def test_a_sum_is_computed_in_the_threads_of_its_look_and_in_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    way, before, seen = PerExampleGradients(pictures(1, 3), block=4), torch.get_num_threads(), []
    inputs, targets = torch.randn(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    assert filled(inputs, 4).data_ptr() != inputs.data_ptr() and torch.equal(filled(inputs, 4), inputs)
    torch.set_num_threads(1)
    try:
        way.settle((1, 8, 8), torch.device("cpu"))
        real = way._sum
        monkeypatch.setattr(way, "_sum", lambda *given: (seen.append(torch.get_num_threads()), real(*given))[1])
        torch.set_num_threads(2)
        way.clipped_sum(inputs, targets, 1.0)
        assert seen == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
