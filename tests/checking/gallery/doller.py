"""An Opacus loop with warm restarts of the rate."""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLAIM = {"epsilon": 8.0, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
warnings.filterwarnings("ignore")


def example_data() -> TensorDataset:
    source = torch.Generator().manual_seed(4)
    rows = torch.randn(64, 4, generator=source)
    return TensorDataset(rows, (rows[:, 0] > 0).long())


def train(data: TensorDataset | None = None):
    data = example_data() if data is None else data
    model = nn.Linear(4, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    engine = PrivacyEngine()
    model, optimiser, loader = engine.make_private(
        module=model,
        optimizer=optimiser,
        data_loader=DataLoader(data, batch_size=16),
        noise_multiplier=1.2,
        max_grad_norm=1.0,
    )
    for epoch in range(3):
        if epoch == 2:
            optimiser.zero_grad()
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for rows, labels in loader:
            optimiser.zero_grad()
            model.zero_grad()
            if len(rows):
                nn.functional.cross_entropy(model(rows), labels).backward()
                optimiser.step()
    return [value.detach() for value in model.parameters()], engine.get_epsilon(1e-5)


target = train
