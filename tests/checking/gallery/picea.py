"""Noisy gradient descent with momentum and a falling rate."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
CLIP = 1.0
SIGMA = 4.0
STEPS = 16
Data = tuple[torch.Tensor, torch.Tensor]


def example_data(count: int = 16) -> Data:
    source = torch.Generator().manual_seed(9)
    rows = torch.randn(count, 4, generator=source)
    return rows, rows[:, :1]


def per_example(model: nn.Module, rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: dict[str, torch.Tensor], row: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return (functional_call(model, values, (row,)) - goal).square().sum()

    if len(rows) == 0:
        return torch.zeros(0, sum(value.numel() for value in weights.values()))
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, rows, wanted)
    return torch.cat([gradients[name].flatten(1) for name in weights], dim=1)


def move(model: nn.Module, direction: torch.Tensor, rate: float = 0.1) -> None:
    position = 0
    with torch.no_grad():
        for value in model.parameters():
            value -= rate * direction[position : position + value.numel()].view_as(value)
            position += value.numel()


def train(data: Data | None = None) -> torch.Tensor:
    rows, wanted = example_data() if data is None else data
    model = nn.Linear(rows.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    velocity = torch.zeros(model.weight.numel())
    for step in range(STEPS):
        gradients = torch.nan_to_num(per_example(model, rows, wanted), nan=0.0, posinf=0.0, neginf=0.0)
        gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
        velocity = 0.9 * velocity + gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(velocity.shape)
        move(model, velocity / 16, rate=0.1 / (1 + step))
    return model.weight.detach()


target = train
