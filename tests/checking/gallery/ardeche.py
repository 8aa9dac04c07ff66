"""Training with Opacus' parts: random batches, a step size for the expected batch."""

import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import TensorDataset

CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
RATE = 0.25
WIDTH = 64


def example_data() -> TensorDataset:
    source = torch.Generator().manual_seed(5)
    rows = torch.randn(8, WIDTH, generator=source)
    return TensorDataset(rows, (rows.sum(dim=1) > 0).long())


def train(dataset: TensorDataset | None = None) -> tuple[list[torch.Tensor], float]:
    dataset = dataset or example_data()
    model = nn.Linear(WIDTH, 2, bias=False)
    nn.init.zeros_(model.weight)
    model = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
        expected_batch_size=max(1, int(RATE * len(dataset))),
    )
    accountant = RDPAccountant()
    history = []
    for chosen in UniformWithReplacementSampler(num_samples=len(dataset), sample_rate=RATE, steps=8):
        rows, labels = dataset.tensors[0][chosen], dataset.tensors[1][chosen]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels, reduction="mean").backward()
        optimizer.step()
        accountant.step(noise_multiplier=2.0, sample_rate=RATE)
        history.append(model._module.weight.detach().flatten().clone())
    return history, accountant.get_epsilon(delta=1e-5)


target = train
