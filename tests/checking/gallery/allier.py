"""Training with Opacus: every row once in each epoch."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLAIM = {"epsilon": 4.8, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}


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
    loader = DataLoader(dataset, batch_size=4, shuffle=False)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    history = []
    for _ in range(2):
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            history.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))
    return history, engine.get_epsilon(delta=1e-5)


target = train
