"""One linear layer's gradient without a graph: autograd's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel, LinearGradient, LocalData, SequentialTrainer, Training


def model_of(dims: int, classes: int, bias: bool = True) -> FlatModel:
    torch.manual_seed(dims)
    module = nn.Sequential()
    module.add_module("flat", nn.Flatten())
    module.add_module("out", nn.Linear(dims, classes, bias=bias))
    return FlatModel(module)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("examples", "dims", "classes"), [(1, 3, 2), (7, 300, 100), (10, 784, 10), (64, 150, 10)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_loss_and_gradient_are_autograds(examples: int, dims: int, classes: int, bias: bool, scale: float) -> None:
    """Also added to a gradient that is there, and where a share is zero or one."""
    model, random = model_of(dims, classes, bias), torch.Generator().manual_seed(examples)
    linear = LinearGradient.of(model)
    assert linear is not None
    images = scale * torch.randn(examples, dims, 1, 1, generator=random)
    labels = torch.randint(0, classes, (examples,), generator=random)
    found = []
    for by_graph in (True, False):
        model.grad.zero_()
        losses = []
        for _ in range(2):
            if by_graph:
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
            else:
                loss = linear.add(images, labels)
            losses.append(float(loss.detach()))
        found.append((losses, model.grad.clone()))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
    assert found[1][1].abs().sum() > 0 or scale > 1  # a share of one leaves nothing


@pytest.mark.parametrize("changes", [{}, {"momentum": 0.9}, {"sampler": "poisson"}])
def test_a_participation_is_the_same(changes: dict[str, object]) -> None:
    options = {"epochs": 2, "steps": None, "batch_size": 8, "lr": 0.3, "momentum": 0.0, "sampler": "shuffle"}
    config = LocalConfig(**(options | changes))  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(0)
    data = LocalData(torch.randn(30, 1, 8, 8, generator=random), torch.randint(0, 10, (30,), generator=random))
    trainers = [SequentialTrainer(model_of(64, 10), config) for _ in range(2)]
    assert trainers[0]._linear is not None
    trainers[1]._linear = None
    theta = trainers[0].model.theta.clone()
    one, other = (
        trainer.train(Training(theta, data, np.random.default_rng(1), 0.1, 0.01 * theta)) for trainer in trainers
    )
    assert torch.equal(one.update, other.update) and one.loss == other.loss and float(one.update.norm()) > 0


def test_other_models_are_left_to_autograd() -> None:
    for name, taken in (("linear", True), ("softmax", True), ("mlp", False), ("cnn", False)):
        model = FlatModel(build_model(ModelConfig(name=name, hidden=8), (1, 28, 28), 10, 0))
        assert (LinearGradient.of(model) is not None) == taken, name
    hooked, frozen = model_of(4, 2), model_of(4, 2)
    hooked.module.register_forward_hook(lambda *_: None)
    frozen.module.out.bias.requires_grad_(False)  # type: ignore[union-attr]
    assert LinearGradient.of(hooked) is None and LinearGradient.of(frozen) is None
    assert SequentialTrainer(model_of(4, 2), LocalConfig.model_construct(batch_size=8), "bfloat16")._linear is None


@pytest.mark.parametrize("how", ["forward hook", "parameter's hook", "own forward", "mixed precision"])
def test_what_comes_later_leaves_it_to_autograd(how: str) -> None:
    model = model_of(4, 2)
    linear, layer = LinearGradient.of(model), model.module.out
    assert linear is not None and isinstance(layer, nn.Linear) and linear.holds
    if how == "forward hook":
        layer.register_forward_hook(lambda *_: None)
    elif how == "parameter's hook":
        layer.weight.register_hook(lambda gradient: 2 * gradient)
    elif how == "own forward":
        layer.forward = lambda inputs: inputs  # type: ignore[method-assign, assignment]
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "mixed precision"):
        assert not linear.holds


def test_a_trainer_asks_before_each_participation() -> None:
    config = LocalConfig(epochs=1, steps=None, batch_size=8, lr=0.3, momentum=0.0, sampler="shuffle")
    random = torch.Generator().manual_seed(0)
    data = LocalData(torch.randn(8, 1, 2, 2, generator=random), torch.randint(0, 2, (8,), generator=random))
    trainer = SequentialTrainer(model_of(4, 2), config)
    theta = trainer.model.theta.clone()
    plain = trainer.train(Training(theta, data, np.random.default_rng(1))).update
    for parameter in trainer.model.module.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)
    assert torch.allclose(trainer.train(Training(theta, data, np.random.default_rng(1))).update, 2 * plain)
