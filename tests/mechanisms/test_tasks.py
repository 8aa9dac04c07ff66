"""Tasks: a loss, its derivative, and per-example gradients under any of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.tasks import PADDING, Classification, Multilabel, NextToken, Regression, Task
from fedpriv.training.stacked_gradients import SLOPES

RANDOM = torch.Generator().manual_seed(0)
TASKS: list[Task] = [
    Classification(("a", "b", "c")),
    Multilabel(("x", "y")),
    Regression(("z",), -3.0, 5.0),
    Regression(("z",), -3.0, 5.0, huber=0.5),
]


def targets_of(task: Task, n: int) -> Tensor:
    if isinstance(task, Classification):
        return torch.randint(0, 3, (n,), generator=RANDOM)
    if isinstance(task, Multilabel):
        labels = torch.randint(0, 2, (n, 2), generator=RANDOM).float()
        labels[::2, 0] = torch.nan  # unknown
        return labels
    return torch.randn(n, generator=RANDOM)


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_the_slope_is_the_losss_derivative(task: Task) -> None:
    outputs = torch.randn(4, 5, task.num_outputs, generator=RANDOM, requires_grad=True)
    targets = torch.stack([targets_of(task, 5) for _ in range(4)])
    losses = task.losses(outputs, targets)
    assert losses.shape == (4, 5)
    (expected,) = torch.autograd.grad(losses.sum(), outputs)
    found, slope = SLOPES[type(task)](task, outputs.detach().clone(), targets)
    assert torch.allclose(found, losses.detach(), atol=1e-6) and torch.allclose(slope, expected, atol=1e-6)
    assert task.mean_loss(outputs[0], targets[0]).item() == pytest.approx(losses[0].mean().item(), rel=1e-5)
    assert task.total_loss(outputs[0], targets[0]).item() == pytest.approx(losses[0].sum().item(), rel=1e-5)


@pytest.mark.parametrize("task", TASKS, ids=repr)
@pytest.mark.parametrize("mode", ["bookkeeping", "vmap", "singly"])
def test_clipped_sums_are_those_of_explicit_gradients(task: Task, mode: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, task.num_outputs))
    inputs, targets = torch.randn(9, 6, generator=RANDOM), targets_of(task, 9)
    expected = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for one, of in zip(inputs, targets, strict=True):
        loss = task.losses(model(one.unsqueeze(0)), of.unsqueeze(0)).sum()
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]).double()
        expected += gradient * min(1.0, 0.7 * (1 - KEPT_BACK) / float(gradient.norm()))
    found = PerExampleGradients(model, mode, task=task).clipped_sum(inputs, targets, 0.7)
    assert torch.allclose(found.total, expected, atol=1e-6)
    assert found.loss == pytest.approx(float(task.losses(model(inputs), targets).detach().mean()), rel=1e-5)


def test_a_sequences_loss_is_the_mean_over_its_tokens_alone() -> None:
    task = NextToken(("a", "b", "c"), tokens=4)
    outputs = torch.randn(2, 4, 3, generator=RANDOM)
    targets = torch.tensor([[0, 1, 2, 0], [1, 2, PADDING, PADDING]])
    each = nn.functional.cross_entropy(outputs[1, :2], targets[1, :2])
    assert float(task.losses(outputs, targets)[1]) == pytest.approx(float(each), rel=1e-6)
    assert task.blank(2).shape == (2, 4)


def test_regression_is_scaled_back_to_its_units() -> None:
    task = Regression(("z",), 10.0, 30.0)
    assert task.unscaled(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [10.0, 20.0, 30.0]


def people(n: int = 23) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    unit = torch.randint(0, 7, (n,), generator=RANDOM) * 5
    return model, torch.randn(n, 6, generator=RANDOM), torch.randint(0, 2, (n,), generator=RANDOM), unit


def test_a_persons_rows_are_clipped_together() -> None:
    model, inputs, targets, unit = people()
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    norms = []
    for person in unit.unique():
        rows = unit == person
        loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
        own = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]).double()
        norms.append(float(own.norm()))
        total += own * min(1.0, 0.3 * (1 - KEPT_BACK) / norms[-1])
    found = PerExampleGradients(model, "vmap").clipped_sum(inputs, targets, 0.3, unit=unit)
    assert torch.allclose(found.total, total, atol=1e-6) and found.norms.tolist() == pytest.approx(norms, rel=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_a_person_moves_the_sum_by_the_bound_at_most_whatever_its_rows_are(scale: float) -> None:
    """Its rows are many, few, huge, or broken; those of others are the same bits beside it and without it."""
    model, inputs, targets, unit = people()
    gradients = PerExampleGradients(model, "vmap")
    without = gradients.clipped_sum(inputs, targets, 0.3, unit=unit).total
    for count in (1, 2, 40):
        for value in (scale, float("nan"), float("inf")):
            more = torch.cat([inputs[:9], torch.full((count, 6), value), inputs[9:]])
            labels = torch.cat([targets[:9], torch.zeros(count, dtype=torch.int64), targets[9:]])
            who = torch.cat([unit[:9], torch.full((count,), 3), unit[9:]])
            moved = gradients.clipped_sum(more, labels, 0.3, unit=who).total - without
            assert float(moved.norm()) <= 0.3 * (1 - 2.0**-12)
            assert value == value or float(moved.norm()) < 1e-12  # a broken person adds nothing
