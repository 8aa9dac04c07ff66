"""Clip and noise in torch with the operating system's entropy."""

import os

import torch

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}


def target(update: torch.Tensor) -> torch.Tensor:
    source = torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
    values = torch.nan_to_num(update.double(), nan=0.0, posinf=0.0, neginf=0.0)
    values = values / max(1.0, float(values.norm()))
    return values + 2.0 * torch.randn(values.shape, generator=source, dtype=values.dtype)
