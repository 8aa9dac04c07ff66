"""Which models the vectorised trainer can train."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fedpriv.config.schema import LocalConfig
from fedpriv.mechanisms.device_errors import failed
from fedpriv.training.sequential import FlatModel
from fedpriv.training.stacked_gradients import TOLERANCE, Chain, Whole
from fedpriv.training.vectorised import VectorisedTrainer


def obstacle(model: FlatModel, shape: tuple[int, ...]) -> str | None:
    """Why this model cannot be trained for several clients at once, naming the layer; None where it can.

    Tested with two models on two batches of unequal size, compared with computing them one after the other.
    """
    module = model.module
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd | nn.RReLU):
            return f"layer {name} is {type(layer).__name__}, whose random numbers would not be each client's own"
        if any(not parameter.requires_grad for parameter in layer.parameters(recurse=False)):
            return f"layer {name} has parameters that are not trained"
    if Chain.of(module, model.task) is not None:
        return None
    entered = ["the model"]  # layers entered so far: the last one is where it failed

    def watch(name: str, layer: nn.Module) -> RemovableHandle:
        return layer.register_forward_pre_hook(lambda *_: entered.append(f"layer {name} ({type(layer).__name__})"))

    hooks = [watch(name, layer) for name, layer in module.named_modules() if name]
    try:
        if _agrees(model, shape):
            return None
    except Exception as error:
        if failed(error):
            raise
        return f"{entered[-1]} fails under torch.func.vmap ({str(error).splitlines()[0]})"
    finally:
        for hook in hooks:
            hook.remove()
    return "the model gives other gradients under torch.func.vmap, or its examples depend on each other"


def _agrees(model: FlatModel, shape: tuple[int, ...]) -> bool:
    device, before = model.theta.device, model.theta.clone()
    random = torch.Generator().manual_seed(0)
    inputs = model.made_up(2, 3, *shape, random=random)
    inputs[1, 2] = 0  # padding
    targets, weights = model.task.blank(2, 3), torch.tensor([[1 / 3] * 3, [0.5, 0.5, 0.0]])
    thetas = torch.stack([before.cpu(), before.cpu() * 1.1])
    trainer = VectorisedTrainer(model, LocalConfig(epochs=1, batch_size=3, lr=1.0, momentum=0.0, sampler="shuffle"))
    model.module.train()
    parts = trainer.split(thetas.to(device))
    _, gradients = trainer.batched.gradients(parts, inputs.to(device), targets.to(device), weights.to(device))
    found = torch.cat([gradient.value.flatten(1) for gradient in gradients if isinstance(gradient, Whole)], dim=1)
    try:
        for k, size in enumerate((3, 2)):
            model.load(thetas[k].to(device))
            model.grad.zero_()
            model.task.mean_loss(model(inputs[k, :size].to(device)), targets[k, :size].to(device)).backward()  # type: ignore[no-untyped-call]
            if not float((found[k] - model.grad).norm()) <= TOLERANCE * float(model.grad.norm() + 1e-6):
                return False
    finally:
        model.grad.zero_()
        model.load(before)
    return True
