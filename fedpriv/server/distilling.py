"""The server half that distils the ensemble of the clients' models into the global one on public pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from fedpriv.common.messages import FloatVector, Reply
from fedpriv.server.round import Population
from fedpriv.server.strategy import FederatedStrategy

#: Student [d] after distillation from a teacher [d] in a round: distil(teacher, student, round).
Distil = Callable[[FloatVector, FloatVector, int], FloatVector]


class DistillingServer(FederatedStrategy):
    """Ens = theta + mean of the releases that arrived; theta <- distil(teacher Ens, student theta).

    distillation_epochs: over the auxiliary pictures; 0: theta <- Ens. distillation_loss: kl | mse; temperature of the
    softened logits.
    """

    #: preparation.py gives it to every strategy that distils.
    distil: Distil | None = None

    def __init__(
        self,
        population: Population,
        *,
        distillation_epochs: int,
        distillation_batch_size: int,
        distillation_lr: float,
        distillation_loss: str,
        temperature: float,
        **options: Any,
    ) -> None:
        super().__init__(population, **options)
        self.distillation_epochs, self.distillation_batch_size = distillation_epochs, distillation_batch_size
        self.distillation_lr, self.distillation_loss = distillation_lr, distillation_loss
        self.temperature = temperature

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        ensemble = super().aggregate(theta, replies)  # [ADP-FL, Alg. 1 lines 22, 23]
        if self.distillation_epochs == 0:
            return ensemble
        assert self.distil is not None, "preparation.py gives it to every strategy that distils"
        began = time.perf_counter()
        student = self.distil(ensemble, theta, self.current.number)  # [ADP-FL, Alg. 1 line 24]
        self.current.timings["distillation"] = time.perf_counter() - began
        return student
