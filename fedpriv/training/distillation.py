"""Distillation on the server: from the ensemble of the clients' models into the global model, on public examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FloatVector
from fedpriv.common.seeds import generator
from fedpriv.mechanisms.distillation_loss import distillation_loss
from fedpriv.mechanisms.tasks import Classification
from fedpriv.training.evaluation import Loaded
from fedpriv.training.sequential import inputs_of


@dataclass(frozen=True)
class DistillationOptions:
    """epochs of SGD with ``lr`` over the auxiliary examples; loss: kl | mse; temperature of the softened logits."""

    epochs: int
    batch_size: int
    lr: float
    loss: str
    temperature: float


class Distiller:
    """Trains a student towards a teacher on the public auxiliary examples; their targets are not used."""

    def __init__(self, worker: Loaded, options: DistillationOptions) -> None:
        data = worker.data
        if not isinstance(data.dataset.task, Classification):
            words = f"distils class probabilities, and task={data.dataset.task.name} has none; allowed: 0"
            raise OptionError("strategy.server.distillation_epochs", options.epochs, words)
        rows, examples = np.sort(data.auxiliary), data.dataset.test
        self.worker, self.options = worker, options
        self.inputs = inputs_of(data.dataset, examples, rows)

    def __call__(self, teacher: FloatVector, student: FloatVector, trained: slice, server_round: int) -> FloatVector:
        """The student (float32 [d]) after distillation from the teacher [d]; only the slice ``trained`` moves. Running
        statistics, which no gradient moves, are the teacher's.

        The examples' order is drawn from (seed, round); with a teacher that is not finite the student stays as it is.
        """
        if not np.isfinite(teacher).all():
            return student
        answers, model, options = self._answers(teacher), self.worker.model, self.options
        device = model.theta.device
        model.load(torch.from_numpy(student).to(device))
        if model.statistics is not None:
            own = model.statistics[(model.statistics >= trained.start) & (model.statistics < trained.stop)]
            model.theta[own] = torch.from_numpy(teacher).to(device)[own]
        model.module.eval()  # no dropout, as for the teacher's logits
        rng = generator(self.worker.config.seed, server_round, "distillation")
        for _ in range(options.epochs):
            order = torch.from_numpy(rng.permutation(len(self.inputs)))
            for rows in order.split(options.batch_size):
                model.grad.zero_()
                logits = model(self.inputs[rows].to(device))
                distillation_loss(logits, answers[rows].to(device), options.loss, options.temperature).backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    model.theta[trained].add_(model.grad[trained], alpha=-options.lr)
        found: FloatVector = model.theta.detach().cpu().numpy().copy()
        return found if np.isfinite(found).all() else student

    def _answers(self, teacher: FloatVector) -> Tensor:
        """The teacher's logits [n, k] on all auxiliary examples."""
        model = self.worker.model
        model.load(torch.from_numpy(teacher).to(model.theta.device))
        model.module.eval()
        with torch.inference_mode():
            batch = self.worker.config.evaluate.batch_size
            parts = [model(inputs.to(model.theta.device)).cpu() for inputs in self.inputs.split(batch)]
        return torch.cat(parts).clone()
