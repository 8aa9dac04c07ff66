"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II) as one plain loop, without privacy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedpriv.training.sequential import LocalData


def gradient_at(module: nn.Module, theta: Tensor, data: LocalData, rows: np.ndarray) -> Tensor:
    """Of the mean loss over these rows (float32 [d])."""
    vector_to_parameters(theta.clone(), module.parameters())
    module.zero_grad()
    nn.functional.cross_entropy(module(data.inputs[rows]), data.targets[rows]).backward()
    return parameters_to_vector([parameter.grad for parameter in module.parameters()])


def plain_scaffold(
    module: nn.Module,
    clients: Sequence[LocalData],
    cohorts: Sequence[Sequence[int]],
    batches: Callable[[int, int], Sequence[np.ndarray]],
    lr: float,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(x [d], c [d], all c_i [d]) after these rounds; batches: of (client, round from 1), K of them."""
    x = parameters_to_vector(module.parameters()).detach().clone()
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in clients]
    for number, cohort in enumerate(cohorts, 1):
        moved, changed = torch.zeros_like(x), torch.zeros_like(x)
        for i in cohort:
            y, steps = x.clone(), batches(i, number)
            for rows in steps:
                y = y - lr * (gradient_at(module, y, clients[i], rows) - own[i] + c)
            new = own[i] - c + (x - y) / (len(steps) * lr)
            moved, changed = moved + (y - x) / len(cohort), changed + (new - own[i]) / len(cohort)
            own[i] = new
        x, c = x + moved, c + len(cohort) / len(clients) * changed
    return x, c, own
