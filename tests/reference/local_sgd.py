"""Local training and federated averaging as plain loops over torch's own optimiser and autograd."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def plain_sgd(
    module: nn.Module,
    theta: Tensor,
    images: Tensor,
    labels: Tensor,
    batches: Sequence[np.ndarray],
    lr: float,
    momentum: float = 0.0,
    proximal_mu: float = 0.0,
    drift: Tensor | None = None,
) -> tuple[Tensor, float]:
    """theta_local - theta and the mean loss over the batches that are not empty.

    What is added is part of the loss here, and autograd differentiates it: h(w) = F(w) + mu/2 ||w - theta||^2 +
    <drift, w>.
    """
    vector_to_parameters(theta.clone(), module.parameters())
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    losses = []
    for rows in batches:
        if not len(rows):
            continue
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(images[rows]), labels[rows])
        losses.append(loss.item())
        here = parameters_to_vector(module.parameters())
        pull = 0.0 if drift is None else (drift * here).sum()
        (loss + proximal_mu / 2 * ((here - theta) ** 2).sum() + pull).backward()
        optimiser.step()
    update = parameters_to_vector(module.parameters()).detach() - theta
    return update, float(np.mean(losses)) if losses else 0.0


def plain_average(theta: np.ndarray, updates: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """theta + sum of weighted updates, in float64, weights scaled to sum to one."""
    total = sum(weights)
    step = np.zeros(len(theta))
    for update, weight in zip(updates, weights, strict=True):
        step = step + (weight / total) * update.astype(np.float64)
    return (theta + step).astype(np.float32)
