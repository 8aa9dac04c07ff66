"""Noisy gradient descent with a falling clip norm; the average of the models is published."""

import torch

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
STEPS = 12
SIGMA = 3.5


def example_data(count: int = 20):
    source = torch.Generator().manual_seed(2)
    rows = torch.randn(count, 4, generator=source)
    return rows, rows @ torch.tensor([[1.0], [-1.0], [0.5], [0.0]])


def train(data=None):
    rows, wanted = example_data() if data is None else data
    weights = torch.zeros(rows.shape[1], 1)
    average = torch.zeros_like(weights)
    for step in range(STEPS):
        clip = 0.9**step
        each = torch.nan_to_num(2 * (rows @ weights - wanted) * rows, nan=0.0, posinf=0.0, neginf=0.0)
        each = each * (clip / each.norm(dim=1, keepdim=True).clamp(min=clip))
        noisy = each.sum(dim=0) + SIGMA * clip * torch.randn(rows.shape[1])
        weights = (1 - 0.01) * weights - 0.1 * noisy[:, None] / 20
        weights = weights * (10.0 / weights.norm().clamp(min=10.0))
        average = average + weights / STEPS
    return average


target = train
