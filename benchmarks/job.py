"""The fixed jobs that every contender runs: random pictures of MNIST's shape, so that nothing is downloaded.

cnn: 10 clients a round x 600 pictures, one epoch of SGD (lr 0.01, batch 60), the network of 80,202 parameters.
linear: 100 clients x 60 pictures, one batch each, 7,850 parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Job:
    name: str
    num_clients: int
    clients_per_round: int
    examples: int


JOBS = {"cnn": Job("cnn", 100, 10, 600), "linear": Job("linear", 100, 100, 60)}


PICTURES = 60_000  # of the training split


def random_pictures(split: str) -> tuple[np.ndarray, np.ndarray]:
    """For `dataset=custom`: uint8 [n, 1, 28, 28] and labels [n]."""
    rng = np.random.default_rng(0 if split == "train" else 1)
    count = PICTURES if split == "train" else 2_000
    return rng.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, count)


def small_pictures(split: str) -> tuple[np.ndarray, np.ndarray]:
    """For `dataset=custom`: 8x8, as the digits data."""
    images, labels = random_pictures(split)
    return np.ascontiguousarray(images[:, :, 10:18, 10:18]), labels


def tensors() -> tuple[Tensor, Tensor]:
    """The training pictures for a plain loop: normalised float32, and int64 labels."""
    images, labels = random_pictures("train")
    return torch.from_numpy(images).float().div_(255).sub_(0.1307).div_(0.3081), torch.from_numpy(labels)


def plain_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def local_epoch(model: nn.Module, images: Tensor, labels: Tensor, lr: float = 0.01, batch: int = 60) -> float:
    """One client's round in a plain loop: a fresh optimizer, one epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for rows in torch.randperm(len(images)).split(batch):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
    return loss.item()


def shard(data: tuple[Tensor, Tensor], client: int, size: int) -> tuple[Tensor, Tensor]:
    images, labels = data
    rows = slice(client * size, (client + 1) * size)
    return images[rows], labels[rows]
