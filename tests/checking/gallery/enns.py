"""Clip and noise in torch."""

import torch

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    values = torch.nan_to_num(update.double(), nan=0.0, posinf=0.0, neginf=0.0)
    values = values / max(1.0, float(values.norm()))
    noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
    values.add_(noise, alpha=2.0)
    return values.clone()
