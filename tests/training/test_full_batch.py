"""Full-batch training of softmax regression: dual, primal and autograd give the same update."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.training.full_batch import FullBatchTrainer, softmax_update
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel, LocalData, LocalResult, SequentialTrainer, Training

LOCAL = LocalConfig(epochs=5, batch_size=1000, lr=60.0, momentum=0.0, sampler="shuffle")


def data(examples: int, dims: int, classes: int, seed: int = 0) -> LocalData:
    random = torch.Generator().manual_seed(seed)
    inputs = nn.functional.normalize(torch.randn(examples, dims, generator=random), dim=1)
    return LocalData(inputs.view(examples, dims, 1, 1), torch.randint(0, classes, (examples,), generator=random))


def by_autograd(weights: Tensor, found: LocalData, lr: float, steps: int) -> tuple[Tensor, float]:
    """In double precision, by the definition of the loss alone."""
    start, losses = weights.double(), []
    now = start.clone().requires_grad_()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(found.inputs.double().flatten(1) @ now.T, found.targets)
        (gradient,) = torch.autograd.grad(loss, now)
        now = (now - lr * gradient).detach().requires_grad_()
        losses.append(float(loss.detach()))
    return (now - start).detach(), float(np.mean(losses))


@pytest.mark.parametrize(("examples", "dims"), [(7, 30), (30, 30), (60, 12), (1, 1)])  # dual, dual, primal, smallest
@pytest.mark.parametrize("classes", [2, 10])
def test_both_forms_are_gradient_descent(examples: int, dims: int, classes: int) -> None:
    found = data(examples, dims, classes)
    weights = torch.randn(classes, dims, generator=torch.Generator().manual_seed(1))
    update, loss = softmax_update(weights, found.inputs.flatten(1), found.targets, 3.0, 5)
    expected, expected_loss = by_autograd(weights, found, 3.0, 5)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    torch.testing.assert_close(update.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(update.sum(0), torch.zeros(dims), rtol=0, atol=1e-4)  # no shift of all classes alike


def trained(
    trainer: type[SequentialTrainer], found: LocalData, local: LocalConfig, model: str = "softmax"
) -> LocalResult:
    shape = (found.inputs.shape[1], 1, 1)
    flat = FlatModel(build_model(ModelConfig(name=model), shape, 4, seed=2))
    inner = SequentialTrainer(flat, local)
    start = torch.randn(flat.theta.numel(), generator=torch.Generator().manual_seed(3))
    made = inner if trainer is SequentialTrainer else FullBatchTrainer(inner)
    return made.train(Training(start, found, np.random.default_rng(4)))


@pytest.mark.parametrize("examples", [1, 9, 40])
def test_the_trainer_gives_what_sgd_gives(examples: int) -> None:
    found = data(examples, 20, 4)
    fast, slow = (trained(kind, found, LOCAL) for kind in (FullBatchTrainer, SequentialTrainer))
    torch.testing.assert_close(fast.update, slow.update, rtol=1e-3, atol=1e-4 * float(slow.update.abs().max()))
    assert fast.loss == pytest.approx(slow.loss, rel=1e-4)
    assert float(slow.update.norm()) > 1


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("linear", {}),
        ("softmax", {"batch_size": 8}),
        ("softmax", {"momentum": 0.5}),
        ("softmax", {"sampler": "poisson", "batch_size": 8}),
    ],
)
def test_what_is_no_full_batch_of_softmax_is_left_to_sgd(model: str, changes: dict[str, object]) -> None:
    found, local = data(9, 20, 4), LOCAL.model_copy(update=changes)
    fast, slow = (trained(kind, found, local, model) for kind in (FullBatchTrainer, SequentialTrainer))
    assert torch.equal(fast.update, slow.update) and fast.loss == slow.loss


def test_nothing_is_learned_from_nothing() -> None:
    assert not trained(FullBatchTrainer, data(0, 20, 4), LOCAL).update.any()


def test_steps_in_place_of_epochs_are_counted() -> None:
    found = data(9, 20, 4)
    by_steps = trained(FullBatchTrainer, found, LOCAL.model_copy(update={"epochs": 1, "steps": 5}))
    assert torch.equal(by_steps.update, trained(FullBatchTrainer, found, LOCAL).update)
