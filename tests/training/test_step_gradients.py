"""Steps that go along something else than the gradient: by hand, and the same by both trainers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_vectorised import SIZES, data_of, model_of, rng
from torch import Tensor

from fedpriv.config.schema import LocalConfig
from fedpriv.mechanisms.step_gradients import Probes, Sharpness, StepGradient, probes_of
from fedpriv.training.sequential import FlatModel, LocalData, SequentialTrainer, Training
from fedpriv.training.vectorised import VectorisedTrainer

ONE_STEP = LocalConfig(epochs=1, steps=1, batch_size=50, lr=0.1, momentum=0.0, sampler="shuffle")


def slope(model: FlatModel, theta: Tensor, data: LocalData) -> Tensor:
    """The gradient [d] of the mean loss, by autograd through an ordinary call."""
    model.load(theta)
    model.grad.zero_()
    model.module.train()
    model.task.mean_loss(model(data.inputs), data.targets).backward()  # type: ignore[no-untyped-call]
    return model.grad.clone()


def stepped(name: str, rule: StepGradient | None) -> tuple[Tensor, Tensor]:
    """(what one step of size 1 goes along, the gradient where it starts)."""
    model, data = model_of(name), max(data_of(name), key=len)
    theta = model.theta.clone()
    found = SequentialTrainer(model, ONE_STEP).train(Training(theta, data, rng(0), gradient=rule)).update / -0.1
    return found, slope(model, theta, data)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_sharpness_is_the_gradient_a_radius_up_the_slope(name: str) -> None:
    found, gradient = stepped(name, Sharpness(0.7))
    model, data = model_of(name), max(data_of(name), key=len)
    expected = slope(model, model.theta + 0.7 * gradient / gradient.norm(), data)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert float((found - gradient).norm()) > 0.05 * float(gradient.norm())


def test_without_a_slope_nothing_is_added() -> None:
    theta, grad = torch.ones(3), torch.zeros(3)
    Sharpness(0.7).alone(theta, grad, lambda: torch.zeros(()), lambda: torch.zeros(()))
    assert torch.equal(theta, torch.ones(3)) and torch.equal(grad, torch.zeros(3))


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_probes_are_the_gradients_part_along_public_directions(name: str) -> None:
    size = model_of(name).theta.numel()
    probes = probes_of(5, 3, size, 4, 1e-3)
    found, gradient = stepped(name, probes)
    slopes = probes.rows @ gradient  # <g, z_k>
    wanted = slopes @ probes.rows / 4
    assert float((found - wanted).norm()) < 0.05 * float(wanted.norm())  # float32, and ReLU has kinks
    torch.testing.assert_close(probes.coordinates(wanted), slopes)


@pytest.mark.parametrize(("size", "count"), [(1, 1), (40, 1), (40, 40), (650, 16)])
def test_directions_are_public_long_and_at_right_angles(size: int, count: int) -> None:
    probes = probes_of(7, 2, size, count, 0.1)
    np.testing.assert_allclose(probes.rows @ probes.rows.T, size * np.eye(count), atol=1e-4 * size)
    assert torch.equal(probes.rows, probes_of.__wrapped__(7, 2, size, count, 0.1).rows)
    assert not torch.equal(probes.rows.abs(), probes_of(7, 3, size, count, 0.1).rows.abs()) or size == 1
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(probes.coordinates(probes.vector(numbers)), numbers, rtol=1e-4, atol=1e-5)


def test_directions_are_uniform() -> None:
    """Squares of a direction's parts have mean 1 along every axis: over 3,000 rounds within five standard errors."""
    squares = torch.stack([probes_of(1, number, 6, 2, 0.1).rows[1] ** 2 for number in range(3000)])
    deviation = (squares.var(0) / 3000).sqrt()
    assert bool(((squares.mean(0) - 1).abs() < 5 * deviation).all())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("rule", ["sharpness", "probes"])
def test_both_trainers_take_the_same_steps(rule: str, name: str, momentum: float) -> None:
    """Unequal clients, one without data; differences of float32 losses are less exact than gradients."""
    model = model_of(name)
    lr = 0.1 if rule == "sharpness" else 1 / model.theta.numel()  # a slope along z_k, of length sqrt(d), grows with d
    config = LocalConfig(epochs=2, batch_size=4, lr=lr, momentum=momentum, sampler="shuffle")
    theta = model.theta.clone()
    own: StepGradient = Sharpness(0.3) if rule == "sharpness" else probes_of(1, 1, theta.numel(), 3, 1e-2)

    def asked() -> list[Training]:
        return [Training(theta, data, rng(k), 0.1, None, own) for k, data in enumerate(data_of(name))]

    alone = SequentialTrainer(model, config).train_all(asked())
    together = VectorisedTrainer(model, config).train_all(asked())
    for one, other, size in zip(alone, together, SIZES, strict=True):
        assert float((one.update - other.update).norm()) <= 2e-3 * float(one.update.norm())
        assert other.loss == pytest.approx(one.loss, rel=1e-4, abs=1e-6)
        assert float(one.update.norm()) > 0 or size == 0


@pytest.mark.parametrize("rule", [Sharpness(0.3), Probes(torch.eye(650)[:2] * 650**0.5, 1e-2)], ids=["sharp", "probes"])
def test_a_clients_bits_do_not_depend_on_who_is_beside_it(rule: StepGradient) -> None:
    model, data = model_of("linear"), [one for one in data_of("linear") if len(one)]
    if isinstance(rule, Probes):
        rule = probes_of(1, 1, model.theta.numel(), 2, 1e-2)
    trainer = VectorisedTrainer(model, LocalConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0, sampler="shuffle"))

    def updates(some: range) -> list[Tensor]:
        asked = [Training(torch.zeros_like(model.theta), data[k], rng(k), 0.0, None, rule) for k in some]
        return [found.update for found in trainer.train_all(asked)]

    together = updates(range(len(data)))
    assert all(torch.equal(updates(range(k, k + 1))[0], together[k]) for k in range(len(data)))
