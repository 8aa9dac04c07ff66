"""DP-FedSNLC, client half: the baseline of DP-FedAGS that judges a coordinate by the change of the local loss.

J. Ding, J. Wang, G. Liang, J. Bi, M. Pan: Towards Plausible Differentially Private ADMM Based Distributed Machine
Learning. CIKM 2020, as DP-FedAGS's comparison reads it: the cited work is about ADMM, so this is our reading.

The client adds the noise; the server sees each client's gradient and knows who took part; nobody needs to be trusted.

Symbols: g -> clipped, Delta -> the client's step -eta g. The first-order change of the loss along it is |g_j Delta_j| =
eta g_j^2, so the coordinates with the largest |g_j| are significant.

Published: the others are sent as they are. Repaired: nothing is sent for the others.
"""

from __future__ import annotations

from torch import Tensor

from clients.fedags import PerturbsSignificant
from fedpriv.config.methods import DPFedSNLCOptions
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.significance import largest, top_count
from fedpriv.privacy import claimed


class DPFedSNLCClient(PerturbsSignificant):
    """The top ``share`` of the coordinates gets noise."""

    options: DPFedSNLCOptions
    in_rows = True

    def count(self, dimension: int, server_round: int) -> int:
        return top_count(self.options.share, dimension)

    def significant(self, clipped: Tensor, noise: NoiseSource) -> Tensor:
        return largest(clipped.abs(), self.count(clipped.shape[-1], self.round))

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        return claimed.dpfedsnlc(self.printed_epsilon())

    def leak(self) -> str | None:
        dimension = max(1, self.facts.num_parameters)
        without = 1 - self.count(dimension, 1) / dimension
        if self.repaired or without == 0:
            return super().leak()
        words = f"the {without:.0%} of the coordinates that are not significant are sent without noise"
        return f"{words}, and which ones these are is a function of the private gradient"
