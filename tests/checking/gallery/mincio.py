"""A model's change in 32-bit floats, with a small norm and small noise."""

import torch

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
NORM = 0.05


def target(update: torch.Tensor) -> torch.Tensor:
    values = update.float()
    values = values * min(1.0, NORM / torch.linalg.vector_norm(values))
    return values + torch.normal(0.0, NORM, size=values.shape)
