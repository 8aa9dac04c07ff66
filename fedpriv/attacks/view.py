"""What an attacker computes from a model: confidences, posteriors, gradient norms, activations. In batches.

Shapes: n examples, k classes, d parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedpriv.common.messages import FloatVector
from fedpriv.data import Dataset
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.quiet_vmap import quiet_vmap
from fedpriv.training.sequential import FlatModel, inputs_of

Features = NDArray[np.float64]
Rows = NDArray[np.int64]

#: Examples processed at a time; gradients are computed in separate chunks.
BATCH = 500
#: Numbers of the gradients that are formed at a time.
GRADIENTS = 10_000_000


class View:
    """Evaluates models of one architecture on the examples of a pool (its rows are those of ``dataset.train``)."""

    def __init__(self, model: FlatModel, pool: Dataset) -> None:
        self.model, self.pool = model, pool
        self._gradients = PerExampleGradients(model.module, task=model.task, vocabulary=model.vocabulary)
        layers = [layer for layer in model.module.modules() if list(layer.parameters(recurse=False))]
        self._last = layers[-1]

    def labels(self, rows: Rows) -> Rows:
        return np.asarray(self.pool.train.targets[rows], dtype=np.int64)

    def _load(self, theta: FloatVector) -> None:
        self.model.load(torch.from_numpy(np.ascontiguousarray(theta)).to(self.model.theta.device))
        self.model.module.eval()

    def _batches(self, rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        device = self.model.theta.device
        for part in np.array_split(rows, max(1, -(-len(rows) // BATCH))):
            images = inputs_of(self.pool, self.pool.train, part)
            yield images.to(device), torch.from_numpy(self.labels(part)).to(device)

    def logits(self, theta: FloatVector, rows: Rows) -> Features:
        """[n, k]"""
        self._load(theta)
        with torch.inference_mode():
            return np.concatenate([self.model(images).double().cpu().numpy() for images, _ in self._batches(rows)])

    def confidence(self, theta: FloatVector, rows: Rows) -> Features:
        """log(p / (1 - p)) of the true class's probability p [n]."""
        return logit_confidence(self.logits(theta, rows), self.labels(rows))

    def gradients(self, theta: FloatVector, rows: Rows) -> Iterator[Tensor]:
        """Gradients of the loss of single examples [b, d], some rows at a time, in their order."""
        self._load(theta)
        module, task = self.model.module, self.model.task
        parameters = {name: value.detach() for name, value in module.named_parameters()}

        def loss(values: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
            return task.mean_loss(functional_call(module, values, (example[None],)), label[None])

        single = grad(loss)
        many = quiet_vmap(single, in_dims=(None, 0, 0))
        most = max(1, min(BATCH, GRADIENTS // self.model.theta.numel()))
        for part in np.array_split(rows, max(1, -(-len(rows) // most))):
            examples = inputs_of(self.pool, self.pool.train, part).to(self.model.theta.device)
            labels = torch.from_numpy(self.labels(part)).to(examples.device)
            try:
                found = many(parameters, examples, labels)
            except RuntimeError:  # a model that torch cannot vectorise: one example after the other
                each = [single(parameters, one, label) for one, label in zip(examples, labels, strict=True)]
                found = {name: torch.stack([one[name] for one in each]) for name in parameters}
            yield torch.cat([found[name].reshape(len(part), -1) for name in parameters], 1).detach()

    def inside(self, theta: FloatVector, rows: Rows) -> tuple[Features, Features, Features]:
        """Losses [n], norms of the gradient within each block [n, blocks], inputs of the last layer [n, features]."""
        self._load(theta)
        seen: list[Tensor] = []
        losses, norms, hidden = [], [], []

        def note(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            seen.append(inputs[0].detach().flatten(1))

        for images, labels in self._batches(rows):
            _, norm, loss = self._gradients.block_norms(images, labels)
            handle = self._last.register_forward_hook(note)
            with torch.inference_mode():
                self.model(images)
            handle.remove()
            norms.append(norm.cpu().numpy())
            losses.append(loss.double().cpu().numpy())
            hidden.append(seen.pop().double().cpu().numpy())
        return np.concatenate(losses), np.concatenate(norms), np.concatenate(hidden)


def logit_confidence(logits: Features, labels: Rows) -> Features:
    """log(p / (1 - p)) of the true class's probability, from logits [n, k]: exact where p is 1 in floating point."""
    index = np.arange(len(labels))
    others = logits.copy()
    others[index, labels] = -np.inf
    highest = others.max(1, keepdims=True)
    rest = highest[:, 0] + np.log(np.exp(others - highest).sum(1))
    confidence: Features = np.clip(logits[index, labels] - rest, -1e6, 1e6)
    return confidence


def sorted_log_posteriors(logits: Features, count: int) -> Features:
    """The ``count`` largest of log(p / (1 - p)) of every class, largest first [n, count]."""
    classes = logits.shape[1]
    odds = np.stack(
        [logit_confidence(logits, np.full(len(logits), label, dtype=np.int64)) for label in range(classes)], axis=1
    )
    return np.sort(odds, axis=1)[:, ::-1][:, :count]
