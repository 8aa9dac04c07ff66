"""SCAFFOLD under client-level differential privacy, server half.

S. P. Karimireddy et al., ICML 2020; M. Noble, A. Bellet, A. Dieuleveut, AISTATS 2022 (DP-SCAFFOLD).

form=local: the client adds the noise; the server sees each client's release; nobody needs to be trusted. form=central:
the server is trusted, samples the clients and adds the noise; outsiders see global models and c.

Symbols: c -> control, |S|/N -> share, K -> steps, C -> clip_norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedpriv.common.messages import pack_vector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import ScaffoldOptions
from fedpriv.server.gradient import NoisyGradientServer


class Scaffold(NoisyGradientServer):
    """theta as DP-FedAvg; c <- c + |S|/N (g/K - c), with g what becomes known of the round: the releases' mean.

    c is a function of what was released anyway (`clients.scaffold`).
    """

    options: ScaffoldOptions
    in_rows = True
    control: NDArray[np.float64] | None = None  # c [d]; None: zero, before the first round

    def coming_down(self, arrays: ArrayRecord) -> ArrayRecord:
        theta = self.current.theta
        control = np.zeros(theta.size) if self.control is None else self.control
        return pack_vector(np.concatenate([theta, control.astype(np.float32)]))

    def gradient(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        gradient = super().gradient(size, replies)
        number, clients = len(replies), self.population.num_clients
        # A trusted server tells nobody how many were drawn: the expected share.
        share = (self.population.clients_per_round if self.central else number) / clients
        self.control = self.bounded(self.moved(gradient, share))
        return gradient

    def moved(self, gradient: NDArray[np.float64], share: float) -> NDArray[np.float64]:
        """c after a round whose mean of G_i is ``gradient`` [d]."""
        control = np.zeros(gradient.size) if self.control is None else self.control
        return control + share * (gradient / self.options.steps - control)  # [SCAFFOLD, Alg. 1 line 17]

    def bounded(self, control: NDArray[np.float64]) -> NDArray[np.float64]:
        """The nearest point [d] that is no longer than control_norm C/K. Without noise c is an average of clipped
        gradients over K, so it lies there (control_norm=1), and a projection takes no noise's c further away from it.
        """
        unit = self.clip_norm / self.options.steps
        length = float(np.linalg.norm(control)) / unit
        self.current.figures["control_norm"] = min(length, self.options.control_norm)
        return control * min(1.0, self.options.control_norm / length) if length else control

    def vectors(self) -> dict[str, NDArray[Any]]:
        return super().vectors() | ({} if self.control is None else {"control": self.control})

    def load_vectors(self, vectors: Mapping[str, NDArray[Any]]) -> None:
        super().load_vectors(vectors)
        self.control = vectors.get("control")
