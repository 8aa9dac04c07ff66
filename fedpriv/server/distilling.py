"""The server half that distils the ensemble of the clients' models into the global one on public examples."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import PFLOptions
from fedpriv.server.strategy import FederatedStrategy


class DistillingServer(FederatedStrategy):
    """Ens = theta + mean of the releases that arrived; theta <- distil(teacher Ens, student theta).

    distillation_epochs: over the auxiliary examples; 0: theta <- Ens. distillation_loss: kl | mse; temperature of the
    softened logits.
    """

    options: PFLOptions

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        ensemble = super().aggregate(theta, replies)  # [ADP-FL, Alg. 1 lines 22, 23]
        if self.options.distillation_epochs == 0:
            return ensemble
        assert self.hooks.distil is not None, "preparation.py gives it to every strategy that distils"
        began = time.perf_counter()
        student = self.hooks.distil(ensemble, theta, self.current.number)  # [ADP-FL, Alg. 1 line 24]
        self.current.timings["distillation"] = time.perf_counter() - began
        return student
