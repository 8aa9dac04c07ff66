"""Accuracy and loss of a global model on the reported test pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from fedpriv.common.messages import FloatVector
from fedpriv.config.schema import Config
from fedpriv.data import FederatedData
from fedpriv.training.sequential import FlatModel, inputs


class Loaded(Protocol):
    """Parts of a configuration that a process keeps loaded."""

    config: Config

    @property
    def data(self) -> FederatedData: ...

    @property
    def model(self) -> FlatModel: ...


@dataclass(frozen=True)
class Score:
    """Accuracy (share of correct predictions) and mean cross-entropy (natural logarithm)."""

    accuracy: float
    loss: float


class Evaluator:
    """Evaluates global parameters on the reported test pictures, or on the public auxiliary ones; the pictures are
    normalised once.
    """

    def __init__(self, worker: Loaded, auxiliary: bool = False) -> None:
        self.worker = worker
        data = worker.data
        pictures, rows = data.dataset.test, np.sort(data.auxiliary if auxiliary else data.test)
        self.images = inputs(data.dataset, pictures, rows)
        self.labels = torch.from_numpy(np.asarray(pictures.labels[rows], dtype=np.int64))

    def __call__(self, theta: FloatVector) -> Score:
        model = self.worker.model
        model.load(torch.from_numpy(theta).to(model.theta.device))
        model.module.eval()
        correct, total_loss = 0, 0.0
        with torch.inference_mode():
            batch = self.worker.config.evaluate.batch_size
            for images, labels in zip(self.images.split(batch), self.labels.split(batch), strict=True):
                logits = model(images.to(model.theta.device)).cpu()
                correct += int((logits.argmax(1) == labels).sum())
                total_loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        return Score(
            correct / len(self.labels), min(total_loss / len(self.labels), 1e30) if total_loss == total_loss else 1e30
        )
