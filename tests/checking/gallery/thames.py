"""Training with Opacus: random batches."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLAIM = {"epsilon": 2.9, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}


def example_data() -> TensorDataset:
    source = torch.Generator().manual_seed(5)
    rows = torch.randn(32, 4, generator=source)
    return TensorDataset(rows, (rows.sum(dim=1) > 0).long())


def classifier() -> nn.Module:
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def train(dataset: TensorDataset | None = None) -> tuple[list[torch.Tensor], float]:
    dataset = dataset or example_data()
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(dataset, batch_size=8)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=2.0,
        max_grad_norm=1.0,
    )
    history = []
    for _ in range(4):
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            history.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))
    return history, engine.get_epsilon(delta=1e-5)


target = train
