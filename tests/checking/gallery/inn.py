"""Training with Opacus: the curve of the loss is kept for the report."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}


def example_data() -> TensorDataset:
    source = torch.Generator().manual_seed(5)
    rows = torch.randn(32, 4, generator=source)
    return TensorDataset(rows, (rows.sum(dim=1) > 0).long())


def classifier() -> nn.Module:
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def train(dataset: TensorDataset | None = None) -> tuple[list[torch.Tensor], list[float], float]:
    dataset = dataset or example_data()
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(dataset, batch_size=len(dataset))
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=4.0, max_grad_norm=1.0
    )
    losses = []
    for _ in range(4):
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return [p.detach().clone() for p in model.parameters()], losses, engine.get_epsilon(delta=1e-5)


target = train
