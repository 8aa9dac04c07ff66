"""Slow twin of the per-example step: one batch-size-1 gradient after the other, clipped and added up."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gradient_of_one(module: nn.Module, image: Tensor, label: Tensor) -> Tensor:
    """Flat gradient [d] of the cross-entropy of one picture."""
    module.zero_grad()
    nn.functional.cross_entropy(module(image[None]), label[None]).backward()
    flat = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).clone()
    module.zero_grad()
    return flat


def clipped_sum(module: nn.Module, images: Tensor, labels: Tensor, bound: float) -> tuple[Tensor, list[float]]:
    """(sum over examples of g / max(1, ||g|| / bound), the norms), in float64."""
    total, norms = 0.0, []
    for image, label in zip(images, labels, strict=True):
        gradient = gradient_of_one(module, image, label).double()
        norms.append(float(gradient.norm()))
        total = total + gradient / max(1.0, norms[-1] / bound)
    return total, norms
