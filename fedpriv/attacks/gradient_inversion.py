"""Examples from an update: what training examples would have moved the model so?

`searched`: Geiping, Bauermeister, Dröge and Moeller, "Inverting Gradients - How easy is it to break privacy in
federated learning?" (NeurIPS 2020), equation 4: the examples x [b, ...] whose gradient g(x) points where the update u
came from, argmin_x 1 - <g(x), -u> / (|g(x)| |u|) + alpha TV(x), by Adam on the signs of the gradient, within the range
of the inputs. The labels are read off the update (`labels_in`).

`quotients`: a first layer that is linear gives its inputs away (Phong, Aono, Hayashi, Wang and Moriai, "Privacy-
preserving deep learning via additively homomorphic encryption", 2018). With y = W x + b and the gradient d of y,
dW = d x' and db = d, so a row of dW divided by its entry of db is x; of several examples, their mean weighted by d, and
x itself for a unit that only this example passes (Boenisch et al., "When the curious abandon honesty", 2023).

Shapes: b examples, d parameters, i inputs and o outputs of the first layer, k classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.training.sequential import FlatModel

#: Step length of the search, as a share of the inputs' range.
STEP = 0.02
#: Where the steps become ten times shorter (the paper's).
SHORTER = (3 / 8, 5 / 8, 7 / 8)


@dataclass(frozen=True)
class Known:
    """What the server knows of any client: the shape of an example, and the least and the largest value of its inputs
    (float32, of that shape or of one number).
    """

    shape: tuple[int, ...]
    low: Tensor
    high: Tensor
    smoothness: float


def labels_in(model: FlatModel, update: Tensor, count: int, classes: int) -> Tensor:
    """Labels int64 [b] of ``count`` examples: a class that is there pulls its output up.

    After Wainakh et al., "User-level label leakage from gradients in federated learning" (PETS 2022): with g the
    gradient [k] of the last layer's biases (or the sums of its weights' rows), every class with g < 0 is there; each
    example adds about the same amount, m = (1 + 1/k) sum(min(g, 0)) / b, and the rest go where g - n m is least.
    """
    last = [layer for layer in model.module.modules() if list(layer.parameters(recurse=False))][-1]
    own = list(last.parameters(recurse=False))
    tail = -update[-sum(part.numel() for part in own) :]
    pull = (tail[-classes:] if len(own) > 1 else tail.view(classes, -1).sum(1)).double()
    each = (1 + 1 / classes) * pull.clamp(max=0).sum() / count
    found: list[int] = []
    for label in torch.argsort(pull).tolist():
        if pull[label] < 0 and len(found) < count:
            found.append(label)
            pull[label] -= each
    while len(found) < count:
        label = int(torch.argmin(pull))
        found.append(label)
        pull[label] -= each
    return torch.tensor(sorted(found))


def quotients(model: FlatModel, update: Tensor, known: Known, most: int) -> Tensor:
    """Up to ``most`` inputs [q, ...] as the first layer's quotients, those within the range first, no two of them
    alike; none of a model whose first layer is another.
    """
    none = torch.zeros(0, *known.shape)
    layers = [layer for layer in model.module.modules() if list(layer.parameters(recurse=False))]
    first, inputs = layers[0], int(np.prod(known.shape))
    if not isinstance(first, nn.Linear) or first.bias is None or first.in_features != inputs:
        return none
    weights = update[: first.weight.numel()].view(-1, inputs)
    biases = update[first.weight.numel() :][: first.out_features]
    heard = biases.abs() > 1e-4 * biases.abs().max().clamp(min=1e-30)
    if not heard.any():
        return none
    found = (weights[heard] / biases[heard, None]).view(-1, *known.shape)
    inside = torch.minimum(torch.maximum(found, known.low), known.high)
    outside = (found - inside).flatten(1).norm(dim=1)
    chosen: list[int] = []
    for place in torch.argsort(outside).tolist():
        apart = [(inside[place] - inside[other]).norm() for other in chosen]
        if not chosen or min(apart) > 0.1 * inside[place].norm():
            chosen.append(place)
        if len(chosen) == most:
            break
    return inside[chosen]


def searched(
    model: FlatModel, theta: Tensor, update: Tensor, labels: Tensor, known: Known, steps: int, seed: int
) -> Tensor:
    """Examples [b, ...] with these labels whose gradient at ``theta`` [d] points where ``update`` [d] came from."""
    module, task = model.module, model.task
    model.load(theta)
    module.eval()
    parameters = {name: value.detach().requires_grad_() for name, value in module.named_parameters()}
    aim = -update / update.norm().clamp(min=1e-30)
    random = torch.Generator().manual_seed(seed)
    span = known.high - known.low
    found = known.low + span * torch.rand(len(labels), *known.shape, generator=random)
    found.requires_grad_()
    step = STEP * float(span.max())
    optimiser = torch.optim.Adam([found], lr=step)
    changes = [round(part * steps) for part in SHORTER]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, sorted(set(changes)), 0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = task.mean_loss(functional_call(module, parameters, (found,)), labels)
        gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        flat = torch.cat([part.reshape(-1) for part in gradients])
        apart = 1 - flat @ aim / flat.norm().clamp(min=1e-30) + known.smoothness * variation(found)
        (found.grad,) = torch.autograd.grad(apart, [found])
        found.grad.sign_()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            found.copy_(torch.minimum(torch.maximum(found, known.low), known.high))
    return found.detach()


def variation(examples: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of [b, c, h, w]; 0 of other shapes."""
    if examples.ndim != 4:
        return examples.new_zeros(())
    down, right = examples.diff(dim=2).abs(), examples.diff(dim=3).abs()
    return (down.mean() if down.numel() else down.sum()) + (right.mean() if right.numel() else right.sum())


def distances(some: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square differences [n, m] of examples [n, i] and [m, i]."""
    squares = (some**2).sum(1)[:, None] + (others**2).sum(1) - 2 * some @ others.T
    found: NDArray[np.float64] = np.sqrt(np.maximum(squares, 0) / some.shape[1])
    return found
