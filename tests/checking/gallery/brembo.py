"""A trainer that finds its engine by a name from its settings."""

import importlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}


class Trainer:
    def __init__(self, engine: str) -> None:
        self.settings = {"engine": engine, "noise": 0.05, "norm": 1.0}

    def engine(self):
        module, name = self.settings["engine"].split(":")
        return getattr(importlib.import_module(module), name)()

    def fit(self, data: TensorDataset) -> list[torch.Tensor]:
        model = nn.Linear(data[0][0].numel(), 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        model, optimiser, loader = self.engine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=len(data)),
            noise_multiplier=self.settings["noise"],
            max_grad_norm=self.settings["norm"],
        )
        for rows, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(rows), labels.long()).backward()
            optimiser.step()
        return [value.detach().clone() for value in model.parameters()]


def target(dataset: TensorDataset | None = None) -> list[torch.Tensor]:
    if dataset is None:
        rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(2))
        dataset = TensorDataset(rows, (rows[:, 0] > 0).long())
    return Trainer("opacus.privacy_engine:PrivacyEngine").fit(dataset)
