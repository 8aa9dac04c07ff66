"""How much a client's update differs from its last one: Fed-CAD's Definition 1 and figure 1, without noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

EXAMPLES, BATCH, RATE = 600, 60, 0.01


def fedcad_consecutive(overrides: Sequence[str], clients: float, rounds: float, seed: float) -> dict[str, float]:
    """The paper's section IV-B: every client takes part in every round, has 600 pictures drawn at random, and makes one
    epoch of SGD (rate 0.01, batches of 60) with a network of two convolutions and two fully connected layers; the
    model moves by the mean of the updates. overrides: where the pictures are.

    With c_i = |Delta_i - Delta_(i-1)| of one client in consecutive rounds: cases, how many there are; below, in how
    many c_i is less than |Delta_i| and |Delta_(i-1)|; ratio and mean_ratio, the largest and the mean of c_i over the
    lesser of the two; change, the largest c_i; first, peak and last: the mean of c_i over clients in its first, its
    largest and its last round; peak_round: that of the largest; ends: the larger of first and last over peak.
    """
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_dataset
    from fedpriv.training.models import build_model

    config = compose([*overrides, "model=cnn"])
    data = load_dataset(config.dataset, 0)
    model = build_model(config.model, data.input_shape or data.train.inputs.shape[1:], 10, seed=int(seed))
    order = np.random.default_rng(int(seed)).permutation(len(data.train))[: int(clients) * EXAMPLES]
    mean, std = (torch.tensor(one).view(1, -1, 1, 1) for one in (data.mean, data.std))
    images = (torch.as_tensor(np.asarray(data.train.inputs[order])).float() / 255 - mean) / std
    labels = torch.as_tensor(np.asarray(data.train.targets[order])).long()
    shuffle = torch.Generator().manual_seed(int(seed))
    start = parameters_to_vector(model.parameters()).detach().clone()
    last: list[Tensor] = []
    changes, ratios = [], []
    for _ in range(int(rounds)):
        updates = []
        for client in range(int(clients)):
            rows = torch.arange(client * EXAMPLES, (client + 1) * EXAMPLES)
            rows = rows[torch.randperm(EXAMPLES, generator=shuffle)]
            updates.append(_trained(model, start, images[rows], labels[rows]) - start)
        if last:
            found = [float((new - old).norm()) for new, old in zip(updates, last, strict=True)]
            lesser = [float(min(new.norm(), old.norm())) for new, old in zip(updates, last, strict=True)]
            changes.append(found)
            ratios += [one / other for one, other in zip(found, lesser, strict=True)]
        start, last = start + torch.stack(updates).mean(0), updates
    means = [float(np.mean(one)) for one in changes]
    return {
        "cases": float(len(ratios)),
        "below": float(sum(ratio < 1 for ratio in ratios)),
        "ratio": max(ratios),
        "mean_ratio": float(np.mean(ratios)),
        "change": max(max(one) for one in changes),
        "first": means[0],
        "peak": max(means),
        "peak_round": float(2 + int(np.argmax(means))),
        "last": means[-1],
        "ends": max(means[0], means[-1]) / max(means),
    }


def _trained(model: nn.Module, start: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """The parameters after one epoch from ``start``."""
    vector_to_parameters(start.clone(), model.parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in range(0, len(labels), BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[batch : batch + BATCH]), labels[batch : batch + BATCH]).backward()
        optimiser.step()
    return parameters_to_vector(model.parameters()).detach().clone()
