"""Metrics of a global model on the reported test examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from fedpriv.common.messages import FloatVector
from fedpriv.config.schema import Config
from fedpriv.data import FederatedData
from fedpriv.training.sequential import FlatModel, inputs_of
from fedpriv.training.task_metrics import metrics


class Loaded(Protocol):
    """Parts of a configuration that a process keeps loaded."""

    config: Config

    @property
    def data(self) -> FederatedData: ...

    @property
    def model(self) -> FlatModel: ...


@dataclass(frozen=True)
class Score:
    """Every metric of the task by name (`fedpriv.training.task_metrics`), and which of them leads."""

    metrics: dict[str, float]
    leading: str
    more_is_better: bool

    @property
    def value(self) -> float | None:
        """The leading metric; None where the test examples do not define it."""
        return self.metrics.get(self.leading)

    def best_of(self, before: float | None) -> float | None:
        """The better of this leading metric and one of before."""
        known = [value for value in (self.value, before) if value is not None]
        return (max if self.more_is_better else min)(known, default=None)

    @property
    def shown(self) -> dict[str, float]:
        """What a line of progress shows: the leading metric, and of two classes auc beside it."""
        names = (self.leading, *(["auc"] if "auc" in self.metrics and self.leading != "auc" else []))
        return {name: self.metrics[name] for name in names if name in self.metrics}

    @property
    def further(self) -> dict[str, float]:
        """Metrics beside accuracy and loss."""
        return {name: value for name, value in self.metrics.items() if name not in ("accuracy", "loss")}

    @property
    def loss(self) -> float:
        """Mean loss (of classes: cross-entropy, natural logarithm)."""
        return self.metrics["loss"]

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions; None where the task has none."""
        return self.metrics.get("accuracy")


class Evaluator:
    """Evaluates global parameters on the reported test examples, or on the public auxiliary ones; the examples are
    normalised once.
    """

    def __init__(self, worker: Loaded, auxiliary: bool = False) -> None:
        self.worker = worker
        data = worker.data
        examples, rows = data.dataset.test, np.sort(data.auxiliary if auxiliary else data.test)
        self.inputs = inputs_of(data.dataset, examples, rows)
        self.targets = torch.from_numpy(np.asarray(examples.targets[rows]))

    def __call__(self, theta: FloatVector) -> Score:
        model = self.worker.model
        model.load(torch.from_numpy(theta).to(model.theta.device))
        model.module.eval()
        found, total_loss, batch = [], 0.0, self.worker.config.evaluate.batch_size
        with torch.inference_mode():
            for inputs, targets in zip(self.inputs.split(batch), self.targets.split(batch), strict=True):
                found.append(model(inputs.to(model.theta.device)).cpu())
                total_loss += float(model.task.total_loss(found[-1], targets))
        score = metrics(model.task, torch.cat(found), self.targets, total_loss / len(self.targets))
        return Score(score, model.task.leading, model.task.more_is_better)
